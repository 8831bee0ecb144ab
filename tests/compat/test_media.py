"""Media of other trackers' APIs are media values here: what is logged by their names can be read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import logclient
from logclient.compat import tensorboard, wandb


def kinds(run_dir: Path) -> dict[str, str]:
    """Kind of each key of the newest run; a value that was lost has the word before it."""
    found = logclient.read(run_dir)[-1].media
    return {each.key: "lost " * bool(each.lost) + each.kind for each in found}


def test_media_of_wandb_are_stored(run_dir: Path, tmp_path: Path, patient: None) -> None:
    """Images and lists of them, figures, tables that grow, histograms, sound, films, HTML and plots of tables."""
    pyplot = pytest.importorskip("matplotlib.figure")
    page = tmp_path / "page.html"
    page.write_text("<b>page</b>")
    run = wandb.init()
    figure = pyplot.Figure()
    figure.subplots().plot([1, 2])
    image = wandb.Image(np.linspace(-1, 1, 16).reshape(4, 4), caption="c", masks={"p": {"mask_data": 1}})
    table = wandb.Table(columns=["a", "b"], data=[[1, image]])
    table.add_data(2, "x")
    wandb.log(
        {
            "image": image,
            "images": [image, wandb.Image(np.zeros((2, 2), "u1"))],
            "figure": wandb.Image(figure),
            "table": table,
            "histogram": wandb.Histogram([1, 2]),
            "counted": wandb.Histogram(np_histogram=np.histogram([1, 2, 2], 4)),
            "audio": wandb.Audio(np.zeros(80), sample_rate=8000),
            "video": wandb.Video("/none/such.mp4", fps=4),
            "html": wandb.Html("<b>"),
            "page": wandb.Html(str(page)),
            "plot": wandb.plot.line(table, "a", "b"),
            "loss": 1.0,
        }
    )
    run.finish()
    assert kinds(run_dir) == {
        "image": "image",
        "images": "image",
        "images/1": "image",
        "figure": "figure",
        "table": "table",
        "histogram": "histogram",
        "counted": "histogram",
        "audio": "audio",
        "video": "lost video",
        "html": "html",
        "page": "html",
        "plot": "table",
    }
    media = logclient.read(run_dir)[-1].media
    (one, cell), last = media["table"][0].load().rows
    assert (
        (one, last) == (1, [2, "x"])
        and cell.caption == "c"
        and (cell.load().max(), cell.load().min()) == (255, 0)
    )
    assert (media["image"][0].load().min(), media["image"][0].load().max()) == (0, 255)
    assert media["counted"][0].load().counts.tolist() == [1, 0, 0, 2]
    assert media["page"][0].load() == "<b>page</b>" and media["audio"][0].mime == "audio/wav"
    assert media["figure"][0].bytes().startswith(b"\x89PNG")


def test_media_of_tensorboard_are_stored(run_dir: Path, tmp_path: Path, patient: None) -> None:
    """As the library writes them: images as PNG, histograms as its buckets, long texts whole."""
    pytest.importorskip("torch.utils.tensorboard")
    writer: Any = tensorboard.SummaryWriter(str(tmp_path / "tb"))
    writer.add_image("image", np.zeros((3, 4, 5), "u1"), 1)
    writer.add_histogram("histogram", np.arange(1000.0), 2)
    writer.add_text("long", "x" * 5000, 3)
    writer.add_text("short", "x", 3)
    writer.add_scalar("loss", 1.0, 4)
    writer.close()
    assert kinds(run_dir) == {"image": "image", "histogram": "histogram", "long": "text"}
    run = logclient.read(run_dir)[-1]
    assert run.media["image"][0].load().shape[:2] == (4, 5) and run.media["image"][0].step == 1
    counts = run.media["histogram"][0].load()
    assert counts.counts.sum() == 1000 and (counts.edges[0], counts.edges[-1]) == (0.0, 999.0)
    assert run.media["long"][0].load() == "x" * 5000 and list(run.series("short").value) == ["x"]


def test_media_of_lightning_and_accelerate_are_stored(run_dir: Path, patient: None) -> None:
    """Their loggers' methods for images, tables and texts."""
    pytest.importorskip("lightning")
    pytest.importorskip("accelerate")
    from accelerate import PartialState

    from logclient.integrations.accelerate import LogclientTracker
    from logclient.integrations.lightning import LogclientLogger

    pixels = np.zeros((4, 4), "u1")
    logger = LogclientLogger()
    logger.log_image("sample", [pixels, pixels], step=1, caption=["first", "second"])
    logger.log_table("table", ["a"], [[1]], step=1)
    logger.log_text("text", ["a"], [["word"]], step=1)
    logger.experiment.finish()
    assert kinds(run_dir) == {"sample": "image", "sample/1": "image", "table": "table", "text": "table"}
    assert logclient.read(run_dir)[-1].media["sample/1"][0].caption == "second"

    PartialState()
    tracker = LogclientTracker()
    tracker.start()
    tracker.log_images({"sample": [pixels]}, step=1)
    tracker.log_table("table", ["a"], [[1]], step=1)
    tracker.finish()
    assert kinds(run_dir) == {"sample": "image", "table": "table"}

"""What TensorBoard's writers write is logged too: every scalar at its step, with the value of the event file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import logclient
import logclient.compat.wandb as wandb
from logclient.run import why_closed
from logclient.spawn import agent as spawn
from tests.lanes import LaneFile, start_no_agent, wait_until
from tools.compare_events import compare, points_of, scalars_of

pytest.importorskip("torch")
pytest.importorskip("tensorboard")
SCRIPTS = Path(__file__).parent / "tensorboard_scripts"


@pytest.fixture
def alone(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program's own folder, no agents, and no run that a test leaves open."""
    from logclient.compat import tensorboard

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGCLIENT_QUIET", "1")
    monkeypatch.setenv("LOGCLIENT_FINISH_TIMEOUT_S", "0.05")
    monkeypatch.setattr(logclient, "_run", None)
    with mock.patch.object(spawn, "start_agent", start_no_agent):
        yield
        wandb.teardown()
        for run in tensorboard._begun.values():
            run.finish()


def lanes_of(run: Any) -> dict[str, list[tuple[int, Any]]]:
    """What was logged to a run, by key."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for record in LaneFile(run._session.lanes.path).read():
        for key, value in record.values.items():
            found.setdefault(key, []).append((record.step, value))
    return found


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["sync", "sync-late", "sync-x", "writer"])
def test_policy_training_is_logged_as_its_event_file_has_it(tmp_path: Path, run_dir: Path, how: str) -> None:
    """A small PPO: scalars equal, at their steps, none missing and none more; the hyperparameters as a text."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPTS / "policy.py"), how],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    name = f"walk__{how}__1"
    expected = scalars_of(tmp_path / "runs" / name)
    assert len(expected) == 6 and len(expected["losses/policy_loss"]) == 6

    def found() -> Any:
        runs = {run.name: run for run in logclient.read(run_dir)}
        return runs.get(name) if name in runs and runs[name].state == "finished" else None

    run = wait_until(found, "the run of the script", 60)
    assert {*run.keys()} == {*expected, "hyperparameters"}
    counts = compare(expected, points_of(run))
    assert counts.keys() == expected.keys() and all(len({*each}) == 1 for each in counts.values()), counts
    assert run.series("hyperparameters").value[0].startswith("|param|value|\n|-|-|\n|lr|0.003|")
    assert run.about["counts"]["refused"] == 0
    assert how == "writer" or run.config["clip"] == 0.2


def write_everything(writer: Any) -> None:
    """One call of each of a writer's methods."""
    import torch

    image = torch.zeros(3, 4, 4)
    writer.add_scalar("plain", 0.1, 5)
    writer.add_scalar("no_step", torch.tensor(2.0))
    writer.add_scalar("numpy", np.float32(3.0), global_step=np.int64(6), walltime=1.0)
    writer.add_scalars("curves/both", {"a": 1.0, "b": 2.0}, 7)
    writer.add_text("note", "some text", 8)
    writer.add_histogram("weights", torch.randn(10), 9)
    writer.add_image("image", image, 9)
    writer.add_images("images", image[None], 9)
    writer.add_pr_curve("pr", torch.tensor([0, 1]), torch.tensor([0.1, 0.9]), 9)
    writer.add_custom_scalars({"c": {"x": ["Multiline", ["plain"]]}})
    writer.add_mesh("mesh", torch.zeros(1, 3, 3))
    writer.add_embedding(torch.zeros(2, 3))
    writer.add_hparams({"lr": 0.1, "name": "x", "flag": True}, {"hparam/accuracy": 0.9})
    writer.flush()


@pytest.mark.parametrize("library", ["torch.utils.tensorboard", "tensorboardX"])
@pytest.mark.parametrize("is_early", [True, False])
def test_each_method_of_a_writer_that_a_run_sees(alone: None, library: str, is_early: bool) -> None:
    """Scalars, texts, hyperparameters, images and histograms are kept; all else is counted and said."""
    module = pytest.importorskip(library)
    writer = module.SummaryWriter("logs") if is_early else None
    run = wandb.init(sync_tensorboard=True, config={"lr": 5})
    with writer or module.SummaryWriter("logs") as writer:
        write_everything(writer)
    found = lanes_of(run.logclient_run)
    assert found["plain"] == [(5, np.float32(0.1))] and found["no_step"] == [(0, 2.0)]
    assert found["numpy"] == [(6, 3.0)] and found["note"] == [(8, "some text")]
    assert found["curves/both/a"] == [(7, 1.0)] and found["curves/both/b"] == [(7, 2.0)]
    assert found["hparam/accuracy"] == [(0, np.float32(0.9))]
    assert len(found) == 7
    assert run.config.lr == 0.1 and run.config.flag is True and run.summary["plain"] == np.float32(0.1)
    status = run.status()
    assert status["left_out"] == 4 and status["refused"] == 0, status["notices"]
    for kind in ("PR curve", "mesh", "embedding", "layout", "walltime"):
        assert sum(kind in line for line in status["notices"]) == 1, kind
    assert scalars_of("logs")["plain"] == found["plain"]
    assert run.step == 0


def test_two_folders_of_one_run_have_keys_of_their_own(alone: None) -> None:
    from torch.utils.tensorboard import SummaryWriter

    run = wandb.init(sync_tensorboard=True)
    with SummaryWriter("logs/train") as train, SummaryWriter("logs/val") as val:
        train.add_scalar("loss", 1.0, 1)
        val.add_scalar("loss", 2.0, 1)
    assert lanes_of(run.logclient_run) == {"loss": [(1, 1.0)], "val/loss": [(1, 2.0)]}


@pytest.mark.parametrize("library", ["torch.utils.tensorboard", "tensorboardX"])
def test_hyperparameters_that_a_library_writes_by_itself(alone: None, library: str) -> None:
    """Loggers of other libraries pass by `add_hparams`: the event has them."""
    module = pytest.importorskip(library)
    summary = pytest.importorskip(f"{library}.summary")
    run = wandb.init(sync_tensorboard=True)
    with module.SummaryWriter("logs") as writer:
        for each in summary.hparams({"lr": 0.1, "name": "x", "flag": True}, {"loss": 1.0}):
            writer._get_file_writer().add_summary(each)
    assert dict(run.config) == {"lr": 0.1, "name": "x", "flag": True}
    assert run.status()["left_out"] == 0


@pytest.mark.slow
def test_lightnings_own_logger_is_seen(alone: None) -> None:
    """Its scalars at their steps, its hyperparameters in the config."""
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    run = wandb.init(sync_tensorboard=True)
    logger = loggers.TensorBoardLogger("logs", name="it", version="v")
    logger.log_hyperparams({"lr": 0.1, "layers": 3}, {"hp_metric": 2.0})
    logger.log_metrics({"loss": 0.5}, step=7)
    logger.save()
    logger.finalize("success")
    found = lanes_of(run.logclient_run)
    assert found["loss"] == [(7, 0.5)] and found["hp_metric"][0] == (0, 2.0)
    assert run.config["lr"] == 0.1 and run.config["layers"] == 3


def test_events_end_with_their_run(alone: None) -> None:
    """A run that did not ask for them, and one that is over, get none; precision and new style are the file's."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter("logs") as writer:
        first = wandb.init(sync_tensorboard=True)
        writer.add_scalar("a", 1.0, 1)
        writer.add_scalar("new", 0.1, 2, new_style=True)
        writer.add_scalar("double", 0.1, 3, new_style=True, double_precision=True)
        writer.add_tensor("tensor", first and __import__("torch").zeros(3), 4)
        found = lanes_of(first.logclient_run)
        wandb.finish()
        writer.add_scalar("a", 2.0, 2)
        second = wandb.init()
        writer.add_scalar("a", 3.0, 3)
        assert lanes_of(second.logclient_run) == {}
    assert found == {"a": [(1, 1.0)], "new": [(2, np.float32(0.1))], "double": [(3, 0.1)]}


@pytest.mark.parametrize("has_files", [True, False])
def test_summary_writer_of_one_changed_import(alone: None, has_files: bool) -> None:
    """A folder is a run; the whole API; without files where that was asked for."""
    from logclient.compat.tensorboard import SummaryWriter

    writer = SummaryWriter("logs/one", purge_step=3, write_to_disk=has_files)
    other = SummaryWriter(logdir="logs/two", comment="c", filename_suffix=".x", write_to_disk=has_files)
    run, second = (each._logclient_find().run for each in (writer, other))
    assert (run.name, second.name) == ("one", "two") and writer.get_logdir() == writer.log_dir == "logs/one"
    write_everything(writer)
    other.add_scalar("plain", 7.0, 1)
    found = lanes_of(run)
    assert found["plain"] == [(5, np.float32(0.1))] and found["curves/both/b"] == [(7, 2.0)]
    assert found["note"] == [(8, "some text")] and run.config["lr"] == 0.1 and len(found) == 7
    assert run.summary["hparam/accuracy"] == 0.9 and run.status()["left_out"] == 4
    assert lanes_of(second) == {"plain": [(1, 7.0)]}
    assert sum("purge_step" in line for line in run.status()["notices"]) == 1
    assert bool([*Path("logs").glob("*/events*")]) is has_files
    if has_files:
        assert scalars_of("logs/one")["plain"] == found["plain"]
    writer.close()
    other.close()
    assert why_closed(run) and why_closed(second)


def test_summary_writer_logs_to_the_run_that_is_open(alone: None) -> None:
    from logclient.compat.tensorboard import SummaryWriter

    run = logclient.init(project="p", name="mine")
    with SummaryWriter(comment="x") as writer:
        writer.add_scalar("a", 1.0, 1)
    assert lanes_of(run) == {"a": [(1, 1.0)]} and not why_closed(run)
    run.finish()
    with SummaryWriter("logs/own") as writer:
        writer.add_scalar("a", 2.0, 2)
        mine = writer._logclient_own
    assert mine is not None and mine.id != run.id and why_closed(mine)


def test_summary_writer_where_neither_library_is_installed(tmp_path: Path) -> None:
    """The API is there, and everything is logged or counted."""
    script = """
import sys
from unittest import mock
for name in ("torch", "tensorboardX"):
    sys.modules[name] = None
import os
from logclient.compat.tensorboard import SummaryWriter
with SummaryWriter("logs/bare") as writer:
    run = writer._logclient_find().run
    writer.add_scalar("a", 0.1, 3)
    writer.add_scalars("main", {"x": 1.0, "y": 2}, 4)
    writer.add_text("t", "text", 5)
    writer.add_hparams({"lr": 1}, {"acc": 0.5})
    writer.add_histogram("h", [1, 2], 1)
    writer.add_figure("f", None)
    writer.add_scalar("bad", object(), "x")
    writer.flush()
    print(run.name, run.config["lr"], run.status()["accepted"], run.status()["left_out"], os.path.exists("logs"))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, cwd=tmp_path
    )
    assert done.stdout == "bare 1 7 2 False\n", done.stderr

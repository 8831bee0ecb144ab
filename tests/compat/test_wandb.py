"""`logclient.compat.wandb`: scripts in the style of public ones, and the semantics that such code relies on."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest

import logclient
import logclient.compat.wandb as wandb_module
from logclient.spawn import agent as spawn
from tests.lanes import LaneFile, start_no_agent, wait_until

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "wandb_scripts"
wandb: Any = wandb_module


@pytest.fixture
def made(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, LaneFile]]:
    """A run by `wandb.init`, without an agent, and its lanes."""
    monkeypatch.setenv("LOGCLIENT_QUIET", "1")
    monkeypatch.setenv("LOGCLIENT_FINISH_TIMEOUT_S", "0.05")
    with mock.patch.object(spawn, "start_agent", start_no_agent):
        run = wandb.init(project="test", config={"lr": 0.1})
        yield run, LaneFile(run.logclient_run._session.lanes.path)
        run.finish()


def rows(file: LaneFile) -> list[tuple[int, dict[str, Any]]]:
    return [(record.step, record.values) for record in file.read()]


def run_script(name: str, where: Path, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPTS / name), *words],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=where,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'backend'}", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr


def stored(run_dir: Path, number: int) -> Any:
    """So many runs, all finished, by name."""

    def found() -> Any:
        runs = {run.name: run for run in logclient.read(run_dir)}
        return runs if len(runs) == number and all(run.state == "finished" for run in runs.values()) else None

    return wait_until(found, "the runs of the script", 60)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_classifier(run_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    run_script("digits.py", tmp_path, "--lr", "0.02")
    run = stored(run_dir, 1)["classifier"]
    assert run.config == {"lr": 0.02, "epochs": 2}
    assert set(run.tags) == {"mlp", "train"}
    assert run.series("train.loss").step.tolist() == [*range(20)]
    assert run.series("val/accuracy").step.tolist() == [10, 20]
    assert run.series("grad/0.weight/norm").step.tolist() == [0, 5, 10, 15]
    assert "param/2.bias/share/1e-3" in [*run.keys()]
    best = run.series("val/accuracy").value.max()
    assert run.summary["val/accuracy.max"] == pytest.approx(best)
    assert run.summary["parameters"] == 64 * 32 + 32 + 32 * 10 + 10
    assert run.summary["epoch"] == 1


@pytest.mark.timeout(240)
def test_sections(run_dir: Path, tmp_path: Path) -> None:
    run_script("sections.py", tmp_path)
    runs = stored(run_dir, 3)
    for seed in range(2):
        run = runs[f"seed-{seed}"]
        assert run.config == {"seed": seed}
        assert run.series("loss").step.tolist() == run.series("accuracy").step.tolist() == [0, 10, 20]
        assert run.summary["note"] == "done" and run.summary["accuracy"] == pytest.approx(20 / 30)
    last = runs["open"]
    assert last.series("a").step.tolist() == last.series("b").step.tolist() == [0, 1, 2]
    assert last.series("last").step.tolist() == [50], "a row that is open when the program ends"
    assert last.summary["last"] == 1.5


@pytest.mark.timeout(240)
def test_resumed(run_dir: Path, tmp_path: Path) -> None:
    """Steps go on behind those of the run's earlier attempt."""
    script = """
import logclient.compat.wandb as wandb
with wandb.init(project="p", name="again", id="one-id", resume="allow", config={"a": {"b": [1]}}) as run:
    run.config.update({"a": {"b": [1]}})
    for _ in range(3):
        run.log({"loss": run.step})
    print(run.resumed)
"""

    def are_stored(number: int) -> bool:
        steps = stored(run_dir, 1)["again"].series("loss").step
        return list(steps) == list(range(number))

    count = 0
    for expected in ("False\n", "True\n"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=100,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'backend'}"},
        )
        assert done.stdout == expected, done.stderr
        count += 3
        wait_until(partial(are_stored, count), f"{count} steps", 60)


def test_steps(made: Any) -> None:
    """By themselves, in rows of several calls, and given: see `history.py`."""
    run, file = made
    run.log({"a": 1})
    run.log({"a": 2}, commit=False)
    run.log({"b": 2, "a": 3})
    assert rows(file) == [(0, {"a": 1}), (1, {"a": 3, "b": 2})]
    assert run.step == 2
    run.log({"a": 4}, step=5)
    assert not rows(file) and run.step == 5
    run.log({"b": 4}, step=5)
    run.log({"a": 5}, step=7)
    assert rows(file) == [(5, {"a": 4, "b": 4})]
    run.log({"c": 5}, step=7, commit=True)
    assert rows(file) == [(7, {"a": 5, "c": 5})]
    assert run.step == 8
    run.log({"a": 6}, step=3)
    assert rows(file) == [(3, {"a": 6})] and run.step == 8
    run.log({})
    assert not rows(file) and run.step == 9
    assert run.logclient_run.status()["refused"] == 0
    run.log({"a": 7}, step=np.int64(12))
    run.log({"b": 7})
    assert rows(file) == [(12, {"a": 7, "b": 7})]
    assert run.step == 13


def test_our_failure(made: Any) -> None:
    """Counted, and the training goes on; what the user's code raises in between is the user's."""

    class Odd(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise RuntimeError("odd")

    run, file = made
    run.log({"a": 1, "odd": Odd()})
    run.log({"b": 1})
    run.log([1, 2])
    run.log({"b": 2}, step="three")
    assert [values["b"] for _, values in rows(file) if "b" in values] == [1]
    assert run.logclient_run.status()["refused"] == 3


def test_nested_keys(made: Any) -> None:
    run, file = made
    run.log({"train": {"loss": 1.5, "top": {1: 2}}, "a/b": 3, 4: 5}, commit=False)
    run.log({"train": {"acc": 0.5}})
    assert rows(file) == [(0, {"train.loss": 1.5, "train.top.1": 2, "a/b": 3, "4": 5, "train.acc": 0.5})]


def test_row_holds_values(made: Any) -> None:
    """What waits for its row is what it was, and holds no graph."""
    torch = pytest.importorskip("torch")
    run, file = made
    loss, array = torch.ones((), requires_grad=True) * 2, np.array(3.0)
    run.log({"loss": loss, "array": array}, step=1)
    with torch.no_grad():
        loss.fill_(7)
    array[...] = 8
    run.log({}, commit=True)
    assert rows(file) == [(1, {"loss": 2.0, "array": 3.0})]


def test_media(made: Any) -> None:
    """What logclient has is stored; all else is left out, counted, and said once; the rest of the row arrives."""
    run, file = made
    for _ in range(2):
        run.log(
            {
                "image": wandb.Image(np.ones((3, 3))),
                "points": wandb.Object3D([[0, 0, 0]]),
                "plot": wandb.plot.roc_curve(1, 2, title="t"),
                "loss": 1.0,
            }
        )
    assert [values for _, values in rows(file)] == [{"loss": 1.0}] * 2
    status = run.logclient_run.status()
    assert status["left_out"] == 4
    assert sum(line.startswith("Object3D:") for line in status["notices"]) == 1


def test_config(made: Any) -> None:
    """Entries and attributes; a value stays, unless it may change."""
    run, _ = made
    config = wandb.config
    assert config is run.config and config.lr == config["lr"] == 0.1 and "lr" in config
    config.epochs = 3
    config.update({"lr": 0.1, "deep": {"a": [1, 2]}})
    config.update({"deep": {"a": [1, 2]}})
    for change in (lambda: config.update({"lr": 0.2, "new": 1}), lambda: setattr(config, "lr", 0.2)):
        with pytest.raises(wandb.errors.ConfigError, match="allow_val_change"):
            change()
    assert "new" not in config
    config.update({"lr": 0.2}, allow_val_change=True)
    config.setdefaults({"lr": 9, "seed": 1})
    config.update(argparse.Namespace(depth=4))
    expected = {"lr": 0.2, "epochs": 3, "deep": {"a": [1, 2]}, "seed": 1, "depth": 4}
    assert config.as_dict() == dict(config) == expected
    assert run.logclient_run.config["depth"] == 4
    assert config.get("nothing") is None and not hasattr(config, "nothing")


def test_summary(made: Any) -> None:
    """Last values of themselves, what `define_metric` asks for, and what is set."""
    run, _ = made
    wandb.define_metric("loss", summary="min,mean")
    wandb.define_metric("val/*", summary="best", goal="maximize")
    wandb.define_metric("quiet", summary="none")
    for loss in (3.0, 1.0, float("nan"), 2.0):
        run.log({"loss": loss, "val/acc": loss, "plain": loss, "quiet": loss})
    wandb.summary["best"] = 5
    wandb.run.summary.note = "x"
    summary = run.summary
    assert summary["loss.min"] == 1.0 and summary["loss"]["min"] == 1.0
    assert summary["val/acc.max"] == 3.0
    assert summary.plain == 2.0 and "quiet" not in summary and "loss" not in summary._data
    assert run.logclient_run.summary["best"] == 5
    run.finish()
    assert run.logclient_run.summary["plain"] == 2.0


def test_step_metric(made: Any) -> None:
    """A row without the metric that its keys are drawn over gets the newest value of it."""
    run, file = made
    wandb.define_metric("epoch")
    wandb.define_metric("val/*", step_metric="epoch")
    run.log({"epoch": 3})
    run.log({"val/acc": 0.5})
    run.log({"other": 0.5})
    assert [values for _, values in rows(file)] == [
        {"epoch": 3},
        {"val/acc": 0.5, "epoch": 3},
        {"other": 0.5},
    ]


def test_what_is_missing(made: Any) -> None:
    """Said once, and does nothing; whatever is done with it."""
    run, _ = made
    for _ in range(2):
        api = wandb.Api()
        assert list(api.runs("team/project", filters={"a": 1})) == []
        with wandb.Artifact("a", type="t").new_file("b") as file:
            file.write("c")
        assert not wandb.Api().artifact("a:latest").download()["x"]
        assert not os.listdir(wandb.use_artifact("a:latest").download())
        run.log_code(".")

    @wandb.mixin_of_some_kind
    def train() -> int:
        return 3

    class Own(wandb.sdk.Thing):  # type: ignore[misc]  # it is an object here
        pass

    assert train() == 3 and Own() is not None
    notices = run.logclient_run.status()["notices"]
    assert sum("wandb.Api is not there" in line for line in notices) == 1
    assert sum("wandb.run.log_code: files are not kept" in line for line in notices) == 1
    with pytest.raises(AttributeError):
        wandb.__wrapped__  # noqa: B018


def test_summary_of_the_users(made: Any) -> None:
    """What they put where the least value is kept is replaced; no record is lost or counted for it."""
    run, file = made
    wandb.define_metric("loss", summary="min")
    wandb.summary["loss.min"] = "unknown"
    run.log({"loss": 2.0})
    run.log({"loss": 3.0})
    assert wandb.summary["loss.min"] == 2.0 and len(rows(file)) == 2
    assert run.logclient_run.status()["refused"] == 0


def test_init_while_a_run_is_open(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives that run, and says so where another was asked for; a notebook's cell that is run again makes a new one."""
    run, _ = made
    assert wandb.init() is run and not run.logclient_run.status()["notices"]
    assert wandb.init(project="test", name="other") is run
    assert any("reinit=True" in line for line in run.logclient_run.status()["notices"])
    monkeypatch.setattr("logclient.compat.wandb.opening.has_shell", lambda: True)
    assert wandb.init(name="other", reinit=False) is run
    again = wandb.init(name="other")
    assert again is not run and again.name == "other" and run._over
    again.finish()


def test_folder_for_files(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a disabled run it is in the working directory; where none can be made, a temporary one."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("tempfile.tempdir", str(there))
    with wandb.init(mode="disabled") as run:
        assert Path(run.dir) == here / "wandb-files" / "none" and Path(run.dir).is_dir()
        Path(run.dir).rmdir()
        (here / "wandb-files").rmdir()
        (here / "wandb-files").write_text("in the way")
        assert Path(run.dir).parent == there and Path(run.dir).is_dir() and run.dir == run.dir


def test_before_and_after(run_dir: Path) -> None:
    """Without a run nothing raises."""
    assert wandb.run is None
    wandb.log({"a": 1})
    wandb.finish()
    wandb.alert("t")
    wandb.watch(None)
    wandb.config.early = 1
    run = wandb.init(mode="disabled", config={"late": 2})
    assert dict(wandb.config) == {"early": 1, "late": 2} and run.disabled
    wandb.log({"a": 1})
    wandb.log({"a": 2}, step=4)
    assert run.step == 4 and wandb.summary["a"] == 1
    run.name = "named"
    assert run.name == "named"
    run.finish()
    assert wandb.run is None and not wandb.config


def test_environment(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker's own variables; arguments win."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("WANDB_PROJECT", "of-variable")
    monkeypatch.setenv("WANDB_TAGS", "a,b")
    run = wandb.init()
    assert run.disabled and run.project == "of-variable" and run.tags == ("a", "b")
    run.finish()
    run = wandb.init(project="given", settings={"run_name": "x"}, entity="me")
    assert run.project == "given" and run.entity == "me"
    run.finish()


def test_alerts(made: Any) -> None:
    """The same title waits; levels have their names."""
    run, _ = made
    for _ in range(3):
        wandb.alert("Loss", "is high", level=wandb.AlertLevel.WARN)
    wandb.alert("Loss", "again", level="ERROR", wait_duration=0)
    assert [alert["level"] for alert in run.logclient_run._session.alerts] == ["warn", "error"]


def test_forked(made: Any) -> None:
    """A row that is open is the parent's."""
    run, file = made
    run.log({"a": 1}, commit=False)
    pid = os.fork()
    if not pid:
        try:
            run.finish()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    run.log({"b": 1})
    assert rows(file) == [(0, {"a": 1, "b": 1})]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Keras on torch
def test_callbacks_of_keras(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs under W&B's keys, in a real training; the callbacks for saving and evaluating let it go on."""
    pytest.importorskip("torch")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    from logclient.compat.wandb.keras import WandbCallback  # type: ignore[import-not-found]  # where it was once

    from logclient.compat.wandb.integration.keras import (
        WandbEvalCallback,
        WandbMetricsLogger,
        WandbModelCheckpoint,
    )

    class Evaluate(WandbEvalCallback):
        def add_ground_truth(self, logs: Any = None) -> None:
            self.data_table.add_data(1)

    run, file = made
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callbacks = [
        WandbMetricsLogger(log_freq=2),
        WandbCallback(save_model=True, monitor="loss"),
        WandbModelCheckpoint(f"{run.dir}/model.keras"),
        Evaluate(["a"], ["b"]),
    ]
    model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=2, epochs=2, verbose=0, callbacks=callbacks)
    found = rows(file)
    epochs = [values["epoch/epoch"] for _, values in found if "epoch/epoch" in values]
    batches = [values["batch/batch_step"] for _, values in found if "batch/batch_step" in values]
    assert epochs == [0, 1] and batches[:4] == [0, 2, 4, 6]
    assert sum("epoch/loss" in values and "epoch/learning_rate" in values for _, values in found) == 2
    assert [values["epoch"] for _, values in found if "epoch" in values] == [0, 1]
    assert os.path.exists(f"{run.dir}/model.keras")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_sweep_of_the_page(run_dir: Path, tmp_path: Path) -> None:
    """Its script makes five runs, each with a rate of its own."""
    page = (ROOT / "docs" / "integrations" / "wandb.md").read_text()
    (tmp_path / "sweep.py").write_text(page.partition("# sweep.py")[2].partition("```")[0])
    done = subprocess.run(
        [sys.executable, "sweep.py"], capture_output=True, text=True, timeout=200, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    runs = stored(run_dir, 5).values()
    assert len({run.about["group"] for run in runs}) == 1
    rates = [run.config["lr"] for run in runs]
    assert len(set(rates)) == 5 and all(1e-4 <= rate <= 1e-1 for rate in rates)
    assert all(run.series("loss").value[0] == run.config["lr"] for run in runs)


def test_import_is_light() -> None:
    script = (
        "import sys, logclient.compat.wandb; print({'torch', 'numpy', 'logclient_backend'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "set()\n", done.stderr
    assert isinstance(wandb, ModuleType)

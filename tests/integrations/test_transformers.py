"""The callback for Hugging Face's Trainer, in real trainings of a tiny model."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback, integrations

import logclient
from logclient import BadArgument, NullRun
from logclient.integrations import guard
from logclient.integrations.transformers import LogclientCallback, register
from tests.integrations.gpt import model, pieces, trainer
from tests.lanes import opened

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("transformers")]
HOOKS = [name for name, method in vars(LogclientCallback).items() if hasattr(method, "__wrapped__")]


@pytest.fixture
def run(run_dir: Path) -> Iterator[tuple[Any, Any]]:
    """A run and its lanes."""
    with opened("gpt") as (made, file):
        yield made, file


def rows(file: Any) -> list[tuple[int, list[str]]]:
    return [(record.step, sorted(record.values)) for record in file.read()]


TRAIN = ["epoch", "train/grad_norm", "train/learning_rate", "train/loss"]
EVAL = ["epoch", "eval/loss", "eval/runtime", "eval/samples_per_second", "eval/steps_per_second"]


@pytest.mark.slow
def test_a_training_is_logged_to_a_run_of_its_own(run_dir: Path, tmp_path: Path) -> None:
    """Metrics, configuration, summary and checkpoints, read back from disk; what comes next is in it, too (C1-4)."""
    callback = LogclientCallback(project="gpt", name="one", quiet=True)
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "epoch"}
    made = trainer(tmp_path, callback, learning_rate=0.01, hub_token="secret", **settings)
    try:
        made.train()
        made.evaluate()
        made.predict(pieces(100, 8))
        logclient.log(100, {"by_hand": 1})
        run = logclient._run
        assert isinstance(run, logclient.Run) and run.flush(60)
        status = run.status()
        assert status["refused"] == status["left_out"] == 0, status["notices"]
    finally:
        logclient.finish(60)
    read = logclient.read(run_dir)["one"]
    assert read.series("train/loss").step.tolist() == [2, 4, 6, 8]
    assert read.series("eval/loss").step.tolist() == [8, 8]
    assert read.series("test/loss").step.tolist() == [8]
    assert read.series("by_hand").step.tolist() == [100]
    assert {key.partition("/")[0] for key in read.keys()} == {"train", "eval", "test", "epoch", "by_hand"}  # noqa: SIM118
    assert "train/train_loss" not in read.keys()  # noqa: SIM118
    assert read.config["learning_rate"] == 0.01 and read.config["hub_token"] != "secret"
    assert read.config["model"]["n_embd"] == 8
    assert read.summary["train_loss"] > 0 and read.summary["train_runtime"] > 0
    kept = read.summary["checkpoint"]
    assert kept["step"] == 8 and Path(kept["last"]).is_dir()


@pytest.mark.slow
def test_a_search_has_a_run_for_each_trial(run_dir: Path, tmp_path: Path) -> None:
    """`hyperparameter_search` with one callback: each run has its settings, its curve from step 2 on, and its trial."""
    optuna = pytest.importorskip("optuna", reason="needs Optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    made = trainer(tmp_path, LogclientCallback(project="gpt", quiet=True), eval_strategy="epoch")
    made.model_init = lambda trial=None: model()
    best = made.hyperparameter_search(
        hp_space=lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1)},
        n_trials=2,
        direction="minimize",
        backend="optuna",
        study_name="s",
    )
    assert best.hyperparameters and logclient.finish(60)
    found = sorted(logclient.read(run_dir), key=lambda run: run.config["trial"]["number"])
    assert [run.config["trial"]["number"] for run in found] == [0, 1]
    for run in found:
        (fit,) = run.config["fits"]
        assert fit["params"] == run.config["trial"]["params"]
        assert fit["params"] == {"learning_rate": run.config["learning_rate"]}
        assert fit["trial"] == run.config["trial"]["number"] and run.about["group"] == "s"
        assert run.series("train/loss").step.tolist() == [2, 4, 6, 8] and fit["first_step"] == 1


@pytest.mark.slow
def test_nothing_is_logged_where_there_is_nothing_to_log(run: tuple[Any, Any], tmp_path: Path) -> None:
    """Epoch-only metrics (C2-4), and a trainer without an evaluation."""
    trainer(
        tmp_path, LogclientCallback(), logging_strategy="epoch", num_train_epochs=2, evaluated=False
    ).train()
    assert rows(run[1]) == [(8, TRAIN), (16, TRAIN)]
    trainer(tmp_path, LogclientCallback(), logging_strategy="no").train()
    assert rows(run[1]) == []


@pytest.mark.slow
def test_accumulation_counts_optimizer_steps(run: tuple[Any, Any], tmp_path: Path) -> None:
    """8 batches, 4 at a time: 2 steps (R2-36)."""
    trainer(tmp_path, LogclientCallback(), gradient_accumulation_steps=4, logging_steps=1).train()
    assert rows(run[1]) == [(1, TRAIN), (2, TRAIN)]


def test_evaluation_alone_is_no_training(run: tuple[Any, Any], tmp_path: Path) -> None:
    """It leaves its own keys and no other."""
    trainer(tmp_path, LogclientCallback()).evaluate()
    ((step, keys),) = rows(run[1])
    assert step == 0 and "eval/loss" in keys
    assert all(key.startswith("eval/") for key in keys if key != "epoch")
    assert not run[0].config


@pytest.mark.slow
def test_trainings_count_on_in_a_run(run: tuple[Any, Any], tmp_path: Path) -> None:
    """Those that begin at 0, of one trainer or of several; one that is resumed keeps its steps."""
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4, "logging_steps": 4}
    first = trainer(tmp_path, LogclientCallback(), **settings)
    first.train()
    first.train()
    first.evaluate()
    assert [step for step, _ in rows(run[1])] == [4, 8, 12, 16, 16]
    assert run[0].summary["checkpoint"]["step"] == 16
    first.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    assert [step for step, _ in rows(run[1])] == [16]
    trainer(tmp_path, LogclientCallback(), **settings).train()
    assert [step for step, _ in rows(run[1])] == [20, 24]
    assert [fit["first_step"] for fit in run[0].config["fits"]] == [1, 9, 13, 17]


@pytest.mark.slow
def test_two_callbacks_log_a_training_once(
    run: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name and as an object: one logs, and it is said; evaluations as well."""
    table: Any = integrations.INTEGRATION_TO_CALLBACK
    monkeypatch.setitem(table, "logclient", None)  # so that it is taken away afterwards
    register()
    made = trainer(tmp_path, LogclientCallback(), report_to="logclient")
    made.evaluate()
    made.train()
    made.evaluate()
    assert [step for step, _ in rows(run[1])] == [0, 2, 4, 6, 8, 8]
    assert any("twice" in line for line in run[0].status()["notices"])


def test_keys_of_the_users(run: tuple[Any, Any], tmp_path: Path) -> None:
    """A prefix of an evaluation of theirs; keys that are no text are those of `Run.log`."""
    made = trainer(tmp_path, LogclientCallback())
    made.evaluate(metric_key_prefix="held_out")
    made.log({"loss": 1.0, 5: 2.0})
    (_, keys), (_, logged) = rows(run[1])
    assert "held_out/loss" in keys and not any(key.startswith("train/") for key in keys)
    assert logged == ["5", "epoch", "train/loss"]
    assert run[0].status()["refused"] == 0


@pytest.mark.slow
def test_an_interrupted_training_leaves_the_run_open(run: tuple[Any, Any], tmp_path: Path) -> None:
    """The next one goes on in it."""

    class Stops(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

    callback = LogclientCallback()
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, callback, Stops()).train()
    trainer(tmp_path, callback, logging_steps=4).train()
    assert rows(run[1]) == [(4, TRAIN), (8, TRAIN)] and not run[0].status()["notices"]


@pytest.mark.slow
def test_by_name(run: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`report_to="logclient"` works after `register()`; importing the module registers nothing."""
    table: Any = integrations.INTEGRATION_TO_CALLBACK
    monkeypatch.delitem(table, "logclient", raising=False)
    with pytest.raises(ValueError, match="logclient is not supported"):
        trainer(tmp_path, report_to="logclient")
    monkeypatch.setitem(table, "logclient", None)  # so that it is taken away afterwards
    register()
    trainer(tmp_path, report_to=["logclient"], logging_steps=8).train()
    assert rows(run[1]) == [(8, TRAIN)]


@pytest.mark.slow
def test_bad_settings_are_said_at_once(run_dir: Path, tmp_path: Path) -> None:
    """Where the training begins."""
    with pytest.raises(BadArgument):
        trainer(tmp_path, LogclientCallback(mode="onlien")).train()


# ---- failures of ours ---------------------------------------------------------------------------------------------


def test_hooks_are_found() -> None:
    """All that we do something in."""
    assert set(HOOKS) == {"on_train_begin", "on_step_end", "on_log", "on_predict", "on_save"}


class Witness(TrainerCallback):
    """A callback of the user's."""

    seen = 0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seen += 1


@pytest.mark.slow
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("first", [True, False])
def test_a_failing_hook_ends_no_training(
    run: tuple[Any, Any], tmp_path: Path, hook: str, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on, the model is saved, other callbacks are called; said once, counted each time (R2-38)."""
    ours: dict[str, Any] = {"__name__": "logclient.integrations.transformers"}
    exec(f"def {hook}(self, *args, **kwargs):\n    raise RuntimeError('ours')", ours)
    decorated = guard.opening if hook == "on_train_begin" else guard.hook
    monkeypatch.setattr(LogclientCallback, hook, decorated(ours[hook]))
    witness = Witness()
    callbacks = [LogclientCallback(), witness] if first else [witness, LogclientCallback()]
    made = trainer(tmp_path, *callbacks, save_strategy="epoch", eval_strategy="epoch")
    made.train()
    made.predict(pieces(100, 8))
    assert witness.seen == 8 and (tmp_path / "out" / "checkpoint-8" / "model.safetensors").exists()
    status = run[0].status()
    (notice,) = status["notices"]
    assert f"LogclientCallback.{hook} failed" in notice and status["refused"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("state", [{}, {"_tie": None}, {"_tie": 5}])
def test_a_broken_callback_ends_no_training(
    run: tuple[Any, Any], tmp_path: Path, state: dict[str, Any]
) -> None:
    """Whatever of its state is missing or nonsense."""
    callback = LogclientCallback()
    callback.__dict__.clear()
    callback.__dict__.update(state)
    trainer(tmp_path, callback, save_strategy="epoch").train()
    assert (tmp_path / "out" / "checkpoint-8").is_dir() and run[0].status()["refused"] >= 5


def test_nonsense_from_the_trainer(run: tuple[Any, Any], tmp_path: Path) -> None:
    """`None` and empty logs leave no row."""
    callback = LogclientCallback()
    made = trainer(tmp_path, callback)
    for logs in (None, {}, {"epoch": 1.0}):
        callback.on_log(made.args, made.state, made.control, logs=logs)
    assert rows(run[1]) == [] and run[0].status()["refused"] == 0


@pytest.mark.slow
def test_switched_off_no_line_of_ours_runs(run_dir: Path, tmp_path: Path) -> None:
    """mode="disabled": but for the look which run it is."""
    ran: set[str] = set()
    made = trainer(tmp_path, LogclientCallback(mode="disabled"), save_strategy="epoch")

    def trace(frame: Any, event: str, _: Any) -> None:
        if frame.f_code.co_filename.endswith("integrations/transformers.py"):
            ran.add(frame.f_code.co_name)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        made.train()
    finally:
        sys.settrace(before)
    assert ran == {"on_train_begin"} and not list(run_dir.glob("*"))


@pytest.mark.slow
def test_a_copy_takes_along_no_run(run: tuple[Any, Any], tmp_path: Path) -> None:
    """Pickled or deep: nothing but the address of its run; here it is inert."""
    callback = LogclientCallback()
    trainer(tmp_path, callback, logging_strategy="no").train()
    for made in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
        assert set(vars(made)) == {"_tie"}
        trainer(tmp_path, made).train()
        assert type(made._tie.run) is NullRun
    assert rows(run[1]) == [] and run[0].status()["refused"] == 0

"""The Lightning logger, in real trainings: one process here, several in `test_lightning_ranks.py`."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner.tuning import Tuner

import logclient
from logclient import NullRun
from logclient.integrations import guard
from logclient.integrations.lightning import LogclientLogger
from tests.integrations.lit import Digits, checkpoint, trainer
from tests.lanes import opened

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("lightning")]
HOOKS = [name for name, method in vars(LogclientLogger).items() if hasattr(method, "__wrapped__")]
HOOKS.remove("watch")  # the user's call, not Lightning's


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints go to the working directory, unless a place for them is given."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(run_dir: Path) -> Iterator[tuple[Any, Any]]:
    """A run and its lanes."""
    with opened("digits") as (made, file):
        yield made, file


def steps_of(file: Any, key: str) -> list[int]:
    return [record.step for record in records(file) if key in record.values]


def records(file: Any) -> list[Any]:
    """All so far; lanes give each record once."""
    found: list[Any] = file.__dict__.setdefault("found", [])
    found += file.read()
    return found


def test_fit_test_and_log_by_hand_are_one_run(run_dir: Path, tmp_path: Path) -> None:
    """All lands in the run that the logger began, read back from disk; the end of a phase ends nothing (C1-4)."""
    logger = LogclientLogger(project="digits", name="one", quiet=True)
    run = logger.experiment
    try:
        assert run.project == logger.name == "digits" and run.id == logger.version
        made = trainer(tmp_path, logger, callbacks=[checkpoint(tmp_path)])
        made.fit(Digits(lr=0.2))
        (tested,) = made.test(verbose=False)
        logclient.log(100, {"by_hand": 1})
        logger.log_metrics({"by_logger": 2.0})
        assert logclient._run is run and run.flush(60)
        status = run.status()
        assert status["refused"] == status["left_out"] == 0, status["notices"]
    finally:
        logclient.finish(60)
    logger.log_metrics({"late": 1})
    assert run.status()["refused"] == 1
    read = logclient.read(run_dir)["one"]
    assert read.series("loss").step.tolist() == list(range(16))
    assert read.series("val_loss").step.tolist() == [7, 15]
    assert read.series("test_loss").value.tolist() == [pytest.approx(tested["test_loss"])]
    assert read.series("by_hand").step.tolist() == [100]
    assert read.series("by_logger").step.tolist() == [17]  # test logs at 16
    assert set(read.keys()) == {"loss", "val_loss", "test_loss", "epoch", "by_hand", "by_logger"}
    assert read.config["lr"] == 0.2 and read.config["width"] == 10
    kept = read.summary["checkpoint"]
    assert Path(kept["best"]).exists() and Path(kept["last"]).name == "last.ckpt"
    assert kept["monitor"] == "val_loss" and kept["step"] == 16 and kept["kept"] == [kept["best"]]
    assert kept["score"] == pytest.approx(read.series("val_loss").value.min())


@pytest.mark.slow
def test_nothing_is_logged_where_there_is_nothing_to_log(run: tuple[Any, Any], tmp_path: Path) -> None:
    """Epoch-only metrics: a record an epoch (C2-4); the sanity check leaves none, not of single steps either."""
    trainer(tmp_path, LogclientLogger(), log_every_n_steps=1000).fit(Digits(each_val_step=True))
    found = [(record.step, sorted(record.values)) for record in records(run[1])]
    expected = []
    for step in (7, 15):
        expected.append((step, ["epoch", "val_loss_epoch"]))
    assert [one for one in found if "epoch" in one[1]] == expected
    single = [step for step, keys in found if keys == ["val_loss_step"]]
    assert len(single) == 4 and len(found) == 6  # two validations of two batches


def test_accumulation_counts_optimizer_steps(run: tuple[Any, Any], tmp_path: Path) -> None:
    """8 batches, 4 at a time: 2 steps an epoch (R2-36)."""
    trainer(tmp_path, LogclientLogger(), accumulate_grad_batches=4).fit(Digits())
    assert steps_of(run[1], "loss") == [0, 1, 2, 3] and steps_of(run[1], "val_loss") == [1, 3]


def test_validation_alone_is_no_training(run: tuple[Any, Any], tmp_path: Path) -> None:
    """It leaves its own keys and no other."""
    trainer(tmp_path, LogclientLogger()).validate(Digits(), verbose=False)
    assert [sorted(record.values) for record in records(run[1])] == [["epoch", "val_loss"]]


@pytest.mark.slow
def test_lr_find_is_no_training(run: tuple[Any, Any], tmp_path: Path) -> None:
    """Nor does it end or change the run."""
    made = trainer(tmp_path, LogclientLogger())
    Tuner(made).lr_find(Digits(), num_training=5)
    assert records(run[1]) == []
    made.fit(Digits())
    assert steps_of(run[1], "loss") == list(range(16))


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_fit_leaves_the_run_open(
    run: tuple[Any, Any], tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one goes on in it, and its steps behind those of the first."""

    class Stops(Digits):
        def training_step(self, batch: Any, index: int) -> Any:
            if self.global_step == 3:
                raise error("enough")
            return super().training_step(batch, index)

    monkeypatch.setattr("signal.signal", lambda *_: None)  # Lightning ignores Ctrl-C from then on
    logger = LogclientLogger()
    with pytest.raises(SystemExit if error is KeyboardInterrupt else error):
        trainer(tmp_path, logger).fit(Stops())
    assert steps_of(run[1], "loss") == [0, 1, 2]
    trainer(tmp_path, logger).fit(Digits())
    assert steps_of(run[1], "loss") == list(range(3 + 16)) and not run[0].status()["notices"]
    assert [fit["first_step"] for fit in run[0].config["fits"]] == [0, 3]


@pytest.mark.slow
def test_trainings_in_a_run_count_on(run: tuple[Any, Any], tmp_path: Path) -> None:
    """By one logger or several, also of a trainer that goes on; what is tested between lands at the newest step."""
    logger = LogclientLogger()
    first = trainer(tmp_path, logger)
    first.fit(Digits())
    trainer(tmp_path, logger).test(Digits(), verbose=False)
    assert steps_of(run[1], "test_loss") == [16]
    trainer(tmp_path, LogclientLogger(), max_epochs=1, log_every_n_steps=3).fit(Digits())
    assert steps_of(run[1], "loss") == [*range(16), 18, 21]
    trainer(tmp_path, logger, max_epochs=1).fit(Digits())
    assert steps_of(run[1], "loss")[18:] == list(range(24, 32))
    first.fit_loop.max_epochs = 3
    first.fit(Digits())  # its own steps go on
    assert steps_of(run[1], "loss")[26:] == list(range(16, 24))
    assert [fit["first_step"] for fit in run[0].config["fits"]] == [0, 16, 24, 16]


@pytest.mark.slow
def test_a_training_that_is_resumed_keeps_its_steps(run: tuple[Any, Any], tmp_path: Path) -> None:
    """From a checkpoint, after an error in the program, by the same logger."""

    class Stops(Digits):
        def on_train_epoch_start(self) -> None:
            if self.current_epoch == 1:
                raise ValueError("enough")

    logger = LogclientLogger()
    logger.log_metrics({"by_hand": 1}, step=7)
    with pytest.raises(ValueError, match="enough"):
        trainer(tmp_path, logger, callbacks=[checkpoint(tmp_path)]).fit(Stops())
    assert steps_of(run[1], "loss") == list(range(8)) and steps_of(run[1], "by_hand") == [7]
    trainer(tmp_path, logger).fit(Digits(), ckpt_path=str(tmp_path / "kept" / "last.ckpt"))
    assert steps_of(run[1], "loss") == list(range(16))
    trainer(tmp_path, logger, max_epochs=1).fit(Digits())
    assert steps_of(run[1], "loss") == list(range(24))


@pytest.mark.slow
def test_loggers_in_a_loop_are_runs(run_dir: Path, tmp_path: Path) -> None:
    """Without names: each has its own steps and configuration."""
    for lr in (0.1, 0.2, 0.3):
        logger = LogclientLogger(project="loop", quiet=True)
        trainer(tmp_path, logger, max_epochs=1).fit(Digits(lr=lr))
        logger.experiment.finish(60)
    found = sorted(logclient.read(run_dir), key=lambda run: run.config["lr"])
    assert [run.config["lr"] for run in found] == [0.1, 0.2, 0.3]
    for each in found:
        assert each.series("loss").step.tolist() == list(range(8)) and len(each.config["fits"]) == 1


@pytest.mark.slow
def test_one_logger_for_the_trials_of_a_search(run_dir: Path, tmp_path: Path) -> None:
    """Each trial has a run, with its hyper-parameters and folder."""
    optuna = pytest.importorskip("optuna", reason="needs Optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logger, folders = LogclientLogger(project="search", name="mlp", quiet=True), []

    def objective(trial: Any) -> float:
        made: Any = trainer(tmp_path, logger, max_epochs=1)
        made.fit(Digits(lr=trial.suggest_float("lr", 0.1, 0.2)))
        folders.append(made.checkpoint_callbacks[0].best_model_path)
        return float(made.callback_metrics["val_loss"])

    study = optuna.create_study(study_name="s")
    study.optimize(objective, n_trials=2)
    logclient.finish(60)
    found = {run.name: run for run in logclient.read(run_dir)}
    for trial in study.trials:
        run = found[f"mlp-{trial.number}"]
        assert run.config["lr"] == trial.params["lr"] == run.config["trial"]["params"]["lr"]
        assert run.about["group"] == "s" and run.series("loss").step.tolist() == list(range(8))
        assert f"/lightning_logs/{run.id}/" in folders[trial.number]


def test_keys_steps_and_hyper_parameters(run: tuple[Any, Any]) -> None:
    """`prefix`; metrics without a step follow the last one; a Namespace; metrics that come with hyper-parameters."""
    logger = LogclientLogger(prefix="run1/")
    logger.log_metrics({"a": 1}, step=5)
    logger.log_metrics({"a": 2})
    logger.log_metrics({}, step=9)
    logger.log_hyperparams(Namespace(lr=0.5), {"best": 0.25})
    assert [(record.step, record.values) for record in records(run[1])] == [
        (5, {"run1/a": 1}),
        (6, {"run1/a": 2}),
    ]
    assert run[0].config["lr"] == 0.5 and run[0].summary["best"] == 0.25


@pytest.mark.slow
def test_watch(run: tuple[Any, Any], tmp_path: Path) -> None:
    """Gradients of the model go to the logger's run."""

    class Watched(Digits):
        def on_fit_start(self) -> None:
            logger: Any = self.logger
            logger.watch(self.net, every=4)

    trainer(tmp_path, LogclientLogger(run[0])).fit(Watched())
    logclient.unwatch()
    assert steps_of(run[1], "grad/norm") == [0, 4, 8, 12] and not run[0].status()["notices"]


@pytest.mark.slow
def test_beside_another_logger(run: tuple[Any, Any], tmp_path: Path) -> None:
    """Whichever comes first; each gets all."""
    for order in (1, -1):
        csv = CSVLogger(tmp_path, version=order)
        made = trainer(tmp_path, [LogclientLogger(), csv][::order], max_epochs=1)
        made.fit(Digits())
        assert len((Path(csv.log_dir) / "metrics.csv").read_text().splitlines()) == 10
    assert steps_of(run[1], "loss") == list(range(16))


# ---- failures of ours ---------------------------------------------------------------------------------------------


def test_hooks_are_found() -> None:
    """All that Lightning calls and we do something in."""
    assert {*HOOKS, "watch"} == {
        *(
            "_begin",
            "_find_folder",
            "finalize",
            "log_graph",
            "_found",
            "watch",
            "log_metrics",
            "log_hyperparams",
            "after_save_checkpoint",
        )
    }


class Witness(L.Callback):
    """A callback of the user's."""

    def __init__(self) -> None:
        self.seen = 0

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen += 1


@pytest.mark.slow
@pytest.mark.parametrize("hook", HOOKS)
def test_a_failing_hook_ends_no_training(
    run: tuple[Any, Any], tmp_path: Path, hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on, checkpoints are kept, later callbacks are called; said once, counted each time (R2-38)."""
    ours: dict[str, Any] = {"__name__": "logclient.integrations.lightning"}
    exec(f"def {hook}(self, *args, **kwargs):\n    raise RuntimeError('ours')", ours)
    decorated = guard.opening if hook == "_begin" else guard.hook
    monkeypatch.setattr(LogclientLogger, hook, decorated(ours[hook]))
    witness = Witness()
    made = trainer(tmp_path, LogclientLogger(), callbacks=[witness, checkpoint(tmp_path)])
    made.fit(Digits())
    assert made.state.finished and witness.seen == 16 and (tmp_path / "kept" / "last.ckpt").exists()
    status = run[0].status()
    (notice,) = status["notices"]
    assert f"LogclientLogger.{hook} failed" in notice and status["refused"] >= 1
    assert (steps_of(run[1], "loss") == list(range(16))) == (hook != "log_metrics")


@pytest.mark.slow
@pytest.mark.parametrize("state", [{}, {"_tie": None}, {"_tie": 5}])
def test_a_broken_logger_ends_no_training(
    run: tuple[Any, Any], tmp_path: Path, state: dict[str, Any]
) -> None:
    """Whatever of its state is missing or nonsense."""
    logger = LogclientLogger()
    logger.__dict__.clear()
    logger.__dict__.update(state)
    made = trainer(tmp_path, logger, callbacks=[checkpoint(tmp_path)])
    made.fit(Digits())
    assert made.state.finished and run[0].status()["refused"] > 16
    logger.log_metrics(None)  # type: ignore[arg-type]
    logger.log_hyperparams(None)  # type: ignore[arg-type]


@pytest.mark.slow
def test_switched_off_no_line_of_ours_runs(run_dir: Path, tmp_path: Path) -> None:
    """mode="disabled": but for what Lightning reads as attributes."""
    logger = LogclientLogger(mode="disabled")
    ran: set[str] = set()

    def trace(frame: Any, event: str, _: Any) -> None:
        if frame.f_code.co_filename.endswith("integrations/lightning.py"):
            ran.add(frame.f_code.co_name)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        trainer(tmp_path, logger, callbacks=[checkpoint(tmp_path)]).fit(Digits())
    finally:
        sys.settrace(before)
    assert ran <= {"experiment", "name", "version", "save_dir"}
    assert type(logger.experiment) is NullRun and not list(run_dir.glob("*"))


# ---- copies -------------------------------------------------------------------------------------------------------


def test_a_copy_takes_along_no_run(run: tuple[Any, Any], tmp_path: Path) -> None:
    """Pickled with a trainer, or deep: settings; here it is inert."""
    logger = LogclientLogger(prefix="p/", save_dir=tmp_path)
    for made in (pickle.loads(pickle.dumps(logger)), copy.deepcopy(logger)):
        assert set(vars(made)) == {"_all_ranks", "_folder", "_prefix", "_save_dir", "_tie", "_unnamed"}
        assert made.save_dir == str(tmp_path)
        made.log_metrics({"a": 1}, step=1)
        made.log_hyperparams({"lr": 1})
        assert type(made.experiment) is NullRun
    assert records(run[1]) == [] and run[0].status()["refused"] == 0 and not run[0].config


def test_methods_have_the_signatures_of_lightning() -> None:
    """Every parameter of theirs is one of ours."""
    from lightning.pytorch.loggers import Logger

    for name in ("log_metrics", "after_save_checkpoint"):
        theirs = inspect.signature(getattr(Logger, name)).parameters
        assert list(inspect.signature(getattr(LogclientLogger, name)).parameters) == list(theirs)

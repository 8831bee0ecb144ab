# ruff: noqa: E402 - where fastai is missing, the tests are skipped before anything imports it
"""fastai's callback: real trainings, what of them is logged, and that nothing of ours ends one."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logclient
from tests.lanes import Record, Script, by_pid, opened

learners = pytest.importorskip("tests.integrations.learners", reason="needs fastai and scikit-learn")

import torch
from fastai.basics import (
    Callback,
    CancelBatchException,
    CancelEpochException,
    CancelFitException,
    CancelTrainException,
    CancelValidException,
    FetchPredsCallback,
    TrainEvalCallback,
    ValueMetric,
    accuracy,
)
from fastai.callback.core import _events as EVENTS
from fastai.callback.schedule import LRFinder
from fastai.callback.tracker import EarlyStoppingCallback, SaveModelCallback, TerminateOnNaNCallback
from torch import nn

from logclient.integrations.fastai import LogclientCallback
from logclient.run import why_closed

BATCHES, Raise = learners.BATCHES, learners.Raise
learner, cancer_learner = learners.digits_learner, learners.cancer_learner
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:fastai"),
]
HOOKS = [name for name in EVENTS if name in vars(LogclientCallback)]


@pytest.fixture
def lanes(run_dir: Path) -> Iterator[tuple[Any, Callable[[], list[Record]]]]:
    """A current run, and what was logged to it since the last call."""
    with opened() as (run, file):
        yield run, file.read


def batches(records: list[Record]) -> list[Record]:
    return [record for record in records if "batch/loss" in record.values]


def epochs(records: list[Record], prefix: str = "epoch") -> list[Record]:
    return [record for record in records if any(key.startswith(f"{prefix}/") for key in record.values)]


# ---- what is logged ---------------------------------------------------------------------------------------


def test_a_training_is_read_back_from_disk(run_dir: Path, tmp_path: Path) -> None:
    """Each batch with loss and hyper-parameters, each epoch with the Recorder's values, the learner in the config."""
    learn = learner(tmp_path, LogclientCallback(project="digits", name="mlp", quiet=True))
    losses: list[float] = []

    class Watch(Callback):
        order = 100

        def after_batch(self) -> None:
            if self.training:
                losses.append(self.loss.item())

    learn.fit_one_cycle(2, 1e-2, cbs=Watch())
    run: Any = logclient._run
    assert run.status()["refused"] == run.status()["left_out"] == 0
    assert run.finish(100)
    stored = logclient.read(run_dir)["mlp"]
    loss = stored.series("batch/loss")
    assert list(loss.step) == list(range(1, 2 * BATCHES + 1)) and list(loss.value) == pytest.approx(losses)
    assert list(stored.series("batch/lr").value) == pytest.approx(learn.recorder.lrs)
    assert list(stored.series("batch/smooth_loss").value) == pytest.approx(
        [float(v) for v in learn.recorder.losses]
    )
    assert list(stored.series("epoch").value) == pytest.approx(
        [n / BATCHES for n in range(1, 2 * BATCHES + 1)]
    )
    for column, name in enumerate(("train_loss", "valid_loss", "accuracy")):
        series = stored.series(f"epoch/{name}")
        assert list(series.step) == [BATCHES, 2 * BATCHES]
        assert list(series.value) == pytest.approx([row[column] for row in learn.recorder.values])
    described, fits = stored.config["learner"], stored.config["fits"]
    assert described["model"] == "Sequential" and described["parameters"] == 64 * 16 + 16 + 160 + 10
    assert (
        described["batch_size"] == 64 and described["train_items"] == 320 and described["valid_items"] == 160
    )
    assert [fit["epochs"] for fit in fits] == [2] and "ParamScheduler" in fits[0]["callbacks"]


def test_fine_tune_is_two_trainings_in_one_run(lanes: Any, tmp_path: Path) -> None:
    """Steps and epochs go on; frozen groups have a learning rate each."""
    run, read = lanes
    learn = learner(
        tmp_path,
        LogclientCallback(),
        splitter=lambda model: [list(model[0].parameters()), list(model[2].parameters())],
    )
    learn.fine_tune(2, freeze_epochs=1)
    records = read()
    assert [record.step for record in batches(records)] == list(range(1, 3 * BATCHES + 1))
    assert [record.step for record in epochs(records)] == [5, 10, 15]
    assert batches(records)[-1].values["epoch"] == pytest.approx(3)
    assert {"batch/lr_0", "batch/lr_1", "batch/mom_0"} <= set(records[0].values)
    fits = run.config["fits"]
    assert [(fit["epochs"], fit["first_step"], fit["frozen_groups"]) for fit in fits] == [
        (1, 1, 1),
        (2, 6, 0),
    ]


def test_steps_count_within_a_run(lanes: Any, tmp_path: Path) -> None:
    """Callbacks and learners that follow each other in a run count on; in a new run they begin anew."""
    run, read = lanes
    learn, callback = learner(tmp_path, []), LogclientCallback()
    learn.fit(1, cbs=callback)
    learn.fit(1, cbs=LogclientCallback())
    with pytest.raises(KeyboardInterrupt):
        learn.fit(1, cbs=[LogclientCallback(), Raise("after_backward", KeyboardInterrupt(), at=3)])
    learner(tmp_path, LogclientCallback()).fit(1)
    records = read()
    assert [record.step for record in batches(records)] == list(range(1, 3 * BATCHES + 3))
    assert [record.step for record in epochs(records)] == [BATCHES, 2 * BATCHES, 3 * BATCHES + 2]
    assert [fit["first_step"] for fit in run.config["fits"]] == [1, 6, 11, 13]
    run.finish(0)
    with opened() as (_, file):
        learn.fit(1, cbs=callback)
        assert [record.step for record in batches(file.read())] == list(range(1, BATCHES + 1))


def test_an_order_before_the_recorder(lanes: Any, tmp_path: Path) -> None:
    """Is not taken: it would give each batch and epoch the values of the one before."""
    callback = LogclientCallback()
    callback.order = -100
    learner(tmp_path, callback).fit(2)
    records = lanes[1]()
    assert [r.step for r in batches(records)] == [*range(1, 2 * BATCHES + 1)]
    assert [r.step for r in epochs(records)] == [BATCHES, 2 * BATCHES]
    assert lanes[0].status()["refused"] == 0


@pytest.mark.parametrize("order", [0, 99])
def test_two_callbacks_log_a_training_once(lanes: Any, tmp_path: Path, order: int) -> None:
    """A cell that adds one is run again: one of them logs, validations, too; the other one, where that is removed."""
    run, read = lanes
    learn = learner(tmp_path, first := LogclientCallback())
    learn.add_cb(second := LogclientCallback())
    first.order = order
    learn.fit(1)
    learn.fit(1)
    learn.validate()
    records = read()
    assert [record.step for record in batches(records)] == list(range(1, 2 * BATCHES + 1))
    assert len(epochs(records)) == 2 and len(epochs(records, "validate")) == 1
    assert len(run.config["fits"]) == 2
    assert any("twice" in line for line in run.status()["notices"])
    for gone in (first, second):
        learn.remove_cb(gone)
        learn.fit(1)
        assert len(batches(read())) == (BATCHES if gone is first else 0)


def test_what_is_no_training_logs_nothing_and_starts_no_run(run_dir: Path, tmp_path: Path) -> None:
    """lr_find, validation and predictions before any training."""
    learn = learner(tmp_path, LogclientCallback())
    learn.lr_find(show_plot=False, num_it=7)
    learn.validate()
    learn.get_preds()
    learn.fit(1, cbs=LRFinder(num_it=6))
    assert logclient._run is None or why_closed(logclient._run)
    assert learn.logclient._tie.run is None


def test_trials_between_trainings(lanes: Any, tmp_path: Path) -> None:
    """They add no batch, no epoch and no step; an explicit validation is kept apart."""
    run, read = lanes
    learn = learner(tmp_path, LogclientCallback())
    learn.fit(1)
    read()
    learn.lr_find(show_plot=False, num_it=7)
    learn.get_preds()
    assert not read()
    loss, correct = learn.validate()
    (record,) = read()
    assert record.step == BATCHES
    assert record.values == {
        "validate/valid_loss": pytest.approx(loss),
        "validate/accuracy": pytest.approx(correct),
    }
    learn.fit(1)
    records = read()
    assert [record.step for record in batches(records)] == list(range(BATCHES + 1, 2 * BATCHES + 1))
    assert len(epochs(records)) == 1 and len(run.config["fits"]) == 2
    run.finish(0)
    learn.validate()
    assert run.status()["refused"] == 0


@pytest.mark.parametrize("order", [-20, 49, 52, 100])
def test_cancelled_trainings(lanes: Any, tmp_path: Path, order: int) -> None:
    """By callbacks before and after us: what has a loss is logged with its step, once, and only that."""
    _, read = lanes
    learn = learner(tmp_path, LogclientCallback())
    learn.fit(2, cbs=Raise("before_batch", CancelBatchException("stop"), 3, order))
    records = read()
    assert [record.step for record in batches(records)] == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    learn.fit(2, cbs=Raise("after_batch", CancelFitException("stop"), 3, order))
    records = read()
    assert [record.step for record in batches(records)] == [11, 12, 13] and not epochs(records)
    learn.fit(2, cbs=Raise("after_batch", CancelTrainException("stop"), 3, order))
    records = read()
    assert [record.step for record in epochs(records)][-1:] == [batches(records)[-1].step]
    first = epochs(records)[0].values
    assert "epoch/train_loss" not in first and {"epoch/valid_loss", "epoch/accuracy"} <= set(first)


def test_cancelled_epochs_and_validations(lanes: Any, tmp_path: Path) -> None:
    """The values that are there, under their own names."""
    _, read = lanes
    learn = learner(tmp_path, LogclientCallback())
    learn.fit(1, cbs=Raise("before_validate", CancelValidException("stop")))
    (record,) = epochs(read())
    assert set(record.values) == {"epoch/train_loss"}
    learn.fit(2, cbs=Raise("before_epoch", CancelEpochException("stop"), 1, -20))
    assert len(epochs(read())) == 1
    learn.fit(1, cbs=Raise("after_epoch", CancelFitException("stop"), 1, 50))
    assert len(epochs(read())) == 1


def test_a_callback_that_validates_and_predicts_in_a_training(lanes: Any, tmp_path: Path) -> None:
    """Before us and after us: the training goes on being logged, and what others do in it is no training."""
    _, read = lanes

    class Ask(Callback):
        def __init__(self, order: int) -> None:
            self.order, self.asks = order, False

        def after_epoch(self) -> None:
            if not self.asks:
                self.asks = True
                self.learn.get_preds()
                self.learn.validate()
                self.asks = False

    learn = learner(tmp_path, LogclientCallback())
    for number, callback in enumerate((Ask(100), FetchPredsCallback())):
        learn.fit(2, cbs=callback)
        records = read()
        assert [record.step for record in batches(records)] == list(range(10 * number + 1, 10 * number + 11))
        assert [record.step for record in epochs(records)] == [10 * number + 5, 10 * number + 10]
        assert all(len(record.values) == 3 for record in epochs(records))
    learn.fit(2, cbs=Ask(20))
    records = read()
    assert [record.step for record in batches(records)] == list(range(21, 31))
    assert not epochs(records)  # the Recorder itself began anew, and has none of the epoch's values


def test_early_stopping_nan_and_interrupts(lanes: Any, tmp_path: Path) -> None:
    """What a training that ended early has is there; the next one goes on behind it."""
    _, read = lanes
    learn = learner(tmp_path, LogclientCallback())
    learn.fit(9, lr=0.0, cbs=EarlyStoppingCallback(patience=2))
    assert [record.step for record in epochs(read())] == [5, 10, 15]
    with pytest.raises(KeyboardInterrupt):
        learn.fit(2, cbs=Raise("after_batch", KeyboardInterrupt(), 2, 100))
    assert [record.step for record in batches(read())] == [16, 17]
    learn.validate()
    assert all(key.startswith("validate/") for record in read() for key in record.values)
    learn.model[0].weight.data.fill_(float("nan"))
    learn.fit(2, cbs=TerminateOnNaNCallback())
    (record,) = read()
    assert record.step == 18 and record.values["batch/loss"] != record.values["batch/loss"]


def test_a_training_that_is_resumed_in_a_new_process(lanes: Any, tmp_path: Path) -> None:
    """fit(start_epoch=...): steps and epochs count those that were skipped."""
    _, read = lanes
    learner(tmp_path, LogclientCallback()).fit(4, start_epoch=3)
    records = read()
    assert [record.step for record in batches(records)] == [16, 17, 18, 19, 20]
    assert batches(records)[-1].values["epoch"] == pytest.approx(4) and len(epochs(records)) == 1


def test_without_recorder_with_a_loss_per_item_and_metrics_of_one_name(lanes: Any, tmp_path: Path) -> None:
    """The batches are there; a loss that is not reduced gives its mean; a second metric of a name gets a number."""
    run, read = lanes
    learn = learner(
        tmp_path, LogclientCallback(), default_cbs=False, loss_func=nn.CrossEntropyLoss(reduction="none")
    )
    learn.add_cbs([TrainEvalCallback(), Raise("before_backward", CancelBatchException("x"), 99)])
    learn._backward = lambda: learn.loss_grad.mean().backward()
    learn.fit(1)
    records = read()
    assert len(batches(records)) == BATCHES and not epochs(records)
    assert "batch/smooth_loss" not in records[0].values
    learn = learner(
        tmp_path, LogclientCallback(), metrics=[accuracy, accuracy, ValueMetric(lambda: None, "nothing")]
    )
    learn.fit(1)
    assert {"epoch/accuracy", "epoch/accuracy_2"} <= set(epochs(read())[0].values)
    assert run.status()["left_out"] == 0


# ---- model file and predictions ---------------------------------------------------------------------------


def test_model_file(lanes: Any, tmp_path: Path) -> None:
    """Saved as `Learner.save` does, or by the SaveModelCallback that is there, and noted."""
    run, _ = lanes
    learn = learner(tmp_path, LogclientCallback(log_model=True))
    learn.fit(1)
    noted = run.summary["model"]
    path = Path(noted["file"])
    assert path.parent == tmp_path / "models" and path.stem == f"logclient-{run.id}"
    assert noted["step"] == BATCHES and noted["bytes"] == path.stat().st_size
    learner(tmp_path, None).load(path.stem)
    learner(tmp_path, LogclientCallback(log_model="mine")).fit(1)
    assert run.summary["model"]["file"] == str(tmp_path / "models" / "mine.pth")
    for arguments in ({}, {"at_end": True}):
        learner(
            tmp_path, [LogclientCallback(log_model=True), SaveModelCallback(fname="best", **arguments)]
        ).fit(1)
        assert run.summary["model"]["file"] == str(tmp_path / "models" / "best.pth")
    assert sorted(file.stem for file in (tmp_path / "models").iterdir()) == ["best", path.stem, "mine"]


def test_predictions(lanes: Any, tmp_path: Path) -> None:
    """Targets and predictions of the first validation items."""
    run, _ = lanes
    learn = learner(tmp_path, LogclientCallback(log_preds=70))
    learn.fit(1)
    table = run.summary["predictions"]
    predictions, targets = learn.get_preds()
    assert table["step"] == BATCHES and len(table["rows"]) == 70
    for item, target, prediction, activation in table["rows"]:
        assert target == targets[item] and prediction == predictions[item].argmax()
        assert activation == pytest.approx(float(predictions[item].max()), rel=1e-4)


def test_the_training_is_the_same_with_and_without(lanes: Any, tmp_path: Path) -> None:
    """No random number is taken, whatever is asked for."""
    weights = []
    for cbs in (None, LogclientCallback(log_preds=True, log_model="x")):
        learn = learner(tmp_path, cbs)
        learn.dls.train.rng.seed(5)
        torch.manual_seed(7)
        learn.fit(1)
        learn.fit(1)
        weights.append(torch.cat([p.flatten() for p in learn.model.parameters()]))
    assert torch.equal(*weights)


# ---- failures ---------------------------------------------------------------------------------------------


class Spoil(Callback):
    """Takes a part of our callback away right before one of its events, and puts it back right behind."""

    def __init__(self, event: str, part: str) -> None:
        self.part, self.kept, self.order = part, None, LogclientCallback.order - 0.5
        setattr(self, event, self.take)

    def take(self) -> None:
        callback = self.learn.logclient
        if self.part in vars(callback):
            self.kept = vars(callback).pop(self.part)


class Mend(Callback):
    def __init__(self, spoil: Spoil, event: str) -> None:
        self.spoil_, self.order = spoil, LogclientCallback.order + 0.5
        setattr(self, event, self.put_back)

    def put_back(self) -> None:
        if self.spoil_.kept is not None:
            vars(self.learn.logclient)[self.spoil_.part] = self.spoil_.kept


@pytest.mark.parametrize("part", ["_tie", "_progress", "learn"])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_failing_hook_ends_no_training(lanes: Any, tmp_path: Path, hook: str, part: str) -> None:
    """Case R2-38: the training, later callbacks and the saved model are as they would be; it is said and counted."""
    run, _ = lanes
    seen: list[str] = []

    class Later(Callback):
        order = 200

        def after_epoch(self) -> None:
            seen.append("epoch")

        def after_fit(self) -> None:
            self.learn.save("later")
            seen.append("fit")

    learn = learner(tmp_path, LogclientCallback(log_preds=True, log_model=True))
    spoil = Spoil(hook, part)
    learn.fit(2, cbs=[spoil, Mend(spoil, hook), Later()])
    assert seen == ["epoch", "epoch", "fit"] and (tmp_path / "models" / "later.pth").exists()
    assert len(learn.recorder.values) == 2
    if part == "_progress":
        status = run.status()
        assert status["refused"] >= 1
        assert any(f"LogclientCallback.{hook} failed" in line for line in status["notices"])


def test_switched_off(run_dir: Path, tmp_path: Path) -> None:
    """mode="disabled": no line of a hook runs, no file is saved; fastai's own switch works, too."""
    learn = learner(tmp_path, LogclientCallback(mode="disabled", log_model=True, log_preds=True))
    learn.fit(1)
    assert not run_dir.exists() and not (tmp_path / "models").exists()
    assert learn.logclient._progress.counts.step == 0
    with opened() as (_, file):
        learn = learner(tmp_path, LogclientCallback())
        learn.logclient.run = False
        learn.fit(1)
        assert not file.read()
        learn.fit(1)  # fastai switches callbacks on again behind each training
        assert len(batches(file.read())) == BATCHES


# ---- copies -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_exported_learner_is_inert(lanes: Any, tmp_path: Path) -> None:
    """It predicts where logclient is not even installed; the learner that was exported logs on."""
    run, read = lanes
    learn = cancer_learner(tmp_path)
    learn.add_cb(LogclientCallback(log_preds=8))
    learn.fit(1)
    rows = run.summary["predictions"]["rows"]
    assert len(rows) == 8 and {row[1] for row in rows} | {row[2] for row in rows} <= {"malignant", "benign"}
    learn.export("export.pkl")
    read()
    learn.fit(1)
    assert len(batches(read())) == 3
    source = """
    import warnings
    warnings.simplefilter("ignore")
    for name in [name for name in sys.modules if name.startswith("logclient")]:
        del sys.modules[name]
    sys.modules["logclient"] = None
    from fastai.tabular.all import load_learner
    learn = load_learner(sys.argv[1])
    import pandas
    row, category, chances = learn.predict(pandas.Series(json.loads(sys.argv[2])))
    print(json.dumps([int(category), [type(cb).__name__ for cb in learn.cbs]]))
    """
    item = learn.dls.valid_ds.items.iloc[0]
    numbers = json.dumps({name: float(item[name]) for name in learn.dls.cont_names})
    category, names = Script(tmp_path, source, tmp_path / "export.pkl", numbers).result(timeout_s=500)
    assert category in (0, 1) and "Callback" in names and "LogclientCallback" not in names


def test_a_copied_learner_is_inert(lanes: Any, tmp_path: Path) -> None:
    """Pickled and deep copies train, validate and predict, and log nothing."""
    _, read = lanes
    learn = learner(tmp_path, LogclientCallback())
    learn.fit(1)
    read()
    for made in (copy.deepcopy(learn), pickle.loads(pickle.dumps(learn))):
        made.fit(1)
        made.get_preds()
        assert not read()
    learn.fit(1)
    assert len(batches(read())) == BATCHES


SPAWN = """
import multiprocessing, torch
from pathlib import Path
from tests.integrations.learners import digits_learner as learner
from logclient.integrations.fastai import LogclientCallback

def train(learn, callback):
    torch.set_num_threads(1)
    learn.fit(1)
    fresh = learner(Path(sys.argv[2]), callback)
    fresh.fit(1)

if __name__ == "__main__":
    torch.set_num_threads(1)
    run = logclient.init("children")
    learn = learner(Path(sys.argv[2]), LogclientCallback(run))
    learn.fit(1)
    context = multiprocessing.get_context(sys.argv[1])
    child = context.Process(target=train, args=(learn, LogclientCallback(run)))
    child.start()
    child.join()
    print(json.dumps([os.getpid(), child.pid, child.exitcode]))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_learner_in_a_child_logs_to_the_run(run_dir: Path, tmp_path: Path, method: str) -> None:
    """Handed over with the learner, or alone; cases R2-34."""
    parent, child, code = Script(tmp_path, SPAWN, method, tmp_path).result(timeout_s=500)
    assert code == 0
    found = by_pid()
    assert len(batches(found[parent][1])) == BATCHES
    assert len(batches(found[child][1])) == 2 * BATCHES


DISTRIBUTED = """
import torch
from torch.nn.parallel import DistributedDataParallel
from pathlib import Path
from tests.integrations.learners import digits_learner as learner
from logclient.integrations.fastai import LogclientCallback

def train(folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    learn = learner(Path(folder), LogclientCallback(log_model=True, log_preds=True))
    learn.model = DistributedDataParallel(learn.model)
    learn.fit(2)
    torch.distributed.destroy_process_group()
    return os.getpid()

run = logclient.init("ranks")
pids = logclient.launch(train, (sys.argv[1],), nprocs=2, start_method="fork", timeout_s=400)
print(json.dumps([os.getpid(), pids]))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_rank_logs(run_dir: Path, tmp_path: Path) -> None:
    """Two processes over gloo: one run, records of both ranks; the first one saves and describes; nobody waits."""
    parent, pids = Script(tmp_path, DISTRIBUTED, tmp_path).result(timeout_s=500)
    found = by_pid()
    for rank, pid in enumerate(pids):
        file, records = found[pid]
        assert {record.rank for record in records} == {rank}
        assert len(batches(records)) == 2 * BATCHES and len(epochs(records)) == 2
        assert (file.document("config") or {}).get("learner") is None or rank == 0
    assert len(list((tmp_path / "models").iterdir())) == 1
    assert parent not in pids

# ruff: noqa: E402 - where Keras or its backend is missing, the tests are skipped before anything imports it
"""Keras 3 on torch: real trainings, what of them is logged, and that nothing of ours ends or slows one."""

from __future__ import annotations

import copy
import os
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import logclient
from tests.lanes import Record, Script, by_pid, opened, wait_until

os.environ.setdefault("KERAS_BACKEND", "torch")  # read when Keras is imported
np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch", reason="needs torch")
datasets = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    keras = pytest.importorskip("keras", reason="needs Keras")

from logclient.integrations import keras_steps
from logclient.integrations.keras import LogclientCallback

BATCHES = 5  # of one epoch
HOOKS = [name for name in vars(LogclientCallback) if name.startswith("on_")]
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),  # of Keras on torch
]


@pytest.fixture
def lanes(run_dir: Path) -> Iterator[tuple[Any, Callable[[], list[Record]]]]:
    """A current run, and what was logged to it since the last call."""
    with opened() as (run, file):
        yield run, lambda: sorted(file.read(), key=lambda record: record.order)


def digits() -> tuple[Any, Any]:
    x, y = datasets.load_digits(return_X_y=True)
    return (x[:480] / 16).astype("float32"), y[:480]


def classifier(**arguments: Any) -> Any:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], **arguments)
    return model


def fit(model: Any, callbacks: Any, epochs: int = 1, **arguments: Any) -> Any:
    x, y = digits()
    given = {"validation_data": (x[320:], y[320:]), "batch_size": 64, "verbose": 0, "epochs": epochs}
    return model.fit(x[:320], y[:320], callbacks=callbacks, **{**given, **arguments})


def batches(records: list[Record]) -> list[Record]:
    return sorted((r for r in records if "batch/loss" in r.values), key=lambda record: record.step)


def epochs(records: list[Record]) -> list[Record]:
    return [record for record in records if any(key.startswith("epoch/") for key in record.values)]


def test_a_training_is_read_back_from_disk(run_dir: Path) -> None:
    """Batches and epochs under keys of their own; the model in the config."""
    history = fit(classifier(), [LogclientCallback(project="digits", name="mlp", quiet=True)], 2).history
    run: Any = logclient._run
    assert run.status()["refused"] == run.status()["left_out"] == 0
    assert run.finish(100)
    stored = logclient.read(run_dir)["mlp"]
    for key in ("loss", "accuracy"):
        series = stored.series(f"batch/{key}")
        assert sorted(series.step) == list(range(1, 2 * BATCHES + 1))
        last = [series.value[list(series.step).index(step)] for step in (BATCHES, 2 * BATCHES)]
        assert last == pytest.approx(
            history[key], rel=1e-5
        )  # a batch's value is the mean over its epoch so far
    for key in ("loss", "accuracy", "val_loss", "val_accuracy"):
        series = stored.series(f"epoch/{key}")
        assert list(series.step) == [BATCHES, 2 * BATCHES] and list(series.value) == pytest.approx(
            history[key]
        )
    assert list(stored.series("epoch/learning_rate").value) == pytest.approx([0.001, 0.001])
    described, fits = stored.config["model"], stored.config["fits"]
    assert described["class"] == "Sequential" and described["parameters"] == 64 * 16 + 16 + 160 + 10
    assert described["loss"] == "SparseCategoricalCrossentropy" and described["optimizer"]["beta_1"] == 0.9
    assert [(fit["epochs"], fit["batches"], fit["first_step"]) for fit in fits] == [(2, BATCHES, 1)]


def test_trainings_go_on_in_one_run(lanes: Any) -> None:
    """Steps and epochs count over all of them; evaluations are kept apart, predictions are nothing."""
    run, read = lanes
    model, callback = classifier(), LogclientCallback()
    fit(model, [callback])
    first = read()
    assert [record.step for record in epochs(first)] == [5]
    assert not any(key.startswith("validate/") for record in first for key in record.values)
    x, y = digits()
    loss, correct = model.evaluate(x, y, verbose=0, callbacks=[callback])
    (record,) = read()
    assert record.step == 5
    assert record.values == {
        "validate/loss": pytest.approx(loss),
        "validate/accuracy": pytest.approx(correct),
    }
    model.predict(x, verbose=0, callbacks=[callback])
    assert not read()
    fit(model, [callback], 2)
    records = read()
    assert [record.step for record in batches(records)] == list(range(6, 16))
    assert [record.values["epoch"] for record in batches(records)] == pytest.approx(
        [n / 5 for n in range(6, 16)]
    )
    assert [record.step for record in epochs(records)] == [10, 15] and len(run.config["fits"]) == 2


def test_steps_count_within_a_run(lanes: Any) -> None:
    """Callbacks of trainings that follow each other count on, behind an interrupted one, too; in a new run anew."""
    run, read = lanes
    interrupt = keras.callbacks.LambdaCallback(on_train_batch_end=partial(_interrupt, 2))
    callback = LogclientCallback()
    with pytest.raises(KeyboardInterrupt):
        fit(classifier(), [callback, interrupt])
    for made in (callback, LogclientCallback(), LogclientCallback()):
        fit(classifier(), [made])
    x, y = digits()
    classifier().evaluate(x, y, verbose=0, callbacks=[LogclientCallback()])
    records = read()
    first = len(batches(records)) - 3 * BATCHES
    assert [record.step for record in batches(records)] == list(range(1, first + 3 * BATCHES + 1))
    assert [record.step for record in epochs(records)] == [first + number * BATCHES for number in (1, 2, 3)]
    assert next(r.step for r in records if "validate/loss" in r.values) == first + 3 * BATCHES
    assert [fit["first_step"] for fit in run.config["fits"]][1:] == [
        first + number * BATCHES + 1 for number in range(3)
    ]
    run.finish(0)
    with opened() as (_, file):
        fit(classifier(), [callback])
        assert [record.step for record in batches(file.read())] == list(range(1, BATCHES + 1))


def _interrupt(at: int, batch: int, logs: Any) -> None:
    if batch == at:
        raise KeyboardInterrupt


def test_two_callbacks_log_a_training_once(lanes: Any) -> None:
    """The second one says so and logs nothing; it logs the next training, where it is alone."""
    run, read = lanes
    first, second = LogclientCallback(), LogclientCallback()
    fit(classifier(), [first, second])
    records = read()
    assert len(batches(records)) == BATCHES and len(epochs(records)) == 1
    assert any("twice" in line for line in run.status()["notices"])
    fit(classifier(), [second])
    assert len(batches(read())) == BATCHES


def test_resumed_several_steps_and_unknown_length(lanes: Any) -> None:
    """initial_epoch in a new process, steps_per_execution, and a generator that does not say how many."""
    _, read = lanes
    fit(classifier(), [LogclientCallback()], 4, initial_epoch=3)
    # the run's later ones count on
    assert [record.step for record in batches(read())] == [16, 17, 18, 19, 20]
    model = classifier()
    hooks = keras.callbacks.CallbackList([LogclientCallback()], model=model, steps=BATCHES, epochs=1)
    hooks.on_train_begin()  # as a backend calls them that has steps_per_execution=2; torch has not
    hooks.on_epoch_begin(0)
    for batch in (1, 3, 4):
        hooks.on_train_batch_end(batch, {"loss": torch.tensor(0.5)})
    hooks.on_epoch_end(0, {"loss": 0.5})
    hooks.on_train_end()
    records = read()
    assert [record.step for record in batches(records)] == [22, 24, 25] and epochs(records)[0].step == 25
    x, y = digits()

    def generate() -> Iterator[Any]:
        yield from ((x[at : at + 64], y[at : at + 64]) for at in range(0, 320, 64))

    model, callback = classifier(), LogclientCallback()
    for last in (30, 35):
        model.fit(generate(), callbacks=[callback], verbose=0)
        assert epochs(read())[-1].step == last


@pytest.mark.parametrize("known", [True, False])
def test_several_steps_in_a_call(lanes: Any, known: bool) -> None:
    """10 batches, 3 in a call: the last call has one. Epochs end at steps 10 and 20, known beforehand or not."""
    _, read = lanes
    model, callback = classifier(), LogclientCallback()
    model.steps_per_execution = 3
    model.train_function = lambda batches: {"loss": torch.tensor(float(len(batches)))}
    hooks = keras.callbacks.CallbackList([callback], model=model, steps=10 if known else None, epochs=2)
    hooks.on_train_begin()
    for epoch in range(2):
        hooks.on_epoch_begin(epoch)
        for last, count in (
            (2, 3),
            (5, 3),
            (8, 3),
            (11, 1),
        ):  # as a backend calls them that can do it; torch cannot
            hooks.on_train_batch_begin(last - 2)
            hooks.on_train_batch_end(last, model.train_function([()] * count))
        hooks.on_epoch_end(epoch, {"loss": 0.5})
    hooks.on_train_end()
    records = read()
    rows = batches(records)
    assert [record.step for record in rows] == [3, 6, 9, 10, 13, 16, 19, 20]
    assert [record.values["batch/loss"] for record in rows] == [3, 3, 3, 1] * 2
    assert [record.step for record in epochs(records)] == [10, 20]
    assert [record.values["epoch"] for record in epochs(records)] == [1, 2]
    if known:
        assert [record.values["epoch"] for record in rows][:4] == pytest.approx([0.3, 0.6, 0.9, 1])
    assert type(model.train_function).__name__ == "function"


class Positives(keras.metrics.Metric):  # type: ignore[name-defined]
    """As the example in Keras's documentation: its result is its variable."""

    def __init__(self, name: str = "positives") -> None:
        super().__init__(name=name)
        self.count = self.add_variable(shape=(), initializer="zeros", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.count.assign(self.count + keras.ops.sum(keras.ops.cast(y_true > 0.5, self.count.dtype)))

    def result(self) -> Any:
        return self.count


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_each_row_has_the_values_of_its_batch(lanes: Any, pace: Any) -> None:
    """Metrics whose result is a variable, or a view of one, which the next batch changes: none is read too late."""
    run, read = lanes
    count, found = pace.count(5_000, least=500), []

    class Reads(LogclientCallback):
        """Empties the lanes before they are full."""

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch % 100 == 0:
                found.extend(read())

    ones = np.ones((count, 1), "float32")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "sigmoid")])
    metrics = [
        Positives(),
        keras.metrics.TruePositives(name="true"),
        keras.metrics.FalseNegatives(name="false"),
    ]
    model.compile("sgd", "binary_crossentropy", metrics=metrics)
    model.fit(ones, ones, batch_size=1, verbose=0, callbacks=[Reads()])
    rows = batches([*found, *read()])
    assert [record.step for record in rows] == list(range(1, count + 1))
    assert [record.values["batch/positives"] for record in rows] == [record.step for record in rows]
    sums = [record.values["batch/true"] + record.values["batch/false"] for record in rows]
    assert sums == [record.step for record in rows]
    assert run.status()["left_out"] == run.status()["refused"] == 0


def test_a_step_is_the_models_own_again(lanes: Any) -> None:
    """After a training; after one that was interrupted, when the next one begins, whoever logs it."""
    model, callback = classifier(), LogclientCallback()
    interrupt = keras.callbacks.LambdaCallback(on_train_batch_end=partial(_interrupt, 2))
    kinds = []

    class Looks(keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            kinds.append(type(self.model.train_function).__name__)

    with pytest.raises(KeyboardInterrupt):
        fit(model, [callback, interrupt, Looks()])
    fit(model, [LogclientCallback(logclient.NullRun("", {}, ())), Looks()])
    assert set(kinds[:3]) == {"_Held"} and set(kinds[-BATCHES:]) == {"function"}
    fit(model, [callback, Looks()])
    assert kinds[-1] == "_Held" and type(model.train_function).__name__ == "function"


def test_what_a_step_raises_reaches_the_user(lanes: Any) -> None:
    """An error of the user's in a step, and a failure of ours behind one."""
    run, _ = lanes

    class Wrong(keras.Sequential):  # type: ignore[name-defined]
        def train_step(self, data: Any) -> Any:
            raise AttributeError("the user's")

    model = Wrong([keras.Input((64,)), keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(AttributeError, match="the user's"):
        fit(model, [LogclientCallback()])
    assert run.status()["refused"] == 0
    callback = LogclientCallback()
    del callback._progress
    callback._off = False
    held = keras_steps._Held(lambda batches: {"loss": 1.0}, callback._stepped, in_tuple=False)
    assert held([()]) == {"loss": 1.0} and run.status()["refused"] == 1


def test_a_step_that_takes_its_batches_from_an_iterator(lanes: Any) -> None:
    """As on JAX, where values come with a state; those it took are counted, whatever ends the iterator."""
    seen = []

    def step(state: int, data: Iterator[Any]) -> Any:
        return {"loss": float(sum(1 for _ in zip(range(3), data)))}, state + 1  # noqa: B905 - takes 3 at most

    def stepped(count: int | None, values: Any) -> Any:
        seen.append(count)
        return values

    held, data = keras_steps._Held(step, stepped, in_tuple=True), iter(range(10))
    assert [held(7, data) for _ in range(4)] == [({"loss": n}, 8) for n in (3, 3, 3, 1)]
    assert seen == [3, 3, 3, 1]


def test_an_interrupted_training(lanes: Any) -> None:
    """Keeps what it has; the next one goes on behind it."""
    _, read = lanes

    class Stop(keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                raise KeyboardInterrupt

    model, callback = classifier(), LogclientCallback()
    records: list[Record] = []

    def are_there(count: int) -> bool:
        """Keras's own threads may still be at the last batches."""
        records.extend(read())
        return len(batches(records)) == count

    for count, callbacks in ((2, [Stop(), callback]), (4, [callback, Stop()])):
        with pytest.raises(KeyboardInterrupt):
            fit(model, callbacks)
        wait_until(partial(are_there, count), "the batches before the interrupt", 60)
    fit(model, [callback])
    records.extend(read())
    assert [record.step for record in batches(records)] == list(range(1, 4 + BATCHES + 1))
    assert [record.step for record in epochs(records)] == [4 + BATCHES]


def test_keras_does_not_wait_because_of_us(lanes: Any) -> None:
    """It reads the values of a batch in another thread, as it does without any callback."""
    _, read = lanes
    threads = []

    class Where(LogclientCallback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            threads.append(threading.current_thread())
            super().on_train_batch_end(batch, logs)

    assert keras.src.backend.IS_THREAD_SAFE
    fit(classifier(), [Where()], 3)
    assert len(threads) == 3 * BATCHES and threading.main_thread() not in threads
    assert [record.step for record in batches(read())] == list(range(1, 3 * BATCHES + 1))


@pytest.mark.first_is_quick
@pytest.mark.parametrize("part", ["_tie", "_progress", "logs"])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_failing_hook_ends_no_training(lanes: Any, hook: str, part: str) -> None:
    """Case R2-38: a part of the callback is gone, or Keras passes nonsense, in one hook; later callbacks go on."""
    run, _ = lanes
    seen = []

    class Broken(LogclientCallback):
        """Its `hook` finds a part missing, and it is back afterwards."""

    def spoiled(self: Any, *arguments: Any) -> None:
        original = getattr(LogclientCallback, hook)
        if part == "logs":
            original(self, *arguments[:-1], {"loss": object(), 7: None})
            return
        kept = vars(self).pop(part)
        try:
            original(self, *arguments)
        finally:
            vars(self)[part] = kept

    if hook == "on_train_batch_end":
        setattr(Broken, hook, lambda self, batch, logs=None: spoiled(self, batch, logs))
    elif hook in ("on_epoch_begin", "on_epoch_end"):
        setattr(Broken, hook, lambda self, epoch, logs=None: spoiled(self, epoch, logs))
    else:
        setattr(Broken, hook, lambda self, logs=None: spoiled(self, logs))

    class Later(keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(logs["val_loss"])

    model, callback = classifier(), Broken()
    fit(model, [callback, Later()], 2)
    x, y = digits()
    model.evaluate(x, y, verbose=0, callbacks=[callback])
    assert len(seen) == 2
    status = run.status()
    if part == "_progress":
        assert status["refused"] >= 1
        assert any(f"Broken.{hook} failed" in line for line in status["notices"])


def test_switched_off(run_dir: Path) -> None:
    """mode="disabled": nothing is made."""
    callback = LogclientCallback(mode="disabled")
    fit(classifier(), [callback])
    assert not run_dir.exists() and callback._progress.counts.first == 0


def test_copies_are_inert(lanes: Any) -> None:
    """Pickled and deep copies, of a callback that was used, too: no model, no run; they train on in silence."""
    _, read = lanes
    model, callback = classifier(), LogclientCallback()
    fit(model, [callback])
    read()
    for made in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
        assert set(vars(made)) == {"_tie", "_progress"}
        fit(model, [made])
        assert not read()
    fit(model, [callback])
    assert len(batches(read())) == BATCHES


SPAWN = """
import multiprocessing
from tests.integrations.test_keras import LogclientCallback, classifier, fit, torch

def train(callback):
    torch.set_num_threads(1)
    fit(classifier(), [callback])

if __name__ == "__main__":
    run = logclient.init("children")
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=train, args=(LogclientCallback(run),))
    child.start()
    child.join()
    print(json.dumps([os.getpid(), child.pid, child.exitcode]))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_callback_that_is_handed_to_a_child_logs_to_the_run(run_dir: Path, tmp_path: Path) -> None:
    """Case R2-34."""
    _, child, code = Script(tmp_path, SPAWN).result(timeout_s=500)
    assert code == 0
    assert len(batches(by_pid()[child][1])) == BATCHES

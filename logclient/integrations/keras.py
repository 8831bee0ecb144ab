"""Keras 3: `model.fit(..., callbacks=[LogclientCallback()])` logs each batch and each epoch, under keys of their own.

Runs in the training process, in the hooks that Keras calls. What is logged under which key stands in
docs/integrations/keras.md.

Invariants:

- nothing here waits for a device, nor makes Keras wait: `async_safe` lets it read the values of a batch in a thread of
  its own, as it does where there is no callback, and call `on_train_batch_end` there, several at once, in any order;
- so that hook changes nothing that another thread changes; whoever comes behind it, in the thread that trains, is
  called when all of them are done;
- a request to stop is followed after a batch, but where there are ranks after an epoch: batches end in other threads,
  and no two ranks would stop after the same one;
- the values that Keras reads are copies, which the next batch does not change: see `keras_steps.py`.
"""

from __future__ import annotations

import os
from _thread import get_ident
from collections.abc import Iterable, Mapping
from typing import Any

from keras.callbacks import Callback

from logclient import NullRun, Run
from logclient.integrations import guard, keras_steps
from logclient.run import session_of


class LogclientCallback(guard.Guarded, Callback):  # Keras has no types
    """Logs a model's trainings to a logclient run.

    `run` is the run to log to; default is the current one, else one that is started with the other arguments,
    which are those of `logclient.init`, when a training or evaluation begins.

    Raises nothing in a training but `BadArgument` for settings that make no sense, at its begin.
    """

    async_safe = True
    params: Any = None
    _model: Any = None

    def __init__(
        self,
        run: Run | NullRun | None = None,
        *,
        project: str | None = None,
        name: str | None = None,
        id: str | None = None,
        config: Any = None,
        group: str | None = None,
        tags: Iterable[str] = (),
        notes: str = "",
        resume: str | None = None,
        mode: str | None = None,
        dir: str | os.PathLike[str] | None = None,
        server: str | None = None,
        alerts: Iterable[str | dict[str, Any]] = (),
        **settings: Any,
    ) -> None:
        self._tie = guard.Tie(run, guard.given(locals()))
        super().__init__()
        self._progress = _Progress()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._progress = _Progress()

    @guard.opening
    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        keras_steps.let_go(self.model)  # of a training that was interrupted
        self._begin()
        self._progress.is_training = True
        self._progress.described = False
        if not self._off:
            keras_steps.hold(self.model, self._stepped)

    @guard.hook
    def _stepped(self, batches: int | None, logs: Any) -> Any:
        """Count the batches of a call of the model, and return values that stay; called in the thread that trains."""
        if batches is not None:
            self._progress.seen += batches
        return keras_steps.copied(logs)

    def _begin(self) -> None:
        run = self._open(self.params)  # all callbacks of a training share that dict
        if not self._off:
            self._progress.counts = guard.of_run(run, _Counts)

    @guard.hook
    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        progress = self._progress
        progress.batches = self._batches()
        progress.seen = 0
        progress.counts.begin_epoch(epoch, progress.batches)
        if not progress.described:
            progress.described = True
            self._describe(epoch)

    @guard.hook
    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Log the last batch of `steps_per_execution`, where that is not 1; `logs` are means over the epoch so far."""
        progress = self._progress
        done = progress.done(batch)
        progress.counts.last[get_ident()] = done - 1
        if not logs:
            return
        row = {f"batch/{name}": value for name, value in logs.items()}
        if progress.batches:
            row["epoch"] = progress.counts.epochs + done / progress.batches
        run, step = self._run(), progress.counts.first + done
        run.log(step, row)
        if not _has_ranks(run) and run.should_stop(step):
            self.model.stop_training = True

    @guard.hook
    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        counts = self._progress.counts
        counts.end_epoch()
        if not logs:
            return
        row = {f"epoch/{name}": value for name, value in logs.items()}
        if "epoch/learning_rate" not in row:
            row.update(_learning_rate(self.model))
        row["epoch"] = counts.epochs
        self._run().log(counts.first, row)
        if self._run().should_stop(counts.first):
            self.model.stop_training = True

    @guard.hook
    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._progress.is_training = False
        keras_steps.let_go(self.model)

    @guard.opening
    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Begin a validation, which may be part of a training."""
        if not self._progress.is_training:
            self._begin()

    @guard.hook
    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """`model.evaluate(..., callbacks=[...])`; what a validation gives comes with its epoch."""
        if logs and not self._progress.is_training:
            row = {f"validate/{name}": value for name, value in logs.items()}
            self._run().log(self._progress.counts.newest(), row)

    def _run(self) -> Any:
        return self._tie.run

    def _batches(self) -> int:
        """Return the batches of one epoch; 0 where nobody knows, in the first epoch over a generator."""
        return int((self.params or {}).get("steps") or 0)

    def _describe(self, first_epoch: int) -> None:
        """Config of the model, and one entry for each training."""
        run, model = self._run(), self.model
        if isinstance(run, Run) and session_of(run).rank not in (None, 0):
            return
        epochs = (self.params or {}).get("epochs")
        fit = {
            "epochs": None if epochs is None else epochs - first_epoch,
            "batches": self._batches() or None,
            "first_step": self._progress.counts.first + 1,
        }
        described = {
            "class": type(model).__name__,
            "name": model.name,
            "parameters": model.count_params() if model.built else None,
            "loss": _plain(getattr(model, "loss", None)),
            "optimizer": _settings(getattr(model, "optimizer", None)),
        }
        guard.add_fit(run, fit, model=described)


def _has_ranks(run: Run | NullRun) -> bool:
    return isinstance(run, Run) and session_of(run).rank is not None


class _Progress:
    """Position of the model in its training."""

    __slots__ = ("batches", "counts", "described", "is_training", "seen")

    def __init__(self) -> None:
        self.counts = _Counts()
        self.batches = 0  # of an epoch, where that is known
        self.seen = 0  # batches of this epoch that the model was called with, where that can be counted
        self.is_training = self.described = False

    def done(self, batch: int) -> int:
        """Return how many batches of this epoch there were, at the end of a call of the model.

        Keras counts `steps_per_execution` batches for each call, and gives the number of the last one: in an epoch of
        10 batches, with 3 a call, the last call has one and its number is 11.
        """
        done = batch + 1
        for known in (self.batches, self.seen):
            if known:
                done = min(done, known)
        return done


class _Counts:
    """Counts over all trainings of a run: `first` counts batches and `epochs` epochs before the current one."""

    __slots__ = ("epochs", "first", "last")

    def __init__(self) -> None:
        self.first = 0
        self.epochs = 0
        self.last: dict[int, int] = {}  # thread -> newest batch of this epoch that it had: see `async_safe`

    def newest(self) -> int:
        """Step of the newest batch."""
        return self.first + max(tuple(self.last.values()), default=-1) + 1

    def begin_epoch(self, epoch: int, batches: int) -> None:
        """`epoch` counts from `initial_epoch` on, in each training anew."""
        self.first = self.newest()  # behind an epoch that was interrupted, too
        self.last = {}
        if not self.first:
            self.first = epoch * batches  # goes on in a new process: fit(initial_epoch=...)
        self.epochs = max(self.epochs, epoch)

    def end_epoch(self) -> None:
        self.first = self.newest()
        self.last = {}
        self.epochs += 1


def _learning_rate(model: Any) -> dict[str, Any]:
    """Return the learning rate as it lies on the device; nothing where `Run.log` would not know its type."""
    rate = getattr(getattr(model, "optimizer", None), "learning_rate", None)
    rate = getattr(rate, "value", rate)
    is_array = type(rate).__module__.partition(".")[0] in ("torch", "jax", "jaxlib")
    return {"epoch/learning_rate": rate} if is_array or isinstance(rate, (int, float)) else {}


def _settings(thing: Any) -> dict[str, Any] | None:
    """Class and plain attributes: `get_config` would read the learning rate from the device."""
    if thing is None:
        return None
    public = {name: value for name, value in vars(thing).items() if not name.startswith("_")}
    plain = {
        name: value
        for name, value in public.items()
        if value is None or type(value) in (bool, int, float, str)
    }
    return {"class": type(thing).__name__, **plain}


def _plain(value: Any) -> Any:
    """Names as they are, of functions and objects theirs; models with several outputs have lists and dicts of them."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return getattr(value, "__name__", type(value).__name__)

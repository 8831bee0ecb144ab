"""PyTorch/XLA: log the tensors of a step when the step has run, from every device of a process.

::

    from logclient.integrations.xla import LogclientXLACallback

    def train(index):                               # given to torch_xla.launch or xmp.spawn
        callback = LogclientXLACallback()           # the run that the parent began
        for step, (x, y) in enumerate(loader):
            ...
            callback.log(step, {"loss": loss})      # an XLA tensor: not read here
            torch_xla.sync()                        # or xm.mark_step(), or a device loader's
        callback.flush()

Runs in the training process: `log` in the thread of its device, reading in torch_xla's own thread for step closures.

Invariants:

- an XLA tensor is read inside a step closure only, where its value is there; anywhere else that would run half a graph;
- what is stored is the value at the time of the call: a copy is put into the graph of that step;
- the rank is the runtime's for the thread that calls: one process may have several devices, each with a thread;
- one closure a step, however many calls; a bounded number under way, those beyond are counted as refused;
- the runtime is not touched before the first `log`: torch_xla can start no processes after that.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla.utils.closures import AsyncClosureHandler

from logclient import NullRun, Run
from logclient.integrations import guard
from logclient.integrations.guard import is_over
from logclient.run import session_of

MAX_STEPS = (
    32  # of a device that wait for their closure; torch_xla's queue takes 100 and then blocks the training
)
MAX_RECORDS = 1_000  # of one step
_MAX_DEPTH = 20
_START_S = 30.0  # for another thread of this process that begins the run
_NAP_S = 0.002
_alive: weakref.WeakSet[_Thread] = weakref.WeakSet()
_starting: dict[
    int, threading.RLock
] = {}  # PID -> for the thread that looks for the run; a fork finds none held


class LogclientXLACallback(guard.Guarded):
    """Logs a loop on XLA devices to a logclient run; also a callback for fastai's `Learner(cbs=...)`.

    `run` is the run to log to; default is the current one or the parent's, else one that is started with the other
    arguments, which are those of `logclient.init`. One object may be shared by the threads of several devices, and
    pickled into processes that torch_xla starts. `sync`: in fastai, end each batch by `torch_xla.sync()`, where nothing
    else does.
    """

    name = "logclient_xla"  # in fastai
    _kept = ("does_sync",)
    _instead = "call logclient.init before torch_xla.launch"
    _local: threading.local | None = None

    def __init__(
        self,
        run: Run | NullRun | None = None,
        *,
        sync: bool = False,
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
        self.does_sync = sync

    @guard.hook
    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log with the rank of this thread's device; XLA tensors are stored after this step's sync. See `Run.log`.

        A record without XLA tensors is stored at once. Never waits for a device, but for a run that has to be started.
        """
        mine = self._thread()
        if self._off:
            return
        mine.note(step)
        tensors: list[tuple[dict[Any, Any], Any]] = []
        row: Mapping[str, Any] = _snapshot(metrics, tensors) if isinstance(metrics, dict) else metrics
        if not tensors:
            mine.log(step, row)
        else:
            mine.put(self, _Record(step, row, tensors))

    def should_stop(self) -> bool:
        """Return `Run.should_stop` for this thread's device: true after the same step on all of them.

        It goes by what was logged, which is up to 32 steps later than the training where there are several devices.
        """
        return self._asked("should_stop") is True

    def should_save(self) -> bool:
        """Return `Run.should_save` for this thread's device."""
        return self._asked("should_save") is True

    @guard.hook
    def _asked(self, which: str) -> bool:
        mine = self._thread()
        step = mine.agreed_step()
        return step is not None and bool(getattr(mine.ranked, which)(step))

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until the steps of this thread that ended with a sync are logged, at most `timeout_s`; True if they are.

        Before `run.finish()`; what is logged after the last sync is not waited for.
        """
        return self._flush(timeout_s) is not False

    @guard.hook
    def _flush(self, timeout_s: float) -> bool:
        mine, deadline = self._thread(), time.monotonic() + timeout_s
        while any(step is not mine.step for step in tuple(mine.steps)):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_NAP_S)
        return True

    def _thread(self) -> _Thread:
        """Return the state of this thread; finds the run and the rank where there is none yet."""
        local = self._threads()
        mine: _Thread | None = getattr(local, "mine", None)
        if mine is None or mine.pid != os.getpid() or is_over(mine.run):
            lock = _starting.setdefault(os.getpid(), threading.RLock())
            is_mine = lock.acquire(timeout=_START_S)
            try:
                run = self._open(other=_of_another_thread())
                mine = local.mine = _Thread(self, run, 0 if self._off else xr.global_ordinal())
                if not _alive:
                    atexit.unregister(_count_unended)
                    atexit.register(_count_unended)  # after the run's own: so it comes before that
                _alive.add(mine)
            finally:
                if is_mine:
                    lock.release()
        return mine

    def _threads(self) -> threading.local:
        """State of each thread; a copy of a callback has none yet."""
        return self._local or self.__dict__.setdefault("_local", threading.local())

    # ---- as a callback of fastai's Learner: what it looks for, the rest is in `xla_fastai.py` -------------

    @property
    def learn(self) -> Any:
        """This thread's learner."""
        return getattr(getattr(self._threads(), "inner", None), "learn", None)

    @learn.setter
    def learn(self, learn: Any) -> None:
        threads = self._threads()
        if learn is not None:
            from .xla_fastai import LearnerCallback  # fastai is loaded by whoever has a learner

            threads.inner = LearnerCallback(self)
        threads.inner.learn = learn

    def __call__(self, event_name: str) -> None:
        self._threads().inner(event_name)

    def __getattr__(self, name: str) -> Any:
        """Return the attributes that fastai asks of a callback."""
        inner = getattr(self.__dict__.get("_local"), "inner", None)
        if inner is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(inner, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        inner = getattr(self.__dict__.get("_local"), "inner", None)
        if inner is not None:  # with its learner: as fastai's callbacks of ours
            return inner.__reduce_ex__(protocol)
        return super().__reduce_ex__(protocol)

    @guard.hook
    def _deliver(self, mine: _Thread, step: _Step) -> None:
        """The step closure: its tensors have values now."""
        step.is_taken = True
        try:
            while step.records:
                self._store(mine, step.records.popleft())
        finally:
            mine.forget(step)

    @guard.hook
    def _store(self, mine: _Thread, record: _Record) -> None:
        for level, key in record.tensors:
            level[key] = level[key].cpu()
        mine.log(record.step, record.row)


class _Record:
    """One call: `tensors` are where in `row` the XLA tensors stand."""

    __slots__ = ("row", "step", "tensors")

    def __init__(self, step: int, row: Mapping[str, Any], tensors: list[tuple[dict[Any, Any], Any]]) -> None:
        self.step = step
        self.row = row
        self.tensors = tensors


class _Step:
    """The records between two syncs."""

    __slots__ = ("is_taken", "records")

    def __init__(self) -> None:
        self.records: deque[_Record] = deque()
        self.is_taken = False


class _Thread:
    """One device's thread: its run with its rank, and the steps whose closures have not run."""

    def __init__(self, callback: LogclientXLACallback, run: Run | NullRun, rank: int) -> None:
        self.pid = os.getpid()
        self.ident = threading.get_ident()
        self.callback = weakref.ref(callback)
        self.run = run
        self.ranked = run.as_rank(rank)
        self.log = self.ranked.log
        self._given: deque[int] = deque(maxlen=MAX_STEPS + 1)  # newest steps that `log` was called with
        self.step: _Step | None = None  # until the next sync
        self.steps: list[_Step] = []

    def note(self, step: int) -> None:
        """Note the step of a call of `log`."""
        if type(step) is int and (not self._given or step != self._given[-1]):
            self._given.append(step)

    def agreed_step(self) -> int | None:
        """Return a step that is stored by now for sure, the same on all devices; None where there is none yet."""
        given = self._given
        if not given or xr.world_size() == 1:
            return given[-1] if given else None
        return given[0] if len(given) > MAX_STEPS else None

    def put(self, callback: LogclientXLACallback, record: _Record) -> None:
        """Keep it for this step's closure. Called in the thread that also calls sync."""
        step = self.step
        if step is None:
            if len(self.steps) >= MAX_STEPS:
                return self.refuse(f"{MAX_STEPS} steps wait for the device or for torch_xla's thread")
            step = _Step()
            self._queue(
                callback, step
            )  # first: what a signal's handler interrupts leaves no step without a closure
            self.steps.append(step)
            self.step = step
        if len(step.records) >= MAX_RECORDS:
            return self.refuse(f"{MAX_RECORDS:,} records and no torch_xla.sync(), which ends a step")
        step.records.append(record)
        if step.is_taken:  # logged by another step closure, when ours may be through
            self._queue(callback, step)

    def _queue(self, callback: LogclientXLACallback, step: _Step) -> None:
        # in the training's thread, right after the steps before were handed over: later records are the next step's
        xm.add_step_closure(self._cut)
        xm.add_step_closure(callback._deliver, (self, step), run_async=_may_be_async())

    def _cut(self) -> None:
        self.step = None

    def forget(self, step: _Step) -> None:
        """Its closure has run. Closures run in order: those of steps before it, if any is left, never will."""
        while step in self.steps:
            before = self.steps.pop(0)
            if before is not step and not before.is_taken:
                self.refuse(
                    "torch_xla dropped a step's closures, because one of yours raised", len(before.records)
                )

    def refuse(self, why: str, amount: int = 1) -> None:
        if isinstance(self.run, Run):
            session = session_of(self.run)
            session.counters.refused.add(amount - 1)
            session.refuse("xla", why)


def _of_another_thread() -> LogclientXLACallback | None:
    """Find a callback that logs another device of this process: all devices of a launch are one training."""
    pid, ident = os.getpid(), threading.get_ident()
    for mine in tuple(_alive):
        callback = mine.callback()
        if mine.pid == pid and mine.ident != ident and callback is not None and not is_over(mine.run):
            return callback
    return None


def _count_unended() -> None:
    """At exit: what waits for the end of a step that will not come."""
    for mine in tuple(_alive):
        if mine.step is not None and mine.pid == os.getpid():
            mine.refuse("logged after the last torch_xla.sync()", len(mine.step.records))


def _snapshot(
    metrics: dict[Any, Any], tensors: list[tuple[dict[Any, Any], Any]], depth: int = 0
) -> dict[Any, Any]:
    """A copy of the metrics that nobody changes; `tensors` gets the places of XLA tensors in it."""
    made: dict[Any, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, torch.Tensor):
            if value.numel() != 1:
                value = torch.empty(()).expand(
                    value.shape
                )  # no value: `Run.log` leaves it out and names the shape
            else:
                value = value.detach().clone()
                if value.device.type == "xla":
                    tensors.append((made, key))
        elif isinstance(value, np.ndarray) and value.size == 1:
            value = value.copy()
        elif isinstance(value, dict) and depth < _MAX_DEPTH:
            value = _snapshot(value, tensors, depth + 1)
        made[key] = value
    return made


@cache
def _may_be_async() -> bool:
    """False where torch_xla 2.9 would raise in `sync`: it takes the text of XLA_MAX_ASYNC_QUEUE for a number."""
    return isinstance(AsyncClosureHandler()._closure_queue.maxsize, int)

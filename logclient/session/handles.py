"""The runs that this process has open, by meeting place, with a weak reference to the `Run` that the user holds.

Runs in the training process: `note` in `init` and in a forked child that logs, the finalizer wherever the last
reference goes: inside another run's `log`, in a signal handler, in a collection of garbage, in a forked child.

Invariants:

- what the finalizer does is one store into the lane file, of the PID of the process that it runs in. The agent ends the
  run where that is the process of the lanes, so a child that was forked ends nothing of its parent's;
- the finalizer runs no bytecode: what a handler of the user's raised in it would be swallowed;
- what the process holds of the run (lanes, lock, locked memory) stays here until `dropped.py` lets it go: in the next
  `init`, `flush` or `finish`, or in the exit hook.
"""

from __future__ import annotations

import os
from _functools import partial  # type: ignore[import-not-found]  # without Python around it, as `functools` has
from _operator import setitem
from _weakref import ReferenceType

from ..shm import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..encode.device import Device
    from ..encode.lanes import Lanes
    from ..run import Run
    from ..shm.meeting import Meeting
    from ..shm.owner import LiveLock
    from ..shm.stats import Counters

    _RunReference = ReferenceType[Run]
else:
    _RunReference = ReferenceType


class Held:
    """The memory and locks that a process holds of a run, beside the `Run` itself."""

    __slots__ = (
        "_folder",
        "_lanes",
        "_mark",
        "_place",
        "_settings",
        "_status",
        "counters",
        "device",
        "live",
        "pid",
    )

    def __init__(self, run: Run) -> None:
        # named as in `Run`: `waiting.py` waits for either
        self._folder = run._folder
        self._lanes: Lanes | None = run._lanes
        self._mark = run._mark
        self._place: Meeting = run._place
        self._settings = run._settings
        self._status = run._status
        self.counters: Counters = run._counters
        self.device: Device | None = None if run._encoder is None else run._encoder.device
        self.live: LiveLock | None = run._live
        self.pid = run._pid

    def _settle_device_values(self) -> None:
        if self.device is not None:
            self.device.settle()


class Handle(_RunReference):
    """A weak reference to a run, and what is to be let go once that is dead."""

    __slots__ = ("held",)
    held: Held
    # the number that a store of the reference itself stores: a call of a C function, with no argument
    __index__ = os.getpid


by_place: dict[str, Handle] = {}


def note(run: Run) -> None:
    """This process has the run open, with these lanes; to be called again when they change."""
    lanes = run._lanes
    if lanes is None:
        handle = Handle(run)
    else:
        handle = Handle(run, partial(setitem, lanes.words, layout.DROPPED))
    handle.held = Held(run)
    by_place[run._place.path] = handle


def find(path: str) -> Run | None:
    """The run of that meeting place that this process, or the one it was forked from, has open."""
    handle = by_place.get(path)
    return None if handle is None else handle()


def runs() -> list[Run]:
    """All of them whose handle is still there."""
    found = [handle() for handle in tuple(by_place.values())]
    return [run for run in found if run is not None]


def forget(run: Run) -> None:
    """The run is closed in this process, or in a forked child: is its parent's."""
    path = run._place.path
    if find(path) is run:
        del by_place[path]


def note_page(run: Run | Held) -> None:
    """The agent's page is mapped only now."""
    handle = by_place.get(run._place.path)
    if handle is not None and handle() is run:
        handle.held._status = run._status

"""Calls of a process that has no run: they are counted, until one of its parents has one.

Runs in the training process, in `logclient.log` and its kin, where nobody has called `init`.

Invariant: a look for a run, which reads some files on tmpfs and in /proc, is made at the first call and then at most
twice a second.
"""

from __future__ import annotations

import os
import time

from ..guest import foreign
from ..null import NullRun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..run import Run

_LOOK_S = 0.5


class _Counted:
    """Calls that this process refused so far, and the time of its next look for a run."""

    def __init__(self) -> None:
        self.run = NullRun("", {}, (), closed="no run is open: call logclient.init() first")
        self.look_at = 0.0
        self.pid = os.getpid()


_counted = _Counted()


def current() -> NullRun:
    """Stands in for a run: counts, and says once why."""
    global _counted
    if _counted.pid != os.getpid():  # forked since: what the parent counted is not ours
        _counted = _Counted()
    return _counted.run


def find() -> Run | NullRun | None:
    """The live run of a parent, if there is one now; it goes on with the count. Never raises."""
    refused, now = current(), time.monotonic()
    if now < _counted.look_at:
        return None
    try:
        from .start import attach_to_parent

        found = attach_to_parent()
        if found is not None:
            found._count_refused(refused._refused.value)
    except ImportError:  # in a handler that interrupts `init`, which is only just importing it
        return None
    except Exception as error:
        if not foreign.is_own(error):
            raise
        found = None
    _counted.look_at = now + _LOOK_S
    return found

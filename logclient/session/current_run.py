"""The current run of a process, and calls of a process that has none: they are counted until one of its parents has.

Runs in the training process, in `logclient.log` and its kin, and in callbacks.

Invariant: a look for a run, which reads some files on tmpfs and in /proc, is made at the first call and then at most
twice a second.
"""

from __future__ import annotations

import os
import time

from ..guest import foreign
from ..null import NullRun, count_refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..run import Run

_LOOK_S = 0.5

# Set by `logclient`, which holds the current run: its own `log` is faster with a global of its own.
get: Callable[[], Run | NullRun | None]  # the run of the last `init` in this process
get_or_stand_in: Callable[[], Run | NullRun]  # else the live run of a parent, else the one that only counts


class _Counted:
    """Calls that this process refused so far, and the time of its next look for a run."""

    def __init__(self) -> None:
        self.run = NullRun("", {}, (), closed="no run is open: call logclient.init() first")
        self.look_at = 0.0
        self.pid = os.getpid()


_counted = _Counted()


def stand_in() -> NullRun:
    """Return what stands in for a run: it counts, and says once why."""
    global _counted
    if _counted.pid != os.getpid():  # forked since: what the parent counted is not ours
        _counted = _Counted()
    return _counted.run


def find() -> Run | NullRun | None:
    """Return the live run of a parent, if there is one now; it goes on with the count. Never raises."""
    refused, now = stand_in(), time.monotonic()
    if now < _counted.look_at:
        return None
    try:
        from ..run import session_of
        from .start import attach_to_parent

        found = attach_to_parent()
        if found is not None:
            count = refused.status()["refused"]
            if isinstance(found, NullRun):
                count_refused(found, count)
            else:
                session_of(found).counters.refused.add(count)
    except ImportError:  # in a handler that interrupts `init`, which is only just importing it
        return None
    except Exception as error:
        if not foreign.is_own(error):
            raise
        found = None
    _counted.look_at = now + _LOOK_S
    return found

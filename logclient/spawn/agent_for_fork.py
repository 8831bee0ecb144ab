"""Calls for an agent by a forked child that logs for the first time: one child of many calls, and none of them waits.

Runs in the training process, in the first `log` of a forked child.

Invariants:

- an agent that was called for lately counts as one, until its worker is heard or twice the stall time is over; if it
  never comes, `flush` and `finish` bring another;
- to look and to note the call is one step, under a record lock on the status page; who finds it taken does not call.
"""

from __future__ import annotations

import fcntl
import os
import time

from ..shm import layout
from ..shm.health import describe_agent
from ..shm.owner import is_locked
from ..shm.regular import open_regular
from . import agent as spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..shm.shm_dir import ShmDir


def call_if_needed(shm_dir: ShmDir, status: memoryview | None, stall_s: float) -> None:
    """Start an agent where none lives and none was called for; returns before it is there."""
    if status is None or _is_called(status, stall_s):
        return
    if is_locked(shm_dir.file("agent.lock")) and status[layout.AGENT_CLOSING] != layout.CLOSING_KEPT:
        return
    if _note_call(shm_dir, status, stall_s):
        spawn.start_agent(shm_dir, 0.0, check_folder=False)  # why it is late is told by `flush` and `finish`


def _is_called(status: memoryview, stall_s: float) -> bool:
    return describe_agent(status, time.monotonic_ns(), stall_s)["state"] == "starting"


def _note_call(shm_dir: ShmDir, status: memoryview, stall_s: float) -> bool:
    """Note that an agent is called for now; False where another process has just done so."""
    try:
        fd = open_regular(shm_dir.file("agent.status"), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_called(status, stall_s):
            return False
        status[layout.AGENT_GAVE_UP] = 0
        status[layout.AGENT_CALLED_NS] = time.monotonic_ns()
    except OSError:
        return False  # another process has the lock
    finally:
        os.close(fd)
    return True

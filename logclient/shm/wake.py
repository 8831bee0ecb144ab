"""Wake-ups: end the pause of the agent at once, for a caller that waits for it or joins the run.

Runs in the training process: in `init`, `flush`, `finish`, `alert`, and once in a forked child that logs. `log` wakes
nobody.

Each lasting process of an agent reads one named pipe of the shm directory and sleeps until a byte comes, or until its
own pause is over. The agent makes the pipes (`agent/host/pauses.py`); they stay when it is replaced.

Invariants:

- a wake-up never waits: the pipe is opened without blocking, and a full one means that its reader is awake already;
- it never raises SIGPIPE: the pipe is opened for reading too, so it always has a reader;
- without an agent, a pipe or a free descriptor it does nothing: the agent looks by itself within its pause.
"""

from __future__ import annotations

import os

from ..guest import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .shm_dir import ShmDir

WORKER = "worker.wake"
SUPERVISOR = "supervisor.wake"
SHIPPER = "ship.wake"
OBSERVER = "observer.wake"
MEDIA = "media.wake"


def wake(shm_dir: ShmDir, process: str = WORKER) -> None:
    """End the pause of that process of the agent: open, write one byte, close."""
    try:
        fd = os.open(shm_dir.file(process), os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(fd, b"\0")
        finally:
            os.close(fd)
    except OSError as error:
        if foreign.is_users(error):
            raise

"""The agent as the training process sees it: does one live, how to start one, what it reports.

Runs in the training process. `start_agent` is the only way to start one: it knows which interpreter it may start
(`interpreter.py`), and marks the environment, so that no run begins in what it starts. Nothing here watches it: no
thread, no later call.
"""

from __future__ import annotations

import os
import time

from ..guest.descriptors import Mapped
from ..shm import layout, modes
from ..shm.owner import is_locked
from ..shm.regular import open_regular, read_start
from ..shm.shm_dir import STDERR_LINE, ShmDir
from ..shm.stats import terminal_device
from ..shm.wake import SUPERVISOR, wake

_POLL_S = 0.002
_WRITE_WAIT_S = 0.6  # the supervisor is woken for it


def agent_lives(shm_dir: ShmDir) -> bool:
    """Does a supervisor hold the election lock of this shm directory, and stays with those who come now?"""
    return is_locked(shm_dir.file("agent.lock")) and not _is_keeping(shm_dir)


def _is_keeping(shm_dir: ShmDir) -> bool:
    """Is its agent about to leave, with all that there is left in shared memory?"""
    try:
        page = read_start(shm_dir.file("agent.status"), 8 * (layout.AGENT_CLOSING + 1))
    except OSError:
        return False
    return page[8 * layout.AGENT_CLOSING :] == layout.CLOSING_KEPT.to_bytes(8, "little")


def start_agent(
    shm_dir: ShmDir,
    timeout_s: float,
    *,
    check_folder: bool,
    answer: str = "any.answer",
    resume: str = "allow",
    strict: bool = False,
    tell: bool = False,
) -> str | None:
    """Start an agent for this shm directory; None, or why that did not work in time.

    With `check_folder` its launcher looks at the run folder first (`resume`, `strict`: as the user wants it), leaves
    what it found in the file `answer` of the shm directory, and where asked to `tell` writes where the run goes into
    the file that is standard error: its disk may be frozen, too. There is no agent where the answer says that the run
    must not start.
    """
    from . import starting  # `init` has loaded it

    return starting.start(
        shm_dir,
        timeout_s,
        check_folder=check_folder,
        answer=answer,
        resume=resume,
        strict=strict,
        tell=tell,
    )


def is_stderr_file() -> bool:
    """Is standard error a file, and handed on to what we start?"""
    return terminal_device() != 0 and os.get_inheritable(2)


def write_line(shm_dir: ShmDir, line: str, deadline: float) -> None:
    """Have the agent, which was started with `tell`, write a line into the file that is standard error.

    Where none lives, a process of its own does.
    """
    if not agent_lives(shm_dir):
        write_to_stderr_file(line)
        return
    path = shm_dir.file(STDERR_LINE)
    try:
        modes.publish(path, f"logclient: {line}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        return
    wake(shm_dir, SUPERVISOR)
    deadline = min(deadline, time.monotonic() + _WRITE_WAIT_S)
    while os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def write_to_stderr_file(line: str) -> None:
    """Write a line to standard error where that is a file, by a process that may hang in its disk."""
    from .starting import write_to_stderr_file as write_now  # `init` has loaded it

    write_now(line)


def map_status(shm_dir: ShmDir) -> memoryview | None:
    """The agent's status page as words (layout.AGENT_...); None where it is gone."""
    try:
        fd = open_regular(shm_dir.file("agent.status"), os.O_RDWR)
    except OSError:
        return None
    try:
        if os.fstat(fd).st_size < layout.STATUS_BYTES:
            return None
        return memoryview(Mapped(fd, layout.STATUS_BYTES)).cast("Q")
    except OSError:
        return None
    finally:
        os.close(fd)

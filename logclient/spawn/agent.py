"""The agent as the training process sees it: does one live, how to start one, what it reports.

Runs in the training process. `start_agent` is the only way to start one: it knows which interpreter it may start
(`interpreter.py`), and marks the environment, so that no run begins in what it starts. Nothing here watches it: no
thread, no later call.
"""

from __future__ import annotations

import os

from ..guest.descriptors import Mapped
from ..shm import layout
from ..shm.notices import is_stderr_file
from ..shm.owner import is_locked
from ..shm.regular import open_regular, read_start
from ..shm.shm_dir import ShmDir


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
) -> str | None:
    """Start an agent for this shm directory; None, or why that did not work in time.

    With `check_folder` its launcher looks at the run folder first (`resume`, `strict`: as the user wants it), and
    leaves what it found in the file `answer` of the shm directory. There is no agent where the answer says that the
    run must not start.
    """
    from . import starting  # `init` has loaded it

    return starting.start(
        shm_dir,
        timeout_s,
        check_folder=check_folder,
        answer=answer,
        resume=resume,
        strict=strict,
    )


def write_to_stderr_file(line: str, deadline: float | None = None) -> None:
    """Write a line to standard error where that is a file, by a process that may hang in its disk.

    It is waited for until `deadline`, and for a moment at most.
    """
    from .starting import write_to_stderr_file as write_now  # `init` has loaded it

    if is_stderr_file():
        write_now(line, deadline)


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

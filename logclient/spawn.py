"""Starts the agent by name, through a launcher that exits. Nothing here watches it: no thread, no later call.

Runs in the training process, in `init` (and in the first `log()` of a forked child when no agent lives).

Invariants:

- the launcher is our child for some 50 ms and reaped here; the agent it leaves behind is nobody's child;
- the agent starts with this interpreter, `-P`, null streams, and the folders that our packages lie in;
- every wait has a deadline; a launcher that hangs (frozen disk) is left behind and said so.
"""

from __future__ import annotations

import mmap
import os
import sys
import time

from . import config, layout
from .meeting import Meeting
from .owner import is_locked

_POLL_S = 0.002


def agent_lives(meeting: Meeting) -> bool:
    """Does a supervisor hold the election lock of this meeting place?"""
    return is_locked(meeting.file("agent.lock"))


def start_agent(meeting: Meeting, timeout_s: float, *, check_folder: bool) -> str | None:
    """Start an agent for this meeting place; None, or why that did not work in time."""
    if not sys.executable:
        return "sys.executable is empty: no agent can be started; records stay in shared memory"
    command = [sys.executable, "-P", "-m", "logclient_backend", "agent", meeting.path]
    if check_folder:
        command.append("--check-folder")
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    try:
        pid = os.posix_spawn(
            sys.executable,
            command,
            config.agent_environment(_our_folders()),
            file_actions=null,
            setsigmask=(),
        )
    except OSError as error:
        return f"{sys.executable} cannot be started ({error.strerror}); records stay in shared memory"
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # somebody's SIGCHLD handler or os.wait() was faster
            return None
        if done:
            code = os.waitstatus_to_exitcode(status)
            return None if code == 0 else f"the agent's launcher ended with {code}: try `logclient doctor`"
        time.sleep(_POLL_S)
    return f"the agent did not start within {timeout_s:g} s: a disk may be frozen; try `logclient doctor`"


def map_status(meeting: Meeting) -> memoryview | None:
    """The agent's status page as words (layout.AGENT_...); None where it is gone."""
    try:
        fd = os.open(meeting.file("agent.status"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(fd).st_size < layout.STATUS_BYTES:
            return None
        return memoryview(mmap.mmap(fd, layout.STATUS_BYTES)).cast("Q")
    except OSError:
        return None
    finally:
        os.close(fd)


def _our_folders() -> list[str]:
    """Folders that must be on the agent's path; site-packages is there already, and must not come first."""
    from importlib.util import find_spec

    folders = []
    for name in ("logclient", "logclient_backend"):
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is None or not spec.submodule_search_locations:
            continue
        folder = os.path.dirname(os.path.abspath(spec.submodule_search_locations[0]))
        if os.path.basename(folder) not in ("site-packages", "dist-packages") and folder not in folders:
            folders.append(folder)
    return folders

"""Starts the agent by name, through a launcher that exits. Nothing here watches it: no thread, no later call.

Runs in the training process, in `init` (and in the first `log()` of a forked child when no agent lives).

Invariants:

- neither the launcher, which lives for some 50 ms, nor the agent that it leaves behind is our child (`orphan.py`);
  where that cannot be had, the launcher is one, and reaped here;
- the agent starts with this interpreter, `-P`, null streams, and the folders that our packages lie in;
- every wait has a deadline; a launcher that hangs (frozen disk) is left behind and said so.
"""

from __future__ import annotations

import os
import sys
import time
from _signal import valid_signals  # type: ignore[import-not-found]  # `signal` is 2 ms of import

from . import config, layout, modes, orphan, reap
from .descriptors import Mapped
from .meeting import SAY, Meeting
from .owner import is_locked
from .stats import terminal_device
from .stdlib import folder_of
from .wake import SUPERVISOR, wake

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_POLL_S = 0.002
_TOLD_WAIT_S = 0.5
_SAID_WAIT_S = 0.6  # the supervisor is woken for it
_TERMINAL = 3  # where the launcher finds standard error


def agent_lives(meeting: Meeting) -> bool:
    """Does a supervisor hold the election lock of this meeting place, and stays with those who come now?"""
    return is_locked(meeting.file("agent.lock")) and not _is_keeping(meeting)


def _is_keeping(meeting: Meeting) -> bool:
    """Is its agent about to leave, with all that there is left in shared memory?"""
    try:
        with open(meeting.file("agent.status"), "rb", buffering=0) as file:
            page = file.read(8 * (layout.AGENT_CLOSING + 1))
    except OSError:
        return False
    return page[8 * layout.AGENT_CLOSING :] == layout.CLOSING_KEPT.to_bytes(8, "little")


def start_agent(
    meeting: Meeting,
    timeout_s: float,
    *,
    check_folder: bool,
    answer: str = "any.answer",
    resume: str = "allow",
    strict: bool = False,
    tell: bool = False,
) -> str | None:
    """Start an agent for this meeting place; None, or why that did not work in time.

    With `check_folder` its launcher looks at the run folder first (`resume`, `strict`: as the user wants it), leaves
    what it found in the file `answer` of the meeting place, and where asked to `tell` writes where the run goes into
    the file that is standard error: its disk may be frozen, too. There is no agent where the answer says that the run
    must not start.
    """
    if not sys.executable:
        return "sys.executable is empty: no agent can be started; records stay in shared memory"
    command = [sys.executable, "-P", "-m", "logclient_backend", "agent", meeting.path]
    command.append(f"--trainer={os.getpid()}")
    deadline = time.monotonic() + timeout_s
    terminal = 0
    if check_folder:
        command += [f"--answer={answer}", f"--until={deadline:.3f}", f"--resume={resume}"]
        command += ["--strict"] if strict else []
        if tell:
            command.append("--tell")
            terminal = _TERMINAL
    dropped, added = config.agent_changes(_our_folders(), _users_folders())
    end = meeting.file(f"{os.urandom(8).hex()}.end")
    reap.ended()  # what earlier runs left
    parent = f"{end}.pid" if reap.got_orphans() else ""
    try:
        if orphan.start(
            command, dropped=dropped, added=added, end=end, keep_stderr_as=terminal, tell_pid=parent
        ):
            code = _wait_for_orphan(end, deadline)
            if parent:
                _note(parent)
        else:
            code = _wait_for_child(_spawn(command, dropped, added, terminal), deadline)
    except OSError as error:
        return f"{sys.executable} cannot be started ({error.strerror}); records stay in shared memory"
    if code is None:
        return (
            f"the agent did not start within {timeout_s:g} s: the machine is busy, or a disk frozen "
            f"(`logclient doctor` tells); until it has, records stay in shared memory"
        )
    if code in (126, 127):  # the shell's words for it
        return f"{sys.executable} cannot be started; records stay in shared memory"
    return f"the agent's launcher ended with {code}: try `logclient doctor`" if code else None


def _wait_for_orphan(end: str, deadline: float) -> int | None:
    """The launcher's exit code; None where it has none in time."""
    while time.monotonic() < deadline:
        try:
            with open(end, "rb", buffering=0) as file:
                line = file.read(16)
        except FileNotFoundError:
            line = b""
        if line.endswith(b"\n"):
            os.unlink(end)
            return int(line)
        time.sleep(_POLL_S)
    return None


def _note(path: str) -> None:
    """The launcher's parent is a child of ours: to be reaped when it has ended."""
    try:
        with open(path, "rb", buffering=0) as file:
            reap.note(int(file.read(16)))
        os.unlink(path)
    except (OSError, ValueError):
        return


def _wait_for_child(pid: int, deadline: float) -> int | None:
    while time.monotonic() < deadline:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # somebody's SIGCHLD handler or os.wait() was faster
            return 0
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_POLL_S)
    return None


def _spawn(command: list[str], dropped: tuple[str, ...], added: dict[str, str], terminal: int) -> int:
    """A child, with signals as they are by default, in a session of its own; its PID."""
    streams: list[Any] = [(os.POSIX_SPAWN_DUP2, 2, terminal)] if terminal else []
    streams += [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    how: dict[str, Any] = {"file_actions": streams, "setsigmask": (), "setsigdef": valid_signals()}
    environment = config.agent_environment(dropped, added)
    try:
        return os.posix_spawn(command[0], command, environment, setsid=True, **how)
    except NotImplementedError:  # glibc before 2.26
        return os.posix_spawn(command[0], command, environment, setpgroup=0, **how)


def is_file_to_tell() -> bool:
    """Is standard error a file, and handed on to what we start?"""
    return terminal_device() != 0 and os.get_inheritable(2)


def say(meeting: Meeting, line: str, deadline: float) -> None:
    """Have the agent, which was started with `tell`, write a line into the file that is standard error."""
    path = meeting.file(SAY)
    try:
        with open(f"{path}.new", "wb", opener=modes.private) as file:
            file.write(f"logclient: {line}\n".encode("utf-8", "backslashreplace"))
        os.rename(f"{path}.new", path)
    except OSError:
        return
    wake(meeting, SUPERVISOR)
    deadline = min(deadline, time.monotonic() + _SAID_WAIT_S)
    while os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def tell_in_file(line: str) -> None:
    """Write a line to standard error where that is a file, by a process that may hang in its disk."""
    if not terminal_device() or not sys.executable:
        return
    code = "import os, sys; os.write(3, sys.argv[1].encode())"
    command = [sys.executable, "-ISc", code, f"logclient: {line}\n"]
    try:
        _wait_for_child(_spawn(command, (), {}, _TERMINAL), time.monotonic() + _TOLD_WAIT_S)
    except OSError:
        return


def map_status(meeting: Meeting) -> memoryview | None:
    """The agent's status page as words (layout.AGENT_...); None where it is gone."""
    try:
        fd = os.open(meeting.file("agent.status"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
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


def _our_folders() -> list[str]:
    """Folders that must come first on the agent's path; site-packages is there already, and must not."""
    folders: list[str] = []
    for name in ("logclient", "logclient_backend"):
        folder = folder_of(name)
        if (
            folder
            and os.path.basename(folder) not in ("site-packages", "dist-packages")
            and folder not in folders
        ):
            folders.append(folder)
    return folders


def _users_folders() -> list[str]:
    """Where the user's program finds modules: what the agent needs may be there alone. The script's own come last."""
    return [path for path in sys.path[1:] + sys.path[:1] if isinstance(path, str) and os.path.isabs(path)]

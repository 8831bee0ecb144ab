"""Starts the first process of an agent and waits for its answer: the second half of `spawn.start_agent`.

Runs in the training process, in `init`, `flush` and `finish` (and in the first `log()` of a forked child when no agent
lives). Loaded by `init`, not with `import logclient`: that is 2 ms.

Invariants:

- neither the launcher, which lives for some 50 ms, nor the agent that it leaves behind is our child (`detached.py`);
  where that cannot be had, the launcher is one, and reaped here;
- the agent starts with null streams, in a session of its own, in an environment without tracers and without what
  changes an interpreter; folders of modules are passed in a file of the shm directory;
- every wait has a deadline; a launcher that hangs (frozen disk) is left behind and said so;
- where no agent can be started, the answer comes at once.
"""

from __future__ import annotations

import os
import select
import time
from _signal import valid_signals  # type: ignore[import-not-found]  # `signal` is 2 ms of import

from .. import config
from ..guest import descriptors
from ..guest.held_signals import let_in
from ..shm import layout, modes, proc
from ..shm.regular import open_regular
from ..shm.shm_dir import AGENT_PATH, ShmDir
from . import detached, interpreter, reap
from .interpreter import NoInterpreter, Starter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_POLL_S = 0.002
_WRITE_WAIT_S = 0.5
_ECHO = "/bin/echo"
_KEPT = "; what is logged waits in shared memory, and `logclient recover` stores it"
_MIN_FILES = 20  # open ones, of each process of an agent: with 14 it got nowhere and never left


def start(
    shm_dir: ShmDir,
    timeout_s: float,
    *,
    check_folder: bool,
    answer: str,
    resume: str,
    strict: bool,
) -> str | None:
    """Start an agent; the implementation of `start_agent`."""
    starter = _find(shm_dir, time.monotonic() + timeout_s)
    if isinstance(starter, str):
        _call_off(shm_dir)
        return starter
    deadline = time.monotonic() + timeout_s
    end = f"{os.urandom(8).hex()}.end"
    words = [*starter.words, "agent", shm_dir.path, f"--trainer={os.getpid()}", f"--end={end}"]
    words += ["--stays"] if starter.is_entry else []
    if check_folder:
        words += [f"--answer={answer}", f"--until={deadline:.3f}", f"--resume={resume}"]
        words += ["--strict"] if strict else []
    reap.ended()  # what earlier runs left
    try:
        process = _Process(words, starter.environment(), stays=starter.is_entry)
        is_done = process.wait(shm_dir.file(end), deadline)
    except OSError as error:
        _call_off(shm_dir)
        return f"{starter.program} cannot be started ({error.strerror}): there is no agent{_KEPT}"
    if is_done is None:
        return (
            f"the agent did not start within {timeout_s:g} s: the machine is busy, or a disk frozen "
            f"(`logclient doctor` tells); until it has, records stay in shared memory"
        )
    if is_done:
        return None
    _call_off(shm_dir)
    return f"{starter.program} ended without starting the agent: try `logclient doctor`{_KEPT}"


def _find(shm_dir: ShmDir, deadline: float) -> Starter | str:
    """Return the way to start the agent, or why there is none."""
    if config.is_agent():
        return "this process was started by an agent of logclient: it starts none"
    if descriptors.is_none_left():
        return f"no agent can be started: this program has no file descriptor left (ulimit -n){_KEPT}"
    if not proc.is_mounted():
        return f"no agent can be started: /proc is not mounted here, and it needs that{_KEPT}"
    files = proc.most_files()
    if files < _MIN_FILES:
        return f"no agent can be started: {files} files may be open (ulimit -Hn), and it needs {_MIN_FILES}{_KEPT}"
    _pass_paths(shm_dir)
    try:  # to ask a Python takes its own time, once per process
        return interpreter.find(_python(shm_dir), shm_dir.file(AGENT_PATH), deadline)
    except NoInterpreter as why:
        return f"{why}{_KEPT}"


def _call_off(shm_dir: ShmDir) -> None:
    """No agent is on its way: whoever waits for one need not."""
    try:
        fd = open_regular(shm_dir.file("agent.status"), os.O_WRONLY)
    except OSError:
        return
    try:
        os.pwrite(fd, bytes(8), 8 * layout.AGENT_CALLED_NS)
    finally:
        os.close(fd)


def _python(shm_dir: ShmDir) -> str:
    given = shm_dir.facts.get("settings")
    named = given.get("python") if isinstance(given, dict) else None
    return str(named or "")


def _pass_paths(shm_dir: ShmDir) -> None:
    """Leave the folders of this program's modules in the shm directory: what the agent needs may be there alone."""
    try:
        folders = b"\0".join(map(os.fsencode, interpreter.module_folders()))
        modes.publish(shm_dir.file(AGENT_PATH), folders, at_once=True)
    except (OSError, ValueError):
        return  # the directory is gone or full: those of an earlier start are there, or it does without


class _Process:
    """A process of ours, started: the first one of an agent, or one that writes a line."""

    def __init__(
        self,
        words: list[str],
        environment: dict[str, str],
        streams: dict[int, int] | None = None,
        *,
        stays: bool = False,
    ) -> None:
        """`streams`: as for `detached.start`; `stays`: it goes on after its answer. Raises OSError."""
        streams = streams or {}
        self._stays = stays
        self._pid = detached.start(words, environment, streams)
        self._is_child = not self._pid
        if self._is_child:
            self._pid = _spawn(words, environment, streams)
        elif reap.got_orphans():
            reap.note(self._pid)

    def wait(self, end: str, deadline: float) -> bool | None:
        """Did it leave the file `end`, which is removed, before it ended? None where it does neither in time."""
        try:
            watch = os.pidfd_open(self._pid)
        except (OSError, AttributeError):
            watch = -1  # gone already, or a kernel before 5.3
        is_done = False
        try:
            while True:
                has_ended = self._has_ended(watch)
                is_done = is_done or _is_taken(end)
                is_late = time.monotonic() >= deadline
                if has_ended or (is_done and (self._stays or is_late)):
                    return is_done
                if is_late:
                    return None
                _nap(watch)
        finally:
            if watch >= 0:
                os.close(watch)

    def _has_ended(self, watch: int) -> bool:
        if self._is_child:
            try:
                return os.waitpid(self._pid, os.WNOHANG)[0] != 0
            except ChildProcessError:  # somebody's SIGCHLD handler or os.wait() was faster
                return True
        if watch >= 0:
            return _is_readable(watch, 0)
        return not proc.start_ticks(self._pid)


def _nap(watch: int) -> None:
    """A moment; signals are let in, if they are held back."""
    with let_in():
        if watch >= 0:
            _is_readable(watch, _POLL_S)
        else:
            time.sleep(_POLL_S)


def _is_readable(watch: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))


def _is_taken(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def _spawn(words: list[str], environment: dict[str, str], streams: dict[int, int]) -> int:
    """A child, with signals as they are by default, in a session of its own; its PID."""
    actions: list[Any] = [(os.POSIX_SPAWN_DUP2, here, there) for there, here in streams.items()]
    actions += [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2) if fd not in streams]
    how: dict[str, Any] = {"file_actions": actions, "setsigmask": (), "setsigdef": valid_signals()}
    try:
        return os.posix_spawn(words[0], words, environment, setsid=True, **how)
    except NotImplementedError:  # glibc before 2.26
        return os.posix_spawn(words[0], words, environment, setpgroup=0, **how)


def write_to_stderr_file(line: str, deadline: float | None = None) -> None:
    """Write a line to the file that is standard error; the implementation of `agent.write_to_stderr_file`."""
    until = time.monotonic() + _WRITE_WAIT_S
    try:
        _Process([_ECHO, f"logclient: {line}"], {}, {1: 2}).wait("", min(deadline or until, until))
    except OSError:
        return  # there is no such program: `status()` and `logclient show` have what is in the line

"""One command of the file of targets: an argv, no shell, the event as JSON on its standard input.

Runs in a child with a deadline (`attempt.py`), which forks the command into a session and process group of its own and
ends that group: at the deadline, and when the command has ended.

Does not: wait for a command that SIGKILL does not reach; end what left the process group by itself.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

_POLL_S = 0.02
_KILL_S = 1.0
_MAX_FDS = 1 << 16
_NOT_RUN = 127  # exit code where the program cannot be executed, as a shell has it


def run(argv: tuple[str, ...], content: bytes, limit_s: float) -> dict[str, Any]:
    """Run it; the result has a code, and for some an exit code or a signal. `content` must fit a pipe (64 KiB)."""
    deadline = time.monotonic() + limit_s
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_command(argv, read_end)
    os.close(read_end)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a command need not read it
    try:
        os.set_blocking(write_end, False)
        os.write(write_end, content)
    except OSError:
        pass
    os.close(write_end)
    is_late = not _has_ended(pid, deadline)
    try:
        os.killpg(pid, signal.SIGKILL)  # its leader is not reaped yet: the number is still that of the group
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)  # it has not got that far
    except PermissionError:
        pass  # a program with the rights of another user
    if not _has_ended(pid, time.monotonic() + _KILL_S):
        return {"code": "stuck"}
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if is_late:
        return {"code": "late"}
    if status == 0:
        return {"code": "delivered"}
    if status == _NOT_RUN:
        return {"code": "not_run"}
    return {"code": "exit", "status": status} if status > 0 else {"code": "signal", "status": -status}


def _has_ended(pid: int, deadline: float) -> bool:
    """Wait until the child has ended, and leave it to be reaped."""
    while True:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)


def _be_command(argv: tuple[str, ...], stdin: int) -> None:
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd, to in ((stdin, 0), (null, 1), (null, 2)):
            os.dup2(fd, to)
        os.closerange(3, _MAX_FDS)
        signal.setitimer(signal.ITIMER_REAL, 0.0)  # the alarm of the process that runs it
        os.chdir("/")
        os.execv(argv[0], argv)
    finally:
        os._exit(_NOT_RUN)

"""The right to read this process's stacks, where Yama restricts it to parents (kernel.yama.ptrace_scope is 1).

Runs in the training process, in `init` and in the first `log` of a forked child: a child does not inherit the right.

The agent's supervisor and its children may then read them; with the setting `ptrace` = any, every process of the same
user. An agent that takes over later has another supervisor, which was given nothing. Elsewhere no call is made.
"""

from __future__ import annotations

import os
import time

from ..guest import stdlib
from ..shm import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .session import Session

SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_RESTRICTED = b"1"  # 0: not restricted; 2 and 3: no process can give the right
_PR_SET_PTRACER = 0x59616D61
ANY = "any"


def is_restricted(scope_file: str) -> bool:
    """Does Yama restrict who may read stacks to those that were given the right?"""
    try:
        fd = os.open(scope_file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # a kernel without Yama
    try:
        return os.read(fd, 16).strip() == _RESTRICTED
    except OSError:
        return False
    finally:
        os.close(fd)


def permit(session: Session, wait_s: float = 0.0, scope_file: str = "") -> None:
    """Let the agent read this process's stacks, where Yama forbids it; wait for a supervisor, at most so long."""
    lanes, page = session.lanes, session.status_page
    if lanes is None or page is None or not is_restricted(scope_file or SCOPE):
        return
    deadline = time.monotonic() + wait_s
    while not page[layout.AGENT_SUPERVISOR] and time.monotonic() < deadline:
        time.sleep(0.002)
    is_here = page[layout.AGENT_PID_NAMESPACE] == lanes.words[layout.FILE_PID_NAMESPACE]
    pid = page[layout.AGENT_SUPERVISOR] if is_here else 0  # a PID of another namespace names somebody else
    lanes.words[layout.PTRACER] = give(pid, session.settings.ptrace)


def give(pid: int, wanted: str) -> int:
    """Give that process, or with `wanted` = any all, the right; return what PTRACER shows then. 0: it was refused."""
    pid = layout.PTRACER_ANY if wanted == ANY else pid
    if not pid:
        return 0
    try:
        ctypes = stdlib.load("ctypes")  # may be missing
        prctl = ctypes.CDLL(None).prctl
        number = ctypes.c_ulong
        done = prctl(_PR_SET_PTRACER, number(pid), number(0), number(0), number(0))
    except (ImportError, OSError, AttributeError):
        return 0
    return pid if done == 0 else 0

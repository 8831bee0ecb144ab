"""Reaps the processes of ours that became our children, where orphans do: in PID 1, and in a child subreaper.

Runs in the training process when a run starts and when it ends; no thread, no signal handler, no call in between.

Elsewhere the agent is nobody's child (`detached.py`). Here the kernel gives us whatever loses its parent: the agent and
what its launcher leaves behind. Ended and not waited for, they would pile up as zombies from run to run.

Invariants:

- a child is reaped only if it has ended and is known as ours: by the name that our processes bear, or by the PID and
  start that was noted of it;
- it is reaped by a descriptor that was opened before it was looked at, so a newcomer with its PID is safe.
"""

from __future__ import annotations

import os

from ..guest import stdlib
from ..shm import proc

NAME = "logclient-agent"  # what all processes of an agent are called; the kernel keeps 15 characters
_PR_GET_CHILD_SUBREAPER = 37  # linux/prctl.h
_noted: dict[int, int] = {}  # PID of a launcher's shell -> its start
_asked: tuple[int, bool] = (0, False)  # by which process, and the answer


def gets_orphans() -> bool:
    """Does the kernel give orphans to this process?"""
    global _asked
    _asked = (os.getpid(), _gets_orphans())
    return _asked[1]


def _gets_orphans() -> bool:
    if os.getpid() == 1:
        return True
    try:
        ctypes = stdlib.load("ctypes")
        answer = ctypes.c_int(0)
        ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return False
    return bool(answer.value)


def got_orphans() -> bool:
    """Return the answer that `init` got: does this process adopt orphans? Makes no system call."""
    return _asked == (os.getpid(), True)


def note(pid: int) -> None:
    """Note a child of ours that does not bear our name; it may have ended already."""
    if _is_child(proc.stat_of(proc.entry_of(pid))):
        _noted[pid] = proc.start_ticks(pid)


def ended() -> None:
    """Reap what has ended. Never waits, never raises."""
    if not gets_orphans():
        _noted.clear()
        return
    try:
        for pid in _children():
            _reap(pid)
    except OSError:
        pass
    for pid, ticks in tuple(_noted.items()):
        if proc.start_ticks(pid) != ticks:
            del _noted[pid]


def _reap(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return  # gone, or a kernel before 5.3
    try:
        if _is_ours(pid, handle):
            os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG)
    except OSError:
        pass  # somebody else has reaped it
    finally:
        os.close(handle)


def _is_ours(pid: int, handle: int) -> bool:
    """An ended child of ours, and known."""
    entry = proc.entry_of(pid, handle)
    found = proc.stat_of(entry)
    if not _is_child(found) or found[proc.STAT_STATE] != b"Z":
        return False
    return proc.name_of(entry) == NAME or _noted.get(pid) == int(found[proc.STAT_START])


def _is_child(found: list[bytes]) -> bool:
    return bool(found) and found[proc.STAT_PARENT].decode() == proc.own_entry()


def _children() -> list[int]:
    entries: list[str] = []
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", "rb", buffering=0) as file:
                entries += file.read().decode().split()
    except FileNotFoundError:  # a kernel without these lists, or a thread that has just ended
        named = [name for name in os.listdir("/proc") if name.isdigit()]
        entries = [entry for entry in named if _is_child(proc.stat_of(entry))]
    return [pid for entry in entries if (pid := proc.pid_of(entry))]

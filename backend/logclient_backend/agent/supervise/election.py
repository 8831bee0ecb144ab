"""The election of a shm directory's supervisor, by a record lock on `agent.lock`.

Invariants:

- the lock counts only while the path of the directory still leads to the folder that holds the locked file;
- who gets it from another PID namespace does not serve while a worker there works: it cannot be watched, nor ended.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable

from logclient.shm import layout
from logclient.shm.proc import pid_namespace
from logclient.shm.regular import open_regular

from ..host.shm_dir_handle import ShmDirHandle
from ..host.status import StatusPage

_LOCK = "agent.lock"
_PROBES_S = 0.3  # somebody may hold the lock for an instant, only to see whether anybody does
_CLOSING_S = 10.0
_NAP_S = 0.02
# of a worker of another PID namespace: a living one looks every two seconds, and is woken besides
_SILENT_S = 3.0


def win(handle: ShmDirHandle, status: StatusPage) -> int | None:
    """The descriptor that holds the lock; None where another supervisor serves this directory, newcomers included.

    A holder that says `closing` may not see newcomers any more: then it is waited for.
    """
    started = time.monotonic()
    while True:
        lock = try_lock(handle)
        if lock is not None or not handle.is_public:
            return lock
        patience = _CLOSING_S if status.words[layout.AGENT_CLOSING] else _PROBES_S
        if time.monotonic() - started > patience:
            return None
        time.sleep(_NAP_S)


def try_lock(handle: ShmDirHandle) -> int | None:
    """The descriptor that holds the lock now; None where another process does, or the directory is another's by now."""
    try:
        fd = open_regular(handle.file(_LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(handle.public, fd):
            return fd
        _take_back(handle, fd)
    except OSError:
        pass
    os.close(fd)
    return None


def _is_at(folder: str, fd: int) -> bool:
    try:
        named = os.stat(os.path.join(folder, _LOCK), follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(fd))


def _take_back(handle: ShmDirHandle, fd: int) -> None:
    """Remove the file that we locked in a folder which its agent is removing, and that folder.

    That agent has removed its own file by then, else the lock would be its. Ours, made since, would keep the folder.
    """
    if _is_at(handle.path, fd):
        os.unlink(handle.file(_LOCK))
        folder = os.readlink(handle.path)
        os.rmdir(folder)
        os.rmdir(os.path.dirname(folder))  # unless other runs are there


def has_foreign_worker(status: StatusPage, wake_it: Callable[[], None] = lambda: None) -> bool:
    """Does a worker of another PID namespace serve this directory, whose supervisor has just died?

    It brings another one as soon as the lock is free. Waits, where there was one, until it shows itself.
    """
    words = status.words
    if words[layout.AGENT_PID_NAMESPACE] in (0, pid_namespace()):
        return False
    beat, started = words[layout.AGENT_WORKER_BEAT], time.monotonic()
    wake_it()
    while words[layout.AGENT_WORKER_BEAT] == beat:
        if time.monotonic() - started > _SILENT_S:
            words[layout.AGENT_WORKER_TICKS] = words[layout.AGENT_SHIPPER_TICKS] = 0  # its PIDs are not ours
            return False
        time.sleep(_NAP_S)
    return True

"""Process identity: the current process, whether it was forked, and whether another one still lives.

Runs in the training process (`ForkMark`, `LiveLock`) and in the agent (`is_alive`).

Invariants:

- a fork is noticed without a system call: one byte in a page that the kernel wipes in the child, also when
  the fork was made in C; `os.getpid()` where the kernel refuses such pages;
- a process proves that it lives by a record lock on a small file of its own, opened once and never again in
  that process: closing any descriptor of it would free the lock. Record locks are not inherited by fork;
- a PID alone proves nothing: it may be reused, belong to another PID namespace, or have become another program: `exec`
  keeps PID and start, closes the lock and drops the mapping of the lane file.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from struct import calcsize, pack, unpack

from ..guest.descriptors import close_own, identity
from . import modes
from .proc import STAT_START, STAT_STATE, entry_of, has_mapped, pid_namespace, stat_of
from .regular import OddFile, open_regular

_MADV_WIPEONFORK = 18  # linux/mman.h; not in the mmap module
_FLOCK = "hhlli"  # struct flock: type, whence, start, length, pid
_held: dict[str, int] = {}  # live files that a process (PID) holds: it must never open them again


class ForkMark:
    """`mark[0]` is 1 in the process that made or set it, 0 in any child forked since."""

    __slots__ = ("page",)

    def __init__(self) -> None:
        self.page: mmap.mmap | PidMark
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            page.madvise(_MADV_WIPEONFORK)
        except (OSError, ValueError):  # kernel before 4.14, or no Linux
            self.page = PidMark()
        else:
            self.page = page
        self.page[0] = 1


class PidMark:
    """A fork mark by PID, for kernels that wipe no page: one system call a look."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = 0

    def __getitem__(self, index: int) -> int:
        return int(os.getpid() == self._pid)

    def __setitem__(self, index: int, value: int) -> None:
        self._pid = os.getpid()


class LiveLock:
    """Held from creation to `release` or the process's end, whichever is first."""

    __slots__ = ("_fd", "_identity", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        making = path + modes.MAKING
        fd = modes.new_file(making, os.O_RDWR)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _held[path] = os.getpid()
            os.rename(making, path)  # visible only once it is locked
        except BaseException:
            _held.pop(path, None)
            os.close(fd)
            modes.remove(making)
            raise
        self._identity = identity(fd)
        self._fd: int | None = fd

    def release(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            _held.pop(self.path, None)
            close_own(fd, self._identity)

    def forget(self) -> None:
        """In a forked child: the parent's lock is not ours; close the copy of its descriptor."""
        self.release()


def is_locked(path: str) -> bool:
    """Does a process hold the record lock on this file? False where the file is gone.

    Only asks, and never takes the lock for a moment: somebody who tries to get it just then would give up.
    """
    if _held.get(path) == os.getpid():
        return True
    try:
        fd = open_regular(path, os.O_RDWR)
    except OddFile:
        return False
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # else it cannot be told: alive
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return True
    finally:
        os.close(fd)
    return bool(unpack(_FLOCK, answer[: calcsize(_FLOCK)])[0] != fcntl.F_UNLCK)


def is_alive(lock_path: str, pid: int, ticks: int, namespace: int, mapped: str = "") -> bool:
    """Dead means: lock free and, in this PID namespace, no such process any more. Else alive.

    `mapped` names a file that the process has mapped as long as it is the same program: `exec` keeps PID and start.
    A program that closes all descriptors loses its lock and lives on.
    """
    if is_locked(lock_path):
        return True
    if namespace and namespace == pid_namespace():
        entry = entry_of(pid)
        found = stat_of(entry)
        is_it = found and ticks != 0 and int(found[STAT_START]) == ticks
        is_there = bool(is_it and found[STAT_STATE] not in (b"Z", b"X"))
        return is_there and not (mapped and has_mapped(entry, mapped) is False)
    return False

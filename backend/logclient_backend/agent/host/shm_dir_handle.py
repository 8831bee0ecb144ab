"""The shm directory by descriptor, and what is kept of it so that a dead worker or a removed folder costs nothing.

Used by supervisor and worker alike. A worker inherits by fork what its supervisor keeps, and a supervisor that a
worker forked what that worker keeps.

Invariants:

- the folder is reached through its descriptor only: another one at the same path is never taken for it;
- a lane file or staged segment, once seen, is kept open until the worker marked it as done (a lane file by a word, a
  segment by its size 0), whether it is still listed or not; under a low limit of open files the lane files that come
  last are opened by name;
- what was once found out about the run folder is known also after a removal;
- with a lane file goes what tells whether its process lives: a watch on it, which can be asked why it ended even
  after it was reaped, or where PIDs mean nothing (another PID namespace, a process that /proc hides) the file that
  it keeps locked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from logclient.shm import layout, refusals, regular
from logclient.shm.proc import has_mapped, pid_namespace
from logclient.shm.shm_dir import ShmDir
from logclient.shm.side_stream import side_of, suffix_of
from logclient.shm.stop_requests import SUFFIX as REQUEST

from ...wal.segment import parse_name
from . import rlimits
from .process_handle import Watch

LANES, SEGMENT, SPARE, NOTE = ".lanes", ".wal", ".spare", ".spooled"
_STEM = 32  # hex digits of a process id
_FDS_EACH = 2  # file, process
_FDS_ELSE = 64  # for all else that the agent opens
_SWEPT = (1).to_bytes(8, "little")
_OPEN = layout.STATE_OPEN.to_bytes(8, "little")
_COARSE_NS = 50_000_000  # two changes in this time may have the same time stamp
_MAPS_EVERY_S = 1.0  # of a process whose lock is free, and which maps much
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux


class Kept:
    """One file of the directory; of a lane file also `watch` or `_live`, which show whether its process lives."""

    __slots__ = ("_asked_at", "_handle", "_is_lanes", "_live", "fd", "is_replaced", "name", "watch")

    def __init__(self, handle: ShmDirHandle, name: str, fd: int, *, stays_open: bool = True) -> None:
        """`fd` is closed where the file shall not stay open: then it is opened by its name when it is needed."""
        self.name = name
        self.fd = fd
        self.watch: Watch | None = None
        self.is_replaced = False  # its process has become another program
        self._handle = handle
        self._asked_at = 0.0
        self._live = -1
        self._is_lanes = holds_lanes(name)
        if self._is_lanes:
            self.watch = watch_of(fd)
            if self.watch is None and stays_open:
                self._live = open_regular(handle.file(f"{name[:_STEM]}.live"))
        if not stays_open:
            os.close(fd)
            self.fd = -1
            if self.watch is not None and not self.watch.is_known:
                self.watch.close()  # its PID and start are known

    def is_alive(self) -> bool:
        """May anything still come from its process?"""
        if self.watch is None:
            return _is_locked(self._live) if self._live >= 0 else self._is_locked_by_name()
        if self.is_replaced or self.watch.has_ended():
            return False
        return not self._has_become_another(self.watch)

    def _has_become_another(self, watch: Watch) -> bool:
        """`exec` keeps PID, start and pidfd; it closes the file with the lock, and then the lane file is not mapped.

        Looked at where the lock is free: a program that closes all descriptors has none and goes on. One that gave up
        its lanes has none either.
        """
        if self._is_locked_by_name():
            return False
        now = time.monotonic()
        if now - self._asked_at < _MAPS_EVERY_S and self._asked_at:
            return False
        if self._word(layout.STATE) == _OPEN:
            self.is_replaced = has_mapped(watch.entry, self.name[:_STEM]) is False and not watch.has_ended()
            self._asked_at = now
        return self.is_replaced

    def _is_locked_by_name(self) -> bool:
        live = open_regular(self._handle.file(f"{self.name[:_STEM]}.live"))
        if live < 0:
            return False
        try:
            return _is_locked(live)
        finally:
            os.close(live)

    @property
    def stem(self) -> str:
        """The name of a lane file without its suffix: its process, in hex."""
        return self.name[:_STEM]

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the file, inside the `with`. Raises OSError where none is to be had."""
        if self.fd >= 0:
            yield self.fd
            return
        fd = open_regular(self._handle.file(self.name))
        if fd < 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.name)
        try:
            yield fd
        finally:
            os.close(fd)

    def _word(self, index: int) -> bytes:
        """One word of a lane file; empty where it cannot be read."""
        try:
            with self.opened() as fd:
                return os.pread(fd, 8, 8 * index)
        except OSError:
            return b""

    @property
    def is_open(self) -> bool:
        """Is the process of this lane file alive, and has it not given up its lanes?"""
        if not self.is_alive() or self._word(layout.STATE) != _OPEN:
            return False
        return self._word(layout.DROPPED) != self._word(layout.FILE_PID)

    @property
    def is_done(self) -> bool:
        """Marked by the worker: nothing of it is needed any more."""
        if self._is_lanes:
            is_gone = self.fd < 0 and not os.path.lexists(self._handle.file(self.name))
            return is_gone or self._word(layout.SWEPT) == _SWEPT
        return os.fstat(self.fd).st_size == 0

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        if self._live >= 0:
            os.close(self._live)
        if self.watch is not None:
            self.watch.close()


class ShmDirHandle:
    """A shm directory held open, as long as its agent lives."""

    def __init__(self, shm_dir: ShmDir) -> None:
        """Raises OSError where the folder is gone."""
        self.public = shm_dir.path
        self.fd = os.open(shm_dir.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self.path = f"/proc/self/fd/{self.fd}"
        self.shm_dir = ShmDir(self.path, shm_dir.facts)
        self._kept: dict[int, Kept] = {}  # by inode
        self.answer: dict[str, Any] = {}  # about the run folder, once it is there
        self.requests: list[str] = []  # names of files by which somebody asks for a stop or a save
        self.changes = (
            0  # grows with every look that found another file to keep, or an answer about the run folder
        )
        self._seen_ns = 0  # when the folder had changed last when it was listed
        self._met_ns = self._met_at_ns = (
            0  # its last change, and when that was seen first, by the monotonic clock
        )

    def file(self, name: str) -> str:
        """A path that leads into this very folder, wherever it is."""
        return f"{self.path}/{name}"

    @property
    def refused(self) -> int:
        """Records that processes without lanes have refused."""
        return refusals.read(self.shm_dir)

    @property
    def is_removed(self) -> bool:
        return os.fstat(self.fd).st_nlink == 0

    @property
    def is_public(self) -> bool:
        """Does its path still lead to it?"""
        try:
            there = os.stat(self.public, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self.fd))

    def changed_ns(self) -> int:
        """Return the time of the folder's last change, to compare later; 0: it may change again without a trace."""
        changed_ns, now_ns = os.fstat(self.fd).st_mtime_ns, time.monotonic_ns()
        if (
            changed_ns != self._met_ns
        ):  # the wall clock may be set, and then says nothing of how long ago that was
            self._met_ns, self._met_at_ns = changed_ns, now_ns
        return changed_ns if now_ns - self._met_at_ns > _COARSE_NS else 0

    def has_changed_since(self, changed_ns: int) -> bool:
        """Was a file made or removed in the folder since `changed_ns` was asked?"""
        return os.fstat(self.fd).st_mtime_ns != changed_ns

    def has_changed(self) -> bool:
        """Was a file made or removed since the folder was listed?"""
        return self.has_changed_since(self._seen_ns)

    def look(self) -> None:
        """Keep what is new in the folder, let go of what is gone from it and done."""
        if not self.has_changed():
            return
        self._seen_ns = self.changed_ns()
        if not self.answer.get("dir"):
            self.answer = self.shm_dir.folder_answer()
            self.changes += 1
        listed, self.requests = set(), []
        with os.scandir(self.path) as entries:
            for entry in entries:
                if not is_kept(entry.name):
                    if entry.name.endswith(REQUEST):
                        self.requests.append(entry.name)
                    continue
                inode = entry.inode()
                listed.add(inode)
                kept = self._kept.get(inode)
                if kept is not None:
                    kept.name = entry.name  # a spare segment was put to use, or the other way round
                else:
                    self._keep(inode, entry.name)
        for inode in self._kept.keys() - listed:
            if self._kept[inode].is_done:
                self._kept.pop(inode).close()

    def _keep(self, inode: int, name: str) -> None:
        fd = open_regular(self.file(name))
        if fd < 0:  # swept since it was listed, nothing that we would read, or no descriptor is left
            self._seen_ns = 0 if holds_lanes(name) and os.path.lexists(self.file(name)) else self._seen_ns
            return
        if os.fstat(fd).st_ino == inode:
            stays_open = not is_lane_file(name) or self._may_keep_open()
            self._kept[inode] = Kept(self, name, fd, stays_open=stays_open)
            self.changes += 1
        else:
            os.close(fd)  # replaced since: the next look finds what is there

    def _may_keep_open(self) -> bool:
        """Under a low limit lane files are opened by name: a removed folder then costs what is not mapped yet."""
        return len(self._kept) * _FDS_EACH + _FDS_ELSE <= rlimits.most_files()

    def kept(self) -> Iterator[Kept]:
        """The files that are kept open now."""
        return iter(tuple(self._kept.values()))

    def descriptors(self) -> list[int]:
        """Return the descriptors that this handle holds: of its folder and of the files that it keeps."""
        return [self.fd, *(kept.fd for kept in self._kept.values() if kept.fd >= 0)]

    def let_go(self, kept: Kept) -> None:
        """It is done."""
        for inode, other in tuple(self._kept.items()):
            if other is kept:
                del self._kept[inode]
                kept.close()


def is_lane_file(name: str) -> bool:
    """A name as `logclient.encode.lanes` gives them?"""
    return name.endswith(LANES) and len(name) == _STEM + len(LANES) and _is_hex(name[:_STEM])


def side_of_file(name: str) -> str:
    """Return the side of whose records this is a lane file, by its name; empty: of none."""
    side = side_of(name)
    return side if side and name[_STEM:] == suffix_of(side) and _is_hex(name[:_STEM]) else ""


def holds_lanes(name: str) -> bool:
    """Is it a lane file of a process that logs, or one of a side?"""
    return is_lane_file(name) or bool(side_of_file(name))


def is_kept(name: str) -> bool:
    """A file that must outlive a worker?"""
    if name.endswith(SEGMENT):
        return parse_name(name) is not None
    return holds_lanes(name) or name.endswith((SPARE, NOTE))


def open_regular(path: str) -> int:
    """A regular file; -1 where it is none, or gone."""
    try:
        return regular.open_regular(path, os.O_RDWR)
    except OSError:
        return -1


def _is_locked(fd: int) -> bool:
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind: int = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))[0]
    return kind != fcntl.F_UNLCK


def _is_hex(text: str) -> bool:
    return not set(text) - set("0123456789abcdef")


def watch_of(fd: int) -> Watch | None:
    """On the process that the header of this lane file names; None where nobody can tell by a PID."""
    head = memoryview(os.pread(fd, 8 * (layout.FILE_RANK + 1), 0))
    if len(head) < 8 * (layout.FILE_RANK + 1):
        return None
    words = head.cast("Q")
    namespace = words[layout.FILE_PID_NAMESPACE]
    if words[layout.FILE_MAGIC] != layout.MAGIC or not namespace or namespace != pid_namespace():
        return None
    watch = Watch(words[layout.FILE_PID], words[layout.FILE_START_TICKS])
    return watch if watch.is_sure else None

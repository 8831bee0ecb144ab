"""The stop file: a file whose appearance asks for a stop. A process of its own looks for it.

`StopFile` runs in the supervisor, with each of its looks: it forks the process that reads, and replaces one that hangs
or has died. `_Reader` is that process: it alone touches the disk that the file is on.

Invariants:

- a disk that hangs stops the reader and nobody else; at most `_MAX_LEFT` readers that cannot be killed (state D) are
  left behind, then their end is waited for;
- a file is reported once, by its identity (inode and time of its last change): to ask again, touch it;
- a file that was there before the run is none of its requests: it is reported as stale;
- what is shown of a file is its first line, bounded and without control characters, and the owner that the file system
  names.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from typing import Any

from logclient.shm import layout, stop_requests
from logclient.shm.regular import open_regular

from ..host.pauses import Pipe
from ..host.process_handle import Watch
from ..host.shm_dir_handle import ShmDirHandle
from ..host.status import StatusPage

EVERY_S = 0.5  # between two looks at the file
_HANGS_S = 5.0  # without a look: the reader is replaced
_LONG_LIFE_S = 60.0
_MAX_BACKOFF_S = 60.0
_MAX_LEFT = 3
_WAS_LOOKED_FOR, _ASKS_NAME = 1, 2  # flags of the status page


class StopFile:
    """Keeps a reader of the stop file running; one per supervisor."""

    def __init__(self, handle: ShmDirHandle, status: StatusPage, worker: Pipe, path: str) -> None:
        """`path`: empty where there is none; `worker` is rung when a request was handed in."""
        self._handle = handle
        self._status = status
        self._worker = worker
        self._path = path
        self._reader: Watch | None = None
        self._left: list[Watch] = []  # killed, and not dead yet
        self._started = self._not_before = 0.0
        self._failures = 0

    def look(self) -> None:
        """Start a reader where there is none, and replace one that hangs."""
        if not self._path:
            return
        self._left = [each for each in self._left if not each.reap()]
        now = time.monotonic()
        if self._reader is not None and self._reader.has_ended():
            self._reader.reap()
            self._gone(now)
        elif self._reader is not None and self._hangs(now):
            self._reader.kill()
            if not self._reader.reap():
                self._left.append(self._reader)
            self._gone(now)
        if self._reader is None and now >= self._not_before and len(self._left) < _MAX_LEFT:
            self._start(now)

    def _hangs(self, now: float) -> bool:
        silent_s = self._status.age_s(layout.STOP_FILE_BEAT)
        return min(silent_s, now - self._started) > _HANGS_S

    def _gone(self, now: float) -> None:
        self._reader = None
        self._failures = 1 if now - self._started > _LONG_LIFE_S else self._failures + 1
        self._not_before = now + min(_MAX_BACKOFF_S, 0.5 * 2 ** min(self._failures - 1, 10))

    def _start(self, now: float) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # no process left for this user
            self._not_before = now + _MAX_BACKOFF_S
            return
        if pid == 0:
            try:
                _Reader(self._handle, self._status, self._worker, self._path).run(parent)
            finally:
                os._exit(0)
        self._reader, self._started = Watch(pid), now

    def end(self) -> None:
        """Nothing more is asked for: the reader ends, or stays behind until its disk answers."""
        if self._reader is not None:
            self._reader.kill()
            self._reader.reap()
            self._reader = None


class _Reader:
    """Looks for the file, in a process of its own, which may hang."""

    def __init__(self, handle: ShmDirHandle, status: StatusPage, worker: Pipe, path: str) -> None:
        self._handle = handle
        self._status = status
        self._words = status.words
        self._worker = worker
        self._path = path
        self._empty = 0  # identity of a file that had no line yet at the last look

    def run(self, parent: int) -> None:
        """Look until the supervisor is gone."""
        for kept in self._handle.kept():
            self._handle.let_go(kept)  # a descriptor of ours would hold memory that is given back
        while os.getppid() == parent:
            self._look()
            self._words[layout.STOP_FILE_FLAGS] |= _WAS_LOOKED_FOR
            self._status.beat(layout.STOP_FILE_BEAT)
            time.sleep(EVERY_S)

    def _look(self) -> None:
        try:
            found = os.lstat(self._path)
        except OSError:
            return
        identity = _identity(found)
        if identity == self._words[layout.STOP_FILE_SEEN]:
            return
        line = self._first_line()
        if not line and self._empty != identity:  # whoever makes it may be just about to write the reason
            self._empty = identity
            return
        request: dict[str, Any] = {
            "id": f"{identity:016x}",
            "kind": stop_requests.STOP,
            "reason": line,
            "by": self._owner(found.st_uid),
            "via": stop_requests.STOP_FILE,
            "time_ns": found.st_mtime_ns,
            "stale": self._is_stale(found),
        }
        try:
            stop_requests.ask(self._handle.shm_dir, request)
        except OSError:
            return  # tmpfs is full: the next look tries again
        self._words[layout.STOP_FILE_SEEN] = identity
        self._worker.ring()

    def _first_line(self) -> str:
        """Return the first line; empty where it has none, or the file may not be read: that it is there is enough."""
        try:
            fd = open_regular(self._path, max_bytes=1 << 62)
        except OSError:
            return ""
        try:
            data = os.read(fd, 4 * stop_requests.MAX_REASON)
        except OSError:
            return ""
        finally:
            os.close(fd)
        return stop_requests.one_line(
            data.partition(b"\n")[0].decode("utf-8", "replace"), stop_requests.MAX_REASON
        )

    def _is_stale(self, found: os.stat_result) -> bool:
        """Was it there at the first look of all, and before the run began?"""
        created = self._handle.shm_dir.facts.get("created_ns")
        is_first = not self._words[layout.STOP_FILE_FLAGS] & _WAS_LOOKED_FOR
        return is_first and type(created) is int and found.st_mtime_ns < created

    def _owner(self, uid: int) -> str:
        """Return the name of a user. A directory service may be asked for it, which may hang: that is tried once."""
        words = self._words
        if words[layout.STOP_FILE_FLAGS] & _ASKS_NAME:
            return f"uid {uid}"
        words[layout.STOP_FILE_FLAGS] |= _ASKS_NAME
        try:
            import pwd

            return pwd.getpwuid(uid).pw_name
        except (ImportError, KeyError):
            return f"uid {uid}"
        finally:
            words[layout.STOP_FILE_FLAGS] &= ~_ASKS_NAME


def _identity(found: os.stat_result) -> int:
    """Return 64 bits that another file, or another change of this one, does not have."""
    kind = stat.S_IFMT(found.st_mode)
    text = f"{found.st_dev} {found.st_ino} {kind} {found.st_mtime_ns} {found.st_uid}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") or 1

"""Stand-ins for what the product calls through a seam, each with the faults that tests make."""

from __future__ import annotations

import errno
import os
import time

from logclient_backend.collector.store.clock import Clock
from logclient_backend.wal.files import RealFiles


class Crash(BaseException):
    """The process died here: nothing below catches it."""


class FaultyFiles(RealFiles):
    """Real files that fail as told.

    - `room`: bytes that may still be written; a write beyond writes what fits and raises ENOSPC;
    - `fail`: {call: (number, errno)}: that call, counted from 1, raises (a `pwrite` after writing half);
    - `crash_at`: the call with that number, of those that change something, raises `Crash` (a `pwrite` after half);
    - `fsync_s`: how long each fsync takes.
    """

    def __init__(
        self,
        *,
        room: int | None = None,
        fail: dict[str, tuple[int, int]] | None = None,
        crash_at: int = 0,
        fsync_s: float = 0.0,
    ) -> None:
        self.room = room
        self.fail = fail or {}
        self.crash_at = crash_at
        self.fsync_s = fsync_s
        self.calls: dict[str, int] = {}
        self.changes = 0
        self.log: list[str] = []  # the calls that change something, in order

    def _step(self, call: str) -> OSError | Crash | None:
        """Count the call and say how it is to fail."""
        self.calls[call] = self.calls.get(call, 0) + 1
        number, code = self.fail.get(call, (0, 0))
        if self.calls[call] == number:
            return OSError(code, os.strerror(code))
        if call not in ("open", "pread", "list", "size"):
            self.changes += 1
            self.log.append(call)
            if self.changes == self.crash_at:
                return Crash(f"in {call}")
        return None

    def _raise(self, call: str) -> None:
        fault = self._step(call)
        if fault is not None:
            raise fault

    def open(self, path: str, flags: int) -> int:
        self._raise("open")
        return super().open(path, flags)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self._raise("pread")
        return super().pread(fd, size, offset)

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        fault = self._step("pwrite")
        if fault is not None:
            super().pwrite(fd, data[: len(data) // 2], offset)
            raise fault
        if self.room is not None:
            new = max(0, offset + len(data) - self.size(fd))  # what is reserved has its room already
            if new > self.room:
                fits = len(data) - new + self.room
                self.room = 0
                super().pwrite(fd, data[:fits], offset)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= new
        super().pwrite(fd, data, offset)

    def fallocate(self, fd: int, size: int) -> None:
        self._raise("fallocate")
        if self.room is not None:
            new = max(0, size - self.size(fd))
            if new > self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= new
        super().fallocate(fd, size)

    def fsync(self, fd: int) -> None:
        self._raise("fsync")
        if self.fsync_s:
            time.sleep(self.fsync_s)

    def truncate(self, fd: int, size: int) -> None:
        self._raise("truncate")
        super().truncate(fd, size)

    def rename(self, source: str, target: str) -> None:
        self._raise("rename")
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._raise("unlink")
        super().unlink(path)

    def list(self, folder: str) -> list[str]:
        self._raise("list")
        return super().list(folder)

    def fsync_folder(self, folder: str) -> None:
        self._raise("fsync_folder")


class SetClock(Clock):
    """Stands still, but for `pass_s`; its wall's half can be set."""

    def __init__(self, wall_ns: int) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = 1_000_000_000_000

    def wall_ns(self) -> int:
        return self._wall_ns

    def steady_ns(self) -> int:
        return self._steady_ns

    def pass_s(self, seconds: float) -> None:
        """Time passes, by both."""
        self._wall_ns += int(seconds * 1e9)
        self._steady_ns += int(seconds * 1e9)

    def set_by_s(self, seconds: float) -> None:
        """Somebody sets the wall's clock forth, or back."""
        self._wall_ns += int(seconds * 1e9)

"""Blobs in the run folder: each stored once, under the SHA-256 of its bytes; the oldest go where there are too many.

Runs in the media process, and may hang as long as the disk does. ::

    <run folder>/media/<first 2 hex digits>/<sha256>
    <run folder>/media/trimmed.json     how many were removed to keep to the budget, and their bytes

Invariants:

- a blob has its name when it is whole and past an fsync, and after `settle` the name is, too; several blobs are settled
  together, since the folders' fsyncs are the dearest part;
- what an earlier process began (`*.new`) is removed before anything is written;
- a file that a user named is copied piece by piece, so its size needs no memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator

from logclient.shm.regular import MAX_STORE_BYTES, open_regular, read_object

from ...runs.media_reference import FOLDER, blob_path
from ...wal.files import REAL, discard
from ...wal.whole import write_whole
from .pixels import BadValue

MAX_FILE = 4 << 30
_PIECE = 1 << 20
_MAKING = ".new"
_KEEP = 0.9  # of the budget, once it is exceeded: so not each blob makes all of them be listed


class Blob:
    """One that was added."""

    __slots__ = ("sha256", "size", "start")

    def __init__(self, sha256: str, size: int, start: bytes) -> None:
        self.sha256 = sha256
        self.size = size
        self.start = start  # its first bytes


class BlobFolder:
    """The blobs of one run folder."""

    def __init__(self, run_folder: str, budget_bytes: int) -> None:
        """Make the folder if it is not there. Raises OSError."""
        self.path = f"{run_folder}/{FOLDER}"
        self._budget = budget_bytes
        self._number = 0
        self._waiting: dict[str, tuple[str, int]] = {}  # by hash: path as it is made, descriptor
        if not os.path.isdir(self.path):
            os.mkdir(self.path)
            REAL.fsync_folder(run_folder)
        self._used = 0
        for entry in _entries(self.path):
            self._used += entry.stat(follow_symlinks=False).st_size
        for name in os.listdir(self.path):
            if name.endswith(_MAKING):
                discard(REAL, f"{self.path}/{name}")

    def add(self, data: bytes) -> Blob:
        """Write a blob; it is stored with `settle`. Raises OSError."""
        return self._add([data])

    def add_file(self, path: str) -> Blob:
        """Copy a user's file. Raises OSError where it cannot be written, BadValue where it cannot be read."""
        try:
            fd = open_regular(os.path.realpath(path), max_bytes=MAX_STORE_BYTES)
        except (OSError, ValueError) as error:
            raise BadValue(
                f"{path[:200]!r} cannot be read: {getattr(error, 'strerror', None) or error}"
            ) from None
        try:
            if os.fstat(fd).st_size > MAX_FILE:
                raise BadValue(f"{path[:200]!r} has more than {MAX_FILE:,} bytes")
            return self._add(_pieces(fd, path))
        finally:
            os.close(fd)

    def _add(self, pieces: Iterable[bytes]) -> Blob:
        self._number += 1
        making = f"{self.path}/{os.getpid()}-{self._number}{_MAKING}"
        fd = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            digest, size, start = hashlib.sha256(), 0, b""
            for piece in pieces:
                digest.update(piece)
                start = start or piece[:4096]
                REAL.pwrite(fd, piece, size)
                size += len(piece)
            blob = Blob(digest.hexdigest(), size, start)
            if blob.sha256 in self._waiting or self._is_there(blob):
                os.close(fd)
                discard(REAL, making)
            else:
                self._waiting[blob.sha256] = making, fd
            return blob
        except BaseException:
            os.close(fd)
            discard(REAL, making)
            raise

    def _is_there(self, blob: Blob) -> bool:
        path = blob_path(self.path, blob.sha256)
        try:
            if os.stat(path, follow_symlinks=False).st_size != blob.size:
                return False
            os.utime(path)  # as young as the newest value that refers to it
        except OSError:
            return False
        return True

    @property
    def waiting(self) -> int:
        """Blobs that were added and are not settled."""
        return len(self._waiting)

    def settle(self) -> None:
        """Bring all that was added past an fsync, under its name. Raises OSError; then nothing of it counts."""
        folders = set()
        try:
            for _, fd in self._waiting.values():
                os.fsync(fd)
                self._used += os.fstat(fd).st_size
            for sha256, (making, _) in self._waiting.items():
                path = blob_path(self.path, sha256)
                folder = os.path.dirname(path)
                if folder not in folders and not os.path.isdir(folder):
                    os.mkdir(folder)
                    folders.add(self.path)
                os.rename(making, path)
                folders.add(folder)
            for folder in sorted(folders):
                REAL.fsync_folder(folder)
        finally:
            self.drop()
        if self._used > self._budget:
            self._trim()

    def drop(self) -> None:
        """Forget what was added and is not settled."""
        for making, fd in self._waiting.values():
            os.close(fd)
            discard(REAL, making)
        self._waiting.clear()

    def _trim(self) -> None:
        found = [(entry.stat(follow_symlinks=False), entry.path) for entry in _entries(self.path)]
        found.sort(key=lambda each: each[0].st_mtime_ns)
        used, gone, freed = sum(stat.st_size for stat, _ in found), 0, 0
        for stat, path in found[:-1]:  # the newest one stays, whatever the budget is
            if used - freed <= _KEEP * self._budget:
                break
            discard(REAL, path)
            gone, freed = gone + 1, freed + stat.st_size
        self._used = used - freed
        if gone:
            before = trimmed(self.path)
            table = {"blobs": before[0] + gone, "bytes": before[1] + freed}
            write_whole(f"{self.path}/trimmed.json", json.dumps(table).encode())


def trimmed(folder: str) -> tuple[int, int]:
    """Return how many blobs were removed from this folder to keep to its budget, and their bytes."""
    found = read_object(f"{folder}/trimmed.json", max_bytes=1 << 16) or {}
    blobs, size = found.get("blobs"), found.get("bytes")
    return (blobs if type(blobs) is int else 0), (size if type(size) is int else 0)


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the blobs that are there."""
    for name in sorted(os.listdir(folder)):
        if len(name) == 2 and os.path.isdir(f"{folder}/{name}"):
            with os.scandir(f"{folder}/{name}") as entries:
                yield from [entry for entry in entries if len(entry.name) == 64]


def _pieces(fd: int, path: str) -> Iterator[bytes]:
    left = MAX_FILE
    while left > 0:
        try:
            piece = os.read(fd, _PIECE)
        except OSError as error:
            raise BadValue(f"{path[:200]!r} cannot be read: {error.strerror}") from None
        if not piece:
            return
        left -= len(piece)
        yield piece
    raise BadValue(f"{path[:200]!r} has more than {MAX_FILE:,} bytes")

"""The open segment, and its copy in the run folder.

`OpenSegment` is used by one thread (the agent's drain thread, on tmpfs); a `Replica` by another, which may hang on
the disk. They share nothing but the file: a replica reads it through a descriptor, up to an `end` that it is given.

Invariants:

- bytes below `end` never change, so copying them twice, or late, by whoever, writes the same bytes at the same place;
- an append that fails leaves `end` where it was and zeros behind it;
- a copy that does not start at 0 never makes a file: one that was sealed meanwhile stays gone.

Does not: decide when to rotate, copy, fsync or seal.
"""

from __future__ import annotations

import os

from logclient.errors import Corrupt
from logclient.shm.columns import Columns

from .codec import Codec
from .coverage import Spans
from .encoded import StreamColumns
from .files import CREATE, NEW, WRITE, Files, read_file
from .scan import Damage, Gap, Scan
from .segment import SegmentEncoder, parse_name, segment_name

CHUNK_BYTES = 1 << 20


class OpenSegment:
    """A segment that is being written. Made by `create` or `adopt`."""

    def __init__(
        self, files: Files, path: str, fd: int, encoder: SegmentEncoder, capacity_bytes: int
    ) -> None:
        self.path = path
        self.fd = fd
        self.end = 0
        self.summary = Spans()
        self.damage: list[Damage] = []  # found by `adopt`
        self.torn: list[Damage] = []  # cut by `adopt`
        self.capacity_bytes = capacity_bytes
        self._files = files
        self._encoder = encoder
        self._reserved = 0
        self._may_append = True

    @classmethod
    def create(
        cls, files: Files, folder: str, writer: bytes, number: int, created_ns: int, capacity_bytes: int
    ) -> OpenSegment:
        """Reserve a new file and write its header; `OSError` (and no file) where there is no room."""
        encoder = SegmentEncoder(writer, number, created_ns)
        path = os.path.join(folder, segment_name(writer, number))
        fd = files.open(path, NEW)
        made = cls(files, path, fd, encoder, capacity_bytes)
        try:
            files.fallocate(fd, capacity_bytes)
            made._reserved = capacity_bytes
            made._put(encoder.header())
        except BaseException:
            files.close(fd)
            files.unlink(path)
            raise
        return made

    @classmethod
    def adopt(cls, files: Files, path: str, *, append: bool = False, synced: int = 0) -> OpenSegment:
        """Take over the segment of a dead writer: scan it, cut its torn tail.

        `append` goes on writing it. Leave that out while its writer could still be stuck in a system call.
        Damage below `synced` is reported in `damage` and not cut. `Unsupported` and `OSError` pass through.
        """
        name = os.path.basename(path)
        parsed = parse_name(name)
        if parsed is None or parsed.is_sealed:
            raise Corrupt(path, 0, "a name <writer>-<number>.wal", name)
        fd = files.open(path, WRITE)
        try:
            size = files.size(fd)
            data = files.pread(fd, size, 0)
            scan = Scan(data, name=name, synced=synced)
            created_ns = scan.header.created_ns if scan.header else 0
            made = cls(files, path, fd, SegmentEncoder(parsed.writer, parsed.number, created_ns), size)
            made._reserved = size
            made._read(scan, data)
            made._may_append = append and scan.header is not None and not made.damage
        except BaseException:
            files.close(fd)
            raise
        return made

    def _read(self, scan: Scan, data: bytes) -> None:
        for item in scan.items():
            if isinstance(item, StreamColumns):
                self.summary.of(item.stream, item.process, item.lane).add(item.columns)
            elif isinstance(item, Gap):
                self.summary.of(item.stream, item.process, item.lane).add_gap(
                    item.first, item.last, item.cause
                )
            else:
                self.damage.append(item)
        self.end = scan.end
        self.torn = scan.torn
        if scan.torn:
            start = scan.torn[0].offset
            self._files.pwrite(self.fd, bytes(len(data.rstrip(b"\0")) - start), start)
        self._encoder.go_on({entry[:3]: index for index, entry in scan.streams.items()}, scan.shapes)

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def writer(self) -> bytes:
        return self._encoder.writer

    @property
    def number(self) -> int:
        return self._encoder.number

    @property
    def created_ns(self) -> int:
        return self._encoder.created_ns

    @property
    def may_append(self) -> bool:
        return self._may_append

    @property
    def is_full(self) -> bool:
        """The reserved bytes are used; one more append would still be taken, beyond them."""
        return self.end >= self.capacity_bytes

    def has_room(self, size: int) -> bool:
        """An append of about `size` bytes stays within what was reserved."""
        return self.end + size <= self.capacity_bytes

    def append(self, stream: bytes, process: bytes, lane: int, columns: Columns) -> int:
        """Write these records and return the new end; `OSError`, and nothing is written, where there is no room."""
        self._put(self._encoder.columns(stream, process, lane, columns))
        self.summary.of(stream, process, lane).add(columns)
        return self.end

    def append_gap(self, stream: bytes, process: bytes, lane: int, first: int, last: int, cause: str) -> int:
        """Note that seqs `first` to `last` are gone and why ('damaged', 'forgotten', 'trimmed')."""
        self._put(self._encoder.gap(stream, process, lane, first, last, cause))
        self.summary.of(stream, process, lane).add_gap(first, last, cause)
        return self.end

    def _put(self, data: bytes) -> None:
        if not self._may_append:
            raise ValueError(f"{self.path}: this segment was taken over to be read; write to a new one")
        end = self.end + len(data)
        try:
            if end > self._reserved:
                self._files.fallocate(self.fd, end)
                self._reserved = end
            self._files.pwrite(self.fd, data, self.end)
        except BaseException:
            self._encoder.repeat_entries()
            self._wipe(len(data))
            raise
        self.end = end

    def _wipe(self, size: int) -> None:
        """Zero what a failed write may have left, or it could be read as a block later."""
        size = min(size, self._reserved - self.end)
        try:
            if size > 0:
                self._files.pwrite(self.fd, bytes(size), self.end)
        except OSError:
            pass  # then it is a torn tail, and the next append lies over it

    def bytes(self) -> bytes:
        """The valid part."""
        return self._files.pread(self.fd, self.end, 0)

    def close(self) -> None:
        """Close the descriptor; the file stays."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            self._files.close(fd)

    def unlink(self) -> None:
        self.close()
        self._files.unlink(self.path)


class Replica:
    """The copy of an open segment in the run folder, made by one thread."""

    def __init__(self, files: Files, folder: str, name: str) -> None:
        self.name = name
        self.path = os.path.join(folder, name)
        self.durable = 0  # bytes from 0 that are past an fsync
        self._files = files
        self._folder = folder
        self._fd = -1
        self._copied = 0

    def copy(self, source_fd: int, end: int) -> int:
        """Bring the copy to `end` and past an fsync; returns `durable`. A call that failed is made again as it was."""
        files = self._files
        is_new = self._fd < 0 and self._copied == 0
        if self._fd < 0:
            self._fd = files.open(self.path, CREATE if is_new else WRITE)
        while self._copied < end:
            data = files.pread(source_fd, min(CHUNK_BYTES, end - self._copied), self._copied)
            if not data:
                raise Corrupt(self.name, self._copied, f"bytes up to {end} in the staged segment", "its end")
            files.pwrite(self._fd, data, self._copied)
            self._copied += len(data)
        if self.durable < end:
            try:
                files.fsync(self._fd)
                if self.durable == 0:
                    files.fsync_folder(self._folder)
            except OSError:
                self._copied = self.durable  # a failed fsync may have dropped the pages: write them again
                raise
            self.durable = end
        return self.durable

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._files.close(fd)


def replicate(files: Files, source_fd: int, name: str, folder: str, start: int, end: int) -> None:
    """Copy bytes `start` to `end` of a staged segment to the run folder and past an fsync, in one call."""
    replica = Replica(files, folder, name)
    replica.durable = replica._copied = start
    try:
        replica.copy(source_fd, end)
    finally:
        replica.close()


def read_segment(files: Files, path: str, *, codec: Codec | None = None) -> Scan:
    """A scan of a segment's file as it is now."""
    return Scan(read_file(files, path), name=os.path.basename(path), codec=codec)

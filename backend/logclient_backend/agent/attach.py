"""One producer: a process incarnation's lane file, its lock and its documents, as the agent sees them.

Runs in the worker. Maps the lane file once and keeps it, so that its removal by somebody else costs nothing.

Invariants:

- a file is opened with O_NOFOLLOW, and its size and layout are checked before anything in it is believed;
- a producer is dead when its record lock is free and, in our PID namespace, its process is gone;
- what a producer committed before it died is drained before its files go.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import struct
from collections.abc import Callable
from typing import Any

from logclient import layout
from logclient.documents import read_document
from logclient.errors import Corrupt
from logclient.owner import is_alive, pid_namespace
from logclient.record import Shape
from logclient.ring import RingReader, read_counts

from .exits import Watch

SUFFIX = ".lanes"
_MOST_BYTES = 1 << 30


class BadLaneFile(Exception):
    """The file is no lane file of a version we know; it is set aside."""


class Lane:
    """Reader of one lane, and its counts beyond what is durable."""

    def __init__(self, reader: RingReader, index: int, stream: bytes) -> None:
        self.reader = reader
        self.index = index
        self.stream = stream
        self.durable, self.stored, self.damaged = read_counts(reader.words)
        self.staged_seq = max(reader.seq, self.durable)
        self.staged_stored, self.staged_damaged = self.stored, self.damaged


class Producer:
    """One lane file and what belongs to it."""

    def __init__(self, folder: str, name: str, fd: int | None = None) -> None:
        """`fd`: a descriptor kept by the supervisor, for a file that is no longer in the folder."""
        self.folder = folder
        self.name = name
        self.process = bytes.fromhex(name[: -len(SUFFIX)])
        self.mem = _map(os.path.join(folder, name), fd)
        self.words = words = self.mem.cast("Q")
        _check_header(words, len(self.mem), self.process)
        self.pid = words[layout.FILE_PID]
        self.ticks = words[layout.FILE_START_TICKS]
        self.namespace = words[layout.FILE_PID_NAMESPACE]
        self.created_ns = words[layout.FILE_CREATED_NS]
        self.rank = words[layout.FILE_RANK] - 1 if words[layout.FILE_RANK] else None
        self.is_neighbour = bool(self.namespace) and self.namespace == pid_namespace()
        self.watch = Watch(self.pid, self.ticks) if self.is_neighbour else None
        self.lanes = [self._lane(index) for index in range(words[layout.FILE_LANES])]
        self.documents: dict[str, Any] = {}
        self.documents_seen = 0
        self.flush_seen = words[layout.FLUSH_DONE]
        self.pending_flush = 0
        self.is_drained = False
        self.ending_since = 0.0  # monotonic; when its end was first seen
        self.documents_sent = (0, 0)  # version of the node's documents that holds them, and up to which write
        self._versions = dict.fromkeys(layout.DOCUMENT_KINDS, 0)
        self._shapes: dict[int, Shape] = {}
        self._keys_read = 0

    def _lane(self, index: int) -> Lane:
        at = layout.LANE_HEADERS + index * layout.LANE_HEADER_WORDS
        stream = struct.pack("<QQ", self.words[at + layout.LANE_STREAM], self.words[at + layout.LANE_STREAM + 1])
        return Lane(RingReader(self.mem, at), index, stream)

    # ---- is there something to do? -------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Bytes committed and not yet taken, over all lanes."""
        return sum(lane.reader.pending for lane in self.lanes)

    def fill(self) -> float:
        """How full the fullest lane is with what is not yet taken."""
        return max(lane.reader.pending / lane.reader.size for lane in self.lanes)

    @property
    def has_finished(self) -> bool:
        """Gave up its lanes by itself."""
        return bool(self.words[layout.STATE] == layout.STATE_FINISHED)

    def is_alive(self) -> bool:
        """May anything still come from it?"""
        if self.watch is not None and self.watch.is_open and not self.watch.has_ended():
            return True
        return is_alive(self._path(".live"), self.pid, self.ticks, self.namespace)

    # ---- shapes and documents ------------------------------------------------------------------------

    def shape(self, number: int) -> Shape | None:
        """The shape with that id; its definition is in the key area before any frame uses it."""
        if number not in self._shapes:
            self._read_keys()
        return self._shapes.get(number)

    def _read_keys(self) -> None:
        import_from, room = self.words[layout.FILE_KEYS], self.words[layout.FILE_KEYS + 1]
        used = min(self.words[layout.KEYS_USED], room)
        while self._keys_read + 16 <= used:
            at = import_from + self._keys_read
            size = self.words[at >> 3] & 0xFFFF_FFFF
            if size & 7 or size < 16 or self._keys_read + 8 + size > used:
                return
            body = bytes(self.mem[at + 8 : at + 8 + size])
            self._keys_read += 8 + size
            try:
                self._shapes[int.from_bytes(body[:8], "little")] = Shape.from_definition(body[8:])
            except Corrupt:
                continue  # its frames will be counted as damaged

    def read_documents(self) -> bool:
        """Take over what is new; True if anything was."""
        written = self.words[layout.DOCUMENTS_WRITTEN]
        if written == self.documents_seen:
            return False
        for kind in layout.DOCUMENT_KINDS:
            found = read_document(self.mem, kind, self._versions[kind])
            if found is None:
                continue
            version, payload = found
            content = self._load(payload)
            if content is not None:
                self._versions[kind] = version
                self.documents[kind] = content
        self.documents_seen = written
        return True

    def _load(self, payload: bytes) -> Any:
        try:
            content = json.loads(payload)
            if "file" in content:
                name = str(content["file"])
                if "/" in name or not name.startswith(self.name[: -len(SUFFIX)]):
                    return None
                fd = os.open(os.path.join(self.folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    content = json.loads(os.read(fd, os.fstat(fd).st_size))
                finally:
                    os.close(fd)
            return content
        except (OSError, ValueError, TypeError):
            return None

    # ---- the end ----------------------------------------------------------------------------------------

    def close(self) -> None:
        if self.watch is not None:
            self.watch.close()

    def sweep(self) -> None:
        """Remove its files: everything is staged or stored, and nobody writes any more."""
        self.close()
        stem = self.name[: -len(SUFFIX)]
        try:
            names = [name for name in os.listdir(self.folder) if name.startswith(stem + ".")]
        except OSError:
            return
        for name in names:
            _unlink(os.path.join(self.folder, name))

    def _path(self, suffix: str) -> str:
        return os.path.join(self.folder, self.name[: -len(SUFFIX)] + suffix)


def find(folder: str, known: Callable[[str], bool]) -> list[str]:
    """Names of lane files in the folder that are not known yet."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(name for name in names if is_lane_file(name) and not known(name))


def is_lane_file(name: str) -> bool:
    stem = name[: -len(SUFFIX)]
    return name.endswith(SUFFIX) and len(stem) == 32 and not set(stem) - set("0123456789abcdef")


def _map(path: str, fd: int | None) -> memoryview:
    own = fd is None
    if fd is None:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or not layout.KEYS_OFFSET < found.st_size <= _MOST_BYTES:
            raise BadLaneFile(f"{os.path.basename(path)}: {found.st_size} bytes is no size of a lane file")
        return memoryview(mmap.mmap(fd, found.st_size))
    finally:
        if own:
            os.close(fd)


def _check_header(words: memoryview, size: int, process: bytes) -> None:
    if words[layout.FILE_MAGIC] != layout.MAGIC:
        raise BadLaneFile("not a lane file")
    if words[layout.FILE_VERSION] != layout.VERSION:
        raise BadLaneFile(f"lane file of version {words[layout.FILE_VERSION]}, this agent reads {layout.VERSION}")
    named = struct.pack("<QQ", words[layout.FILE_PROCESS], words[layout.FILE_PROCESS + 1])
    if words[layout.FILE_BYTES] != size or not 1 <= words[layout.FILE_LANES] <= layout.MAX_LANES or named != process:
        raise BadLaneFile("the header contradicts the file")
    areas = ((layout.FILE_KEYS, 1), (layout.FILE_DOCUMENTS, 1), (layout.FILE_BLOCKS, 1))
    for start, width in areas:
        if words[start] % 8 or words[start] + words[start + width] > size:
            raise BadLaneFile("an area lies outside the file")


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass

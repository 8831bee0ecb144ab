"""One producer: a process incarnation's lane file, its lock and its documents, as the agent sees them.

Runs in the worker. Maps the lane file that `ShmDirHandle` keeps open.

Invariants:

- size and layout of the file are checked before anything in it is believed;
- a producer is dead when its record lock is free and, in our PID namespace, its process is gone;
- what a producer committed before it died is drained before its files go, and its lane file is marked before it goes.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import struct
import time
from typing import Any

from logclient.shm import lane_file, layout, modes
from logclient.shm.calls import KEPT, SUFFIX
from logclient.shm.documents import read_document
from logclient.shm.record import Shape
from logclient.shm.regular import read_regular
from logclient.shm.ring import RingReader, read_counts

from ..host.mapping import map_file
from ..host.shm_dir_handle import Kept, ShmDirHandle
from .device_records import Cells
from .other_nodes import Beside

_MAX_BYTES = 1 << 30
_MAX_DOCUMENT = 64 << 20
# all words that change lie behind each other, those of the lanes last; sections are for readers alone
_MOVING, _SECTIONS, _MOVING_ON = 8 * layout.KEYS_USED, 8 * layout.SECTION, 8 * layout.DOCUMENTS_DURABLE
_ASKING = 8 * (layout.FLUSH_ASKED + 1 - layout.KEYS_USED)
_MOVING_LANES = 8 * layout.LANE_HEADERS


class BadLaneFile(Exception):
    """The file is no lane file of a version we know; it is set aside."""


class Lane:
    """Reader of one lane, and its counts beyond what is durable."""

    def __init__(self, reader: RingReader, index: int, stream: bytes, *, is_of_device: bool = False) -> None:
        self.reader = reader
        self.is_of_device = is_of_device  # its records wait for values
        self.waits = False  # the first of them still does
        self.index = index
        self.stream = stream
        self.tail_seen = reader.words[layout.RELEASED]  # at the last look
        self.durable, self.stored, self.damaged = read_counts(reader.words)
        self.least_damaged = (
            0  # counts with fewer are not told: what went from the spool is not yet among them
        )
        self.staged_seq = self.durable
        self.staged_stored, self.staged_damaged = self.stored, self.damaged
        self.lost: list[
            tuple[int, int]
        ] = []  # seqs that were released and are staged nowhere: told with the next look

    def take_over(self, staged_seq: int, stored: int, damaged: int) -> None:
        """Go on behind what dead workers staged, of which so much is stored."""
        released_seq = self.reader.words[layout.STAGED_SEQ]
        self.staged_seq, self.staged_stored, self.staged_damaged = staged_seq, stored, damaged
        if released_seq > staged_seq:
            self.lost = [(staged_seq + 1, released_seq)]
            self.staged_seq = released_seq
        self.reader.seq = self.staged_seq

    def take_back(self) -> None:
        """Take the records of a harvest again that could not be staged."""
        self.reader.position = self.reader.words[layout.RELEASED]

    def release(self, position: int, last_seq: int, stored: int, damaged: int) -> None:
        """Let the producer overwrite what lies below `position`: it is staged, and so much of it stored."""
        self.staged_stored += stored
        self.staged_damaged += damaged
        self.staged_seq = self.reader.seq = last_seq
        self.lost = []
        self.reader.words[layout.STAGED_SEQ] = last_seq
        self.reader.words[layout.RELEASED] = self.reader.position = position


class Producer:
    """One lane file and what belongs to it."""

    def __init__(self, handle: ShmDirHandle, kept: Kept) -> None:
        """Raises `BadLaneFile`, or ValueError, where the file is none that can be read."""
        self.kept = kept
        self.name = kept.name
        self.process = bytes.fromhex(kept.stem)
        self.watch = kept.watch
        self._mapped = _map(kept)
        self.mem = memoryview(self._mapped)
        self.words = words = self.mem.cast("Q")
        _check_header(words, len(self.mem), self.process)
        self.pid = words[layout.FILE_PID]
        self.created_ns = words[layout.FILE_CREATED_NS]
        self.created_mono_ns = words[layout.FILE_CREATED_MONO_NS]
        self._handle = handle
        self.cells = Cells(handle, f"{kept.stem}.device")
        self.lanes = [self._lane(index) for index in range(words[layout.FILE_LANES])]
        self.documents: dict[str, Any] = {}
        self.documents_seen = 0
        self.flush_seen = 0
        self.found: Beside | None = None  # what lay beside this node when it came, if it is an owner
        self.look_beside = 0  # the number of the look into the run folder that was asked for when it came
        self.documents_wanted = 0  # somebody waits until so many writes are on disk
        self.is_gone = False  # seen to have ended
        self._ending_since = 0.0  # monotonic; when that was first seen
        self.cut_short_at = 0.0  # monotonic; when its end was seen, if a scheduler may have to do with that
        self.documents_sent = (0, 0)  # version of the node's documents that holds them, and up to which write
        self._versions = dict.fromkeys(layout.DOCUMENT_KINDS, 0)
        self._schemas = lane_file.Schemas(self.mem, words)
        self.fill = 0.0  # of the fullest lane, with what is not yet taken; see `worker_pause.py`
        self.least_used = 0  # bytes of the smallest lane that ever held a record; 0: none has
        self.is_asking = True  # for more than to be drained: it flushed, wrote documents, refused, finished
        end = _MOVING_LANES + 8 * layout.LANE_HEADER_WORDS * len(self.lanes)
        self._moving = self.mem[_MOVING:_SECTIONS], self.mem[_MOVING_ON:end]
        self._moved = b""

    def _lane(self, index: int) -> Lane:
        at = layout.lane_header(index)
        stream = lane_file.stream_id(self.words[at : at + layout.LANE_HEADER_WORDS])
        first = self.words[layout.FILE_LANES] - self.words[layout.FILE_DEVICE_LANES]
        return Lane(RingReader(self.mem, at), index, stream, is_of_device=index >= first)

    @property
    def rank(self) -> int | None:
        """The process's rank; None: it has none. `init` in a child that logs already may give it one."""
        rank = self.words[layout.FILE_RANK]
        return rank - 1 if rank else None

    # ---- is there something to do? -------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Bytes committed and not yet taken, over all lanes."""
        return sum(max(0, lane.reader.pending) for lane in self.lanes)

    def released(self) -> int:
        """Return a 64-bit sum of how far its lanes were drained."""
        return sum(lane.reader.words[layout.RELEASED] for lane in self.lanes) & (1 << 64) - 1

    def has_moved(self) -> bool:
        """Has any count of this process or of its lanes changed since this was asked last?"""
        moved = self._moving[0].tobytes() + self._moving[1].tobytes()
        if moved == self._moved:
            return False
        self.is_asking = self.is_asking or moved[:_ASKING] != self._moved[:_ASKING]
        self._moved = moved
        return True

    @property
    def has_something(self) -> bool:
        """Is there something to stage, as far as the last look has seen?"""
        return self.fill > 0.0 or any(lane.lost for lane in self.lanes)

    def has_documents(self) -> bool:
        """Has it written documents that were not read yet?"""
        return bool(self.words[layout.DOCUMENTS_WRITTEN] != self.documents_seen)

    @property
    def has_finished(self) -> bool:
        """Gave up its lanes by itself."""
        return bool(self.words[layout.STATE] == layout.STATE_FINISHED) or self.is_dropped

    @property
    def is_dropped(self) -> bool:
        """Its process did not finish the run, and no handle leads to it any more there."""
        return bool(self.words[layout.DROPPED] == self.pid)

    @property
    def has_left(self) -> bool:
        """Nothing more comes from it."""
        return self.is_gone or self.has_finished

    @property
    def is_durable(self) -> bool:
        """All that it logged was on disk."""
        words = self.words
        is_behind = any(lane.durable < lane.reader.words[layout.SEQ] for lane in self.lanes)
        return not is_behind and words[layout.DOCUMENTS_DURABLE] >= words[layout.DOCUMENTS_WRITTEN]

    def awaits_exit_code(self, *, alive: bool, is_unknown: bool, linger_s: float) -> bool:
        """A program that is ending may still fail: its exit code is worth a short wait."""
        state = (self.documents.get("state") or {}).get("data")
        by_exit = isinstance(state, dict) and state.get("by") == "exit"
        if (self.has_finished and not by_exit) or not (alive or is_unknown):
            return False
        if self.watch is None or not self.watch.is_open:
            return False
        self._ending_since = self._ending_since or time.monotonic()
        return time.monotonic() - self._ending_since < linger_s

    # ---- shapes and documents ------------------------------------------------------------------------

    def shape(self, number: int) -> Shape | None:
        """The shape with that id; its definition is in the key area before any frame uses it."""
        return self._schemas.get(number)

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
                if "/" in name or not name.startswith(self.kept.stem):
                    return None
                content = json.loads(read_regular(self._handle.file(name), max_bytes=_MAX_DOCUMENT))
            return content if isinstance(content, dict) else None
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    # ---- the end ----------------------------------------------------------------------------------------

    def sweep(self, *, is_on_disk: bool) -> None:
        """Remove its files: everything is stored, on disk where there is one, and nobody writes any more."""
        # the copier may have stored its documents since they were looked at, and its process may wait for that
        if is_on_disk:
            self.words[layout.DOCUMENTS_DURABLE] = self.documents_seen
        self.words[layout.SWEPT] = 1
        if self.is_dropped:
            self._give_memory_back()
        remove_files(self._handle, self.kept)

    def keep_calls(self) -> None:
        """Keep its last calls beyond its other files, if it recorded them."""
        stem = self.kept.stem
        try:
            os.rename(self._handle.file(stem + SUFFIX), self._handle.file(KEPT + stem))
        except OSError:
            return  # it recorded none, or the folder was removed

    def _give_memory_back(self) -> None:
        """Its process keeps the file mapped until it calls us again, and reads nothing but the first page of it."""
        try:
            self._mapped.madvise(mmap.MADV_REMOVE, layout.KEYS_OFFSET, len(self.mem) - layout.KEYS_OFFSET)
        except (OSError, ValueError):
            return  # a kernel or a file system without that: it goes with the mapping


def remove_files(handle: ShmDirHandle, kept: Kept) -> None:
    """The lane file and what belongs to it."""
    stem = kept.stem
    handle.let_go(kept)
    for name in os.listdir(handle.path):
        if name.startswith(stem + "."):
            modes.remove(handle.file(name))


def _map(kept: Kept) -> mmap.mmap:
    with kept.opened() as fd:
        return _checked(fd)


def _checked(fd: int) -> mmap.mmap:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or not layout.KEYS_OFFSET < found.st_size <= _MAX_BYTES:
        raise BadLaneFile(f"{found.st_size} bytes is no size of a lane file")
    return map_file(fd, found.st_size)


def _check_header(words: memoryview, size: int, process: bytes) -> None:
    if words[layout.FILE_MAGIC] != layout.MAGIC:
        raise BadLaneFile("not a lane file")
    if words[layout.FILE_VERSION] != layout.VERSION:
        raise BadLaneFile(
            f"lane file of version {words[layout.FILE_VERSION]}, this agent reads {layout.VERSION}"
        )
    named = struct.pack("<QQ", words[layout.FILE_PROCESS], words[layout.FILE_PROCESS + 1])
    if (
        words[layout.FILE_BYTES] != size
        or not 1 <= words[layout.FILE_LANES] <= layout.MAX_LANES
        or named != process
    ):
        raise BadLaneFile("the header contradicts the file")
    large, small = words[layout.FILE_DOCUMENTS + 1], words[layout.FILE_DOCUMENTS + 2]
    slots = layout.LARGE_KINDS * large + (len(layout.DOCUMENT_KINDS) - layout.LARGE_KINDS) * small
    cell, cells = words[layout.FILE_BLOCKS + 1], words[layout.FILE_BLOCKS + 2]
    for start, length in (
        (words[layout.FILE_KEYS], words[layout.FILE_KEYS + 1]),
        (words[layout.FILE_DOCUMENTS], 2 * slots),
        (words[layout.FILE_BLOCKS], cell * cells),
    ):
        if start % 8 or start + length > size:
            raise BadLaneFile("an area lies outside the file")
    if min(large, small) < layout.DOCUMENT_HEADER or (large | small | cell) % 8:
        raise BadLaneFile("slots or cells of a size that cannot be")

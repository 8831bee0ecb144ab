"""The stream of host and device metrics, which the agent writes itself, and the lane file that it is written to.

Runs in the agent. It is the side stream "system" (`side_stream.py`).

Invariant: one writer, one lane, floats only.
"""

from __future__ import annotations

import mmap
import os
from zlib import crc32

from . import lane_file, layout, modes
from .documents import DocumentWriter
from .owner import LiveLock
from .record import Shape
from .ring import Blocks, RingWriter
from .side_stream import MARKS, SYSTEM, suffix_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# bytes at scale 1. Keys: of a node with 8 devices and 8 ranks three times
_KEYS, _SLOT, _LANE = 24 << 10, 1 << 10, 64 << 10
MAX_SCALE = 16


class Full(Exception):
    """No further set of keys fits into the file: another one is needed, of a larger scale."""


class SystemLane:
    """The file of one process that measures."""

    __slots__ = ("_keys", "_keys_at", "_lane", "_live", "_map", "_mem", "_order", "_shapes", "_words", "path")

    def __init__(self, folder: str, rank: int | None, start: Mapping[str, Any], scale: int = 1) -> None:
        """Make the file. `rank`: of its records. `start`: its start document. Raises OSError."""
        self._keys, lane = scale * _KEYS, scale * _LANE
        mark = MARKS[SYSTEM]
        process, stream = mark + os.urandom(8), mark + os.urandom(8)
        stem = os.path.join(folder, process.hex())
        self.path = stem + suffix_of(SYSTEM)
        documents, blocks = (_SLOT, _SLOT), (layout.BLOCK_HEADER, 0)
        total = lane_file.start_of_lanes(self._keys, documents, blocks) + lane
        making = self.path + modes.MAKING
        fd = modes.new_file(making, os.O_RDWR)
        try:
            modes.reserve(fd, total)
            self._map = mmap.mmap(fd, total, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            self._mem = memoryview(self._map)
            self._words = self._mem.cast("Q")
            lane_file.lay_out(self._words, process, rank, self._keys, documents, blocks, [(lane, stream)])
            self._lane = RingWriter(self._mem, layout.lane_header(0), [], Blocks(self._mem))
            self._live = LiveLock(stem + ".live")
            DocumentWriter(self._mem, self.path).write("start", start)
            os.rename(making, self.path)
        except BaseException:
            modes.remove(making)
            raise
        finally:
            os.close(fd)
        self._shapes: dict[tuple[str, ...], Shape] = {}
        self._order = 0
        self._keys_at = 0

    @property
    def is_swept(self) -> bool:
        """Has the agent taken all that it wants from this file?"""
        return bool(self._words[layout.SWEPT])

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Commit one record. Raises `Full`, with nothing written."""
        names = tuple(values)
        shape = self._shapes.get(names) or self._define(names)
        self._order += 1
        self._lane.offer(shape, self._order, step, values.values())

    def _define(self, names: tuple[str, ...]) -> Shape:
        number = len(self._shapes) + 1
        rank = self._words[layout.FILE_RANK] << layout.RANK_SHIFT
        shape = Shape(names, "d" * len(names), number | rank)
        body = number.to_bytes(8, "little") + shape.definition()
        used = self._keys_at + 8 + len(body)
        if used > self._keys or shape.frame_bytes > self._lane.largest:
            raise Full
        at = layout.KEYS_OFFSET + self._keys_at
        self._mem[at + 8 : layout.KEYS_OFFSET + used] = body
        self._words[at >> 3] = crc32(body) << 32 | len(body)
        self._words[layout.KEYS_USED] = self._keys_at = used
        self._shapes[names] = shape
        return shape

    def close(self) -> None:
        """Nothing more comes: the agent stores what is there, and removes the file."""
        self._words[layout.STATE] = layout.STATE_FINISHED
        self._live.release()

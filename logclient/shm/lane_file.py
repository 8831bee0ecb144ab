"""A lane file beside its rings: its header as it is made; headers of its lanes, schemas and newest frames as read.

Runs in the training process (`flush`, a notebook), in the agent and in readers. Everybody but the writer of a ring
finds its way in the file by this module; frames that are to be kept are taken by `ring.RingReader`.

Invariants:

- the file is written to meanwhile: what does not check is not returned, and nothing is waited for;
- nothing is written but the header, once, while the file is made.
"""

from __future__ import annotations

import os
import time
from struct import Struct

from ..errors import Corrupt
from . import layout
from .proc import pid_namespace, start_ticks
from .record import Shape
from .ring import next_sound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SEQ = Struct("<Q")
_STREAM = Struct("<QQ")
_PIECE = 64 << 10  # bytes of a ring that are looked at at a time, newest first


def start_of_lanes(keys: int, documents: tuple[int, int], blocks: tuple[int, int]) -> int:
    """Return the byte offset behind the areas of these sizes, see `lay_out`."""
    large, small = documents
    slots = layout.LARGE_KINDS * large + (len(layout.DOCUMENT_KINDS) - layout.LARGE_KINDS) * small
    return layout.KEYS_OFFSET + keys + 2 * slots + blocks[0] * blocks[1]


def lay_out(
    words: memoryview,
    process: bytes,
    rank: int | None,
    keys: int,
    documents: tuple[int, int],
    blocks: tuple[int, int],
    lanes: Sequence[tuple[int, bytes]],
    device_lanes: int = 0,
) -> None:
    """Write the header of a new lane file of this process; all sizes are multiples of 8.

    `keys`: bytes of the key area. `documents`: bytes of a large slot and of a small one. `blocks`: bytes of a cell, and
    how many there are. `lanes`: bytes and stream of each.
    """
    at = layout.KEYS_OFFSET
    words[layout.FILE_KEYS], words[layout.FILE_KEYS + 1] = at, keys
    words[layout.FILE_DOCUMENTS] = at + keys
    words[layout.FILE_DOCUMENTS + 1], words[layout.FILE_DOCUMENTS + 2] = documents
    at = start_of_lanes(keys, documents, blocks)
    words[layout.FILE_BLOCKS] = at - blocks[0] * blocks[1]
    words[layout.FILE_BLOCKS + 1], words[layout.FILE_BLOCKS + 2] = blocks
    for index, (size, stream) in enumerate(lanes):
        header = layout.lane_header(index)
        words[header + layout.LANE_OFFSET], words[header + layout.LANE_BYTES] = at, size
        words[header + layout.LANE_STREAM], words[header + layout.LANE_STREAM + 1] = _STREAM.unpack(stream)
        at += size
    words[layout.FILE_VERSION] = layout.VERSION
    words[layout.FILE_BYTES] = words.nbytes
    words[layout.FILE_LANES] = len(lanes)
    words[layout.FILE_DEVICE_LANES] = device_lanes
    words[layout.FILE_PID] = os.getpid()
    words[layout.FILE_START_TICKS] = start_ticks()
    words[layout.FILE_PID_NAMESPACE] = pid_namespace()
    words[layout.FILE_PROCESS], words[layout.FILE_PROCESS + 1] = _STREAM.unpack(process)
    words[layout.FILE_CREATED_NS] = max(0, time.time_ns())  # a clock before 1970: 0, unknown
    words[layout.FILE_CREATED_MONO_NS] = time.monotonic_ns()
    words[layout.FILE_RANK] = 0 if rank is None else rank + 1
    words[layout.FILE_MAGIC] = layout.MAGIC


def headers(words: memoryview) -> list[memoryview]:
    """Return the header words of each lane of the file with these words."""
    count = min(words[layout.FILE_LANES], layout.MAX_LANES)
    starts = map(layout.lane_header, range(count))
    return [words[at : at + layout.LANE_HEADER_WORDS] for at in starts]


def stream_id(header: memoryview) -> bytes:
    """Return the 16 bytes that name the records of a lane."""
    return _STREAM.pack(header[layout.LANE_STREAM], header[layout.LANE_STREAM + 1])


class Schemas:
    """The schemas that are defined in the key area; read as far as the area is filled, when one is asked for."""

    __slots__ = ("_known", "_mem", "_read", "_words")

    def __init__(self, mem: memoryview, words: memoryview) -> None:
        """`words`: the file as 64-bit words."""
        self._mem = mem
        self._words = words
        self._known: dict[int, Shape] = {}
        self._read = 0

    def get(self, number: int) -> Shape | None:
        """Return the schema with this id; its definition is there before any frame uses it."""
        if number not in self._known:
            self._read_on()
        return self._known.get(number)

    def _read_on(self) -> None:
        words = self._words
        area, room = words[layout.FILE_KEYS], words[layout.FILE_KEYS + 1]
        used = min(words[layout.KEYS_USED], room)
        while self._read + 16 <= used:
            at = area + self._read
            size = words[at >> 3] & 0xFFFF_FFFF
            if size & 7 or size < 16 or self._read + 8 + size > used:
                return
            body = bytes(self._mem[at + 8 : at + 8 + size])
            self._read += 8 + size
            try:
                self._known[int.from_bytes(body[:8], "little")] = Shape.from_definition(body[8:])
            except Corrupt:
                continue  # its frames will be counted as damaged


def newest_frames(
    mem: memoryview, header: memoryview, deadline: float, *, piece: int = _PIECE
) -> Iterator[bytes]:
    """Yield frames of a lane that check, newest first, as far back as the lap and the time go.

    `deadline` is a time of `time.monotonic`; `piece`: so many bytes are looked at at a time.
    """
    wanted = piece
    base, size = header[layout.LANE_OFFSET], header[layout.LANE_BYTES]
    ring = mem[base : base + size]
    stop = tail = header[layout.TAIL]
    oldest, expected = max(0, tail - size), 0
    while stop > oldest:
        lap = (stop - 1) // size * size
        start = max(oldest, lap, stop - piece)  # a frame never wraps
        off = start % size
        data = bytes(ring[off : off + stop - start])
        frames = _sound(data)
        for at, length in reversed(frames):
            (seq,) = _SEQ.unpack_from(data, at + layout.FRAME_HEADER)
            # else of another lap: written over meanwhile, or left in padding
            if seq == expected or not expected:
                expected = seq - 1
                yield data[at : at + length]
        if frames and frames[0][0]:
            # what lies before is the end of a frame, to be seen with its beginning
            stop = start + frames[0][0]
            piece = wanted
        elif frames or start in (oldest, lap):
            stop = start
            piece = wanted
        else:
            piece *= 2  # one frame larger than that
        if time.monotonic() >= deadline:
            return


def _sound(data: bytes) -> list[tuple[int, int]]:
    """Return (offset, length) of the frames in these bytes, which begin anywhere."""
    words, view, total = memoryview(data).cast("Q"), memoryview(data), len(data)
    found = []
    at = next_sound(words, view, 0, total)
    while at < total:
        size = words[at >> 3] & layout.LENGTH_MASK
        found.append((at, size))
        at = next_sound(words, view, at + size, total)
    return found

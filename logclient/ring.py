"""The overwriting ring of one lane: the only code that touches its mapped bytes.

`RingWriter` runs in the training process, one writer at a time (`lanes.py` sees to that); `RingReader` in the
agent. They share the words and frames drawn in `layout.py`, nothing else: no lock, no system call.

Invariants:

- positions are 64-bit byte counts that never wrap; a frame lies at position modulo ring size and never wraps;
- one store to TAIL makes a frame visible; until then nobody reads it;
- FORGOT is stored before the bytes below it are overwritten; the reader copies, then reads FORGOT again and
  throws away what lay below it;
- seq grows by one per committed frame, so a jump counts exactly what was forgotten or damaged;
- whatever interrupts `offer` (a signal handler that raises), `resync` finds the lane either as before or committed.

Not assumed: that stores of one CPU become visible in order. A frame that does not check is read again for a
while by the reader, then skipped and counted.
"""

from __future__ import annotations

from struct import Struct
from time import time_ns
from zlib import crc32

from . import layout
from .layout import FORGOT, LENGTH_MASK, PADDING, RELEASED, SEQ, TAIL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .record import Shape

_RETRY_LOOKS = 3  # looks of the agent, some 50 ms apart
_FORGET_AHEAD = 8  # frames


class TooLarge(Exception):
    """The frame is larger than half its ring."""


class RingWriter:
    """Writes frames of one lane; the oldest frames are forgotten when there is no room."""

    __slots__ = ("_cells", "_forgot", "_limit", "_mem", "_off", "_size", "_tail", "_words", "blocks", "home", "seq")

    def __init__(self, mem: memoryview, header: int, home: list[RingWriter], blocks: Blocks) -> None:
        """`mem` is the whole lane file, `header` the word index of this lane's header, `home` its free list."""
        words = mem.cast("Q")
        base, size = words[header + layout.LANE_OFFSET], words[header + layout.LANE_BYTES]
        self._words = words[header : header + layout.LANE_HEADER_WORDS]
        self._mem = mem[base : base + size]
        self._cells = self._mem.cast("Q")
        self._size = size
        self.blocks = blocks
        self.home = home
        self._tail = self._words[TAIL]
        self._off = self._tail % size
        self._forgot = self._words[FORGOT]
        self._limit = max(self._forgot, self._words[RELEASED]) + size
        self.seq = self._words[SEQ]

    def offer(self, shape: Shape, order: int, step: int, values: Iterable[float]) -> None:
        """Commit one record of floats. Raises TypeError or struct.error, with nothing written, for other values."""
        seq = self.seq + 1
        body = shape.pack(seq, order, step, time_ns(), shape.head, *map(shape.exact, values))  # type: ignore[arg-type]
        size = shape.frame_bytes
        off = self._off
        stop = off + size
        end = self._tail + size
        if end > self._limit or stop > self._size:
            off, end = self._make_room(size)
            stop = off + size
        check = crc32(body) << 32 | size
        # no call between the first load and the last store: a fork in a signal handler finds all or nothing
        words = self._words
        self._mem[off + 8 : stop] = body
        self._cells[off >> 3] = check
        words[SEQ] = seq
        words[TAIL] = end
        self.seq = seq
        self._tail = end
        self._off = stop

    def offer_body(self, prefix: bytes, payload: bytes, seq: int) -> None:
        """Commit one record given as body header (with `seq`, one above `self.seq`) and payload."""
        size = layout.FRAME_HEADER + len(prefix) + len(payload)
        off, end = self._off, self._tail + size
        if end > self._limit or off + size > self._size:
            off, end = self._make_room(size)
        at = off + layout.FRAME_HEADER + len(prefix)
        check = crc32(payload, crc32(prefix)) << 32 | size
        words = self._words
        self._mem[off + layout.FRAME_HEADER : at] = prefix
        self._mem[at : off + size] = payload
        self._cells[off >> 3] = check
        words[SEQ] = seq
        words[TAIL] = end
        self.seq = seq
        self._tail = end
        self._off = off + size

    @property
    def largest(self) -> int:
        """Bytes of the largest payload that a frame of this lane takes."""
        return self._size // 2 - layout.FRAME_PREFIX

    def _make_room(self, size: int) -> tuple[int, int]:
        """Offset and end position for `size` bytes, after padding the lap and forgetting the oldest frames."""
        tail, ring = self._tail, self._size
        if size > ring // 2:
            raise TooLarge
        off = tail % ring
        padding = ring - off if off + size > ring else 0
        end = tail + padding + size
        head = max(self._words[RELEASED], self._forgot)
        if end - head > ring:
            cells = self._cells
            room = end + min(_FORGET_AHEAD * size, ring >> 6)  # a few at a time: the next calls need not look
            while room - head > ring and head < tail:
                at = (head % ring) >> 3
                if not cells[at] & PADDING and cells[at + 5] & layout.SHAPE_MASK == layout.BLOCK_SHAPE:
                    self.blocks.free(cells[at + 6])
                head += cells[at] & LENGTH_MASK
            self._forgot = head
            self._words[FORGOT] = head
        self._limit = head + ring
        if padding:
            self._cells[off >> 3] = PADDING | padding
            off = 0
        return off, end

    def detach(self) -> None:
        """In a forked child: what still holds this writer from now on writes to memory of its own."""
        blank = memoryview(bytearray(self._size + 8 * layout.LANE_HEADER_WORDS))
        self._words = blank[self._size :].cast("Q")
        self._mem = blank[: self._size]
        self._cells = self._mem.cast("Q")
        self._limit = self._tail + self._size

    def resync(self) -> bool:
        """After an interrupted offer: take over what was committed (True), take back what was not (False)."""
        tail = self._words[TAIL]
        committed = tail != self._tail
        if committed:
            self.seq = self._words[SEQ]
            self._tail = tail
        else:
            self._words[SEQ] = self.seq
        self._off = self._tail % self._size
        return committed


class Blocks:
    """The cells beside the rings that hold large payloads; each is taken by one record until that is gone.

    A cell's number is at any time in exactly one of two lists, whose `pop`, `append` and `remove` are atomic.
    """

    __slots__ = ("_busy", "_free", "_mem", "_words", "cell_bytes")

    def __init__(self, mem: memoryview) -> None:
        words = mem.cast("Q")
        offset, size, count = words[layout.FILE_BLOCKS : layout.FILE_BLOCKS + 3]
        self._mem = mem[offset : offset + size * count]
        self._words = self._mem.cast("Q")
        self.cell_bytes = size
        self._free = list(range(count))
        self._busy: list[int] = []

    def put(self, payload: bytes) -> bytes | None:
        """Store the payload; the frame payload that refers to it, or None where no cell is free or large enough."""
        if len(payload) > self.cell_bytes - layout.BLOCK_HEADER:
            return None
        try:
            cell = self._free.pop()
        except IndexError:
            self._collect()
            if not self._free:
                return None
            cell = self._free.pop()
        word = cell * self.cell_bytes >> 3
        number = self._words[word] + 1
        self._words[word] = number
        at = cell * self.cell_bytes + layout.BLOCK_HEADER
        self._mem[at : at + len(payload)] = payload
        self._busy.append(cell)
        return BLOCK_REFERENCE.pack(cell, number, len(payload), crc32(payload))

    def free(self, cell: int) -> None:
        """The record that used this cell is forgotten."""
        if cell in self._busy:
            self._busy.remove(cell)
            self._free.append(cell)

    def _collect(self) -> None:
        """Take back the cells that the agent has stored."""
        for cell in tuple(self._busy):
            word = cell * self.cell_bytes >> 3
            if self._words[word] == self._words[word + 1]:
                self.free(cell)


BLOCK_REFERENCE = Struct("<QQQQ")  # cell, how often it was taken, bytes, CRC-32


def read_block(mem: memoryview, reference: bytes | memoryview) -> bytes | None:
    """The payload that a frame refers to; None where the cell was taken again or does not check."""
    words = mem.cast("Q")
    offset, size, count = words[layout.FILE_BLOCKS : layout.FILE_BLOCKS + 3]
    cell, number, length, check = BLOCK_REFERENCE.unpack_from(reference)
    if cell >= count or length > size - layout.BLOCK_HEADER:
        return None
    at = offset + cell * size
    payload = bytes(mem[at + layout.BLOCK_HEADER : at + layout.BLOCK_HEADER + length])
    return payload if words[at >> 3] == number and crc32(payload) == check else None


def release_block(mem: memoryview, reference: bytes | memoryview) -> None:
    """Tell the producer that the payload is stored."""
    words = mem.cast("Q")
    offset, size, count = words[layout.FILE_BLOCKS : layout.FILE_BLOCKS + 3]
    cell, number = BLOCK_REFERENCE.unpack_from(reference)[:2]
    if cell < count:
        words[(offset + cell * size + 8) >> 3] = number


class Taken:
    """What one `RingReader.take` brought: whole frames that check, and where they end.

    `frames` are (offset, size, head word) into `data`; `first_seq` belongs to the first of them, each next one is
    one higher except where `jumps` (index -> seq) says otherwise.
    """

    __slots__ = ("damaged", "data", "end", "frames", "jumps", "first_seq", "last_seq")

    def __init__(self, data: bytes, end: int) -> None:
        self.data = data
        self.end = end
        self.frames: list[tuple[int, int, int]] = []
        self.jumps: dict[int, int] = {}
        self.first_seq = 0
        self.last_seq = 0
        self.damaged: list[tuple[int, int]] = []  # seq ranges, inclusive

    def jumps_before(self, index: int) -> int:
        """The seq of the frame before the one at `index`."""
        at = self.frames[index - 1][0]
        return int.from_bytes(self.data[at + 8 : at + 16], "little")


class RingReader:
    """Copies frames out of one lane and never writes to its ring."""

    __slots__ = ("_mem", "_size", "_suspect", "position", "seq", "words")

    def __init__(self, mem: memoryview, header: int) -> None:
        """Starts at RELEASED; `seq` is the last record that was taken or given up."""
        words = mem.cast("Q")
        base, size = words[header + layout.LANE_OFFSET], words[header + layout.LANE_BYTES]
        if size <= 0 or size % 8 or base % 8 or base + size > len(mem):
            raise ValueError(f"lane header {header}: ring of {size} bytes at {base} in a file of {len(mem)}")
        self.words = words[header : header + layout.LANE_HEADER_WORDS]
        self._mem = mem[base : base + size]
        self._size = size
        self.position = self.words[RELEASED]
        self.seq = self.words[layout.STAGED_SEQ]
        self._suspect = (0, 0)  # position that did not check, how often it was looked at

    @property
    def pending(self) -> int:
        """Bytes committed and not yet taken (what was forgotten meanwhile included)."""
        return self.words[TAIL] - self.position

    @property
    def size(self) -> int:
        """Bytes of the ring."""
        return self._size

    def take(self, most_bytes: int = 1 << 20) -> Taken | None:
        """Copy the next frames; None when there is nothing (or nothing that checks yet)."""
        tail = self.words[TAIL]
        start = max(self.position, self.words[FORGOT])
        if tail - start > self._size:
            return None  # a store seen out of order; the next look sees both
        if start >= tail:
            return None
        off = start % self._size
        stop = min(tail, start + most_bytes, start + self._size - off)
        data = bytes(self._mem[off : off + stop - start])
        forgot = self.words[FORGOT]
        if forgot > start:  # overwritten while it was copied
            if forgot >= stop:
                self.position = max(self.position, forgot)
                return self.take(most_bytes)
            data = data[forgot - start :]
            start = forgot
        taken = self._check(data, start, stop == tail, len(data) == most_bytes)
        if taken.end == start:
            if len(data) == most_bytes < self._size:
                return self.take(self._size)  # one frame larger than the usual copy
            return None
        self.position = taken.end
        return taken

    def _check(self, data: bytes, start: int, reaches_tail: bool, cut: bool) -> Taken:
        taken = Taken(data, start)
        cells = memoryview(data).cast("Q")
        view = memoryview(data)
        frames, jumps, total = taken.frames, taken.jumps, len(data)
        at, expected, skipped = 0, 0, False
        while at < total:
            word = cells[at >> 3]
            size = word & LENGTH_MASK
            if word & PADDING and 8 <= size <= self._size:
                at += size  # may reach beyond the copy: what padding holds does not matter
                continue
            stop = at + size
            if (
                size < layout.FRAME_PREFIX
                or size & 7
                or word & PADDING
                or stop > total
                or crc32(view[at + 8 : stop]) != word >> 32
            ):
                if stop > total and cut and layout.FRAME_PREFIX <= size <= self._size and not size & 7:
                    break  # the copy ends inside this frame
                if not self._give_up(start + at):
                    break
                found = self._next_sound(cells, view, at + 8, total)
                skipped = True
                at = total if found is None else found
                continue
            seq = cells[(at >> 3) + 1]
            if seq != expected:
                if not frames:
                    taken.first_seq = seq
                else:
                    jumps[len(frames)] = seq
                if skipped:
                    before = taken.last_seq or self.seq
                    if seq > before + 1:
                        taken.damaged.append((before + 1, seq - 1))
                    skipped = False
            frames.append((at, size, cells[(at >> 3) + 5]))
            taken.last_seq = seq
            expected = seq + 1
            at = stop
        if skipped and at >= total and reaches_tail:
            before = taken.last_seq or self.seq  # nothing sound up to the tail: SEQ says how many were lost
            upto = self.words[SEQ]
            if upto > before:
                taken.damaged.append((before + 1, upto))
                taken.last_seq = upto
        taken.end = start + at
        return taken

    def _give_up(self, position: int) -> bool:
        place, looks = self._suspect
        self._suspect = (position, looks + 1 if place == position else 1)
        return self._suspect[1] > _RETRY_LOOKS

    def _next_sound(self, cells: memoryview, view: memoryview, at: int, total: int) -> int | None:
        """The next offset at which a frame checks; frames are 8-byte aligned."""
        while at + layout.FRAME_PREFIX <= total:
            size = cells[at >> 3] & LENGTH_MASK
            if layout.FRAME_PREFIX <= size <= total - at and not size & 7 and not cells[at >> 3] & PADDING:
                if crc32(view[at + 8 : at + size]) == cells[at >> 3] >> 32:
                    return at
            at += 8
        return None


def read_counts(words: memoryview) -> tuple[int, int, int]:
    """(durable seq, stored, damaged) from a lane header; forgotten = durable - stored - damaged."""
    at = layout.COUNTS + layout.COUNTS_WORDS * (words[layout.COUNTS_SLOT] & 1)
    return words[at], words[at + 1], words[at + 2]


def write_counts(words: memoryview, durable: int, stored: int, damaged: int) -> None:
    """Agent only: all three become valid with one store, whenever it is killed."""
    slot = words[layout.COUNTS_SLOT] + 1 & 1
    at = layout.COUNTS + layout.COUNTS_WORDS * slot
    words[at], words[at + 1], words[at + 2] = durable, stored, damaged
    words[layout.COUNTS_SLOT] = slot

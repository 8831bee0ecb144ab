"""The overwriting ring of one lane: the only code that touches its mapped bytes.

`RingWriter` runs in the training process, one writer at a time (`lanes.py` sees to that); `RingReader` in the
agent. They share the words and frames drawn in `layout.py`, nothing else: no lock, no system call.

Invariants:

- positions are 64-bit byte counts that never wrap; a frame lies at position modulo ring size and never wraps;
- one store to TAIL makes a frame visible; until then nobody reads it;
- FORGOT is stored before the bytes below it are overwritten; the reader copies, then reads FORGOT again and
  throws away what lay below it;
- seq grows by one per committed frame, so a jump counts exactly what was forgotten or damaged;
- whatever interrupts `offer` (a signal handler that raises), `resync` finds the lane either as before or committed;
- the fork mark is looked at right before the stores, with no call in between: a process that was forked, in a
  signal handler and in C too, raises `Forked` there and never writes to its parent's ring;
- no bytes in the ring, damaged ones included, make `offer` raise or loop: what cannot be walked is forgotten whole.

Not assumed: that stores of one CPU become visible in order. A frame that does not check is read again for a
while by the reader, then skipped and counted.
"""

from __future__ import annotations

from itertools import repeat
from struct import Struct, iter_unpack
from time import time_ns
from zlib import crc32

from . import layout
from .layout import FORGOT, LENGTH_MASK, PADDING, RELEASED, SEQ, TAIL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from mmap import mmap
    from typing import TypeAlias

    from .owner import PidMark
    from .record import Shape

    Mark: TypeAlias = bytes | mmap | PidMark
    Frame: TypeAlias = tuple[int, int, int]  # offset, size, head word

_RETRY_LOOKS = 3  # looks of the agent, some 50 ms apart
_ALIKE_FRAMES = 16  # fewer are not worth a look whether they are alike
_FORGET_AHEAD = 8  # frames


_NEVER_FORKED = b"\1"


class TooLarge(Exception):
    """The frame is larger than half its ring."""


class Forked(Exception):
    """This process was forked from the one that made the ring."""


class RingWriter:
    """Writes frames of one lane; the oldest frames are forgotten when there is no room."""

    __slots__ = (
        "_ahead",
        "_cells",
        "_forgot",
        "_limit",
        "_mark",
        "_mem",
        "_off",
        "_size",
        "_tail",
        "_words",
        "blocks",
        "home",
        "largest",
        "seq",
    )

    def __init__(
        self,
        mem: memoryview,
        header: int,
        home: list[RingWriter],
        blocks: Blocks,
        mark: Mark = _NEVER_FORKED,
        *,
        ahead: int = _FORGET_AHEAD,
    ) -> None:
        """`mem` is the whole lane file, `header` the word index of this lane's header, `home` its free list.

        `ahead`: room for so many frames more is made where some must be forgotten. `mark[0]` reads 0 in a process
        that was forked since (`owner.ForkMark`).
        """
        words = mem.cast("Q")
        base, size = words[header + layout.LANE_OFFSET], words[header + layout.LANE_BYTES]
        self._words = words[header : header + layout.LANE_HEADER_WORDS]
        self._mem = mem[base : base + size]
        self._cells = self._mem.cast("Q")
        self._size = size
        self.largest = (
            size // 2 - layout.FRAME_PREFIX
        )  # bytes of the largest payload that a frame surely holds
        self._mark = mark
        self._ahead = ahead
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
        if not self._mark[0]:
            raise Forked
        # no call between this look and the last store: a fork in a signal handler finds all or nothing
        words = self._words
        self._mem[off + 8 : stop] = body
        self._cells[off >> 3] = check
        words[SEQ] = seq
        words[TAIL] = end
        self.seq = seq
        self._off = stop
        self._tail = end

    def offer_body(self, prefix: bytes, payload: bytes, seq: int) -> None:
        """Commit one record given as body header (with `seq`, one above `self.seq`) and payload."""
        size = layout.FRAME_HEADER + len(prefix) + len(payload)
        off, end = self._off, self._tail + size
        if end > self._limit or off + size > self._size:
            off, end = self._make_room(size)
        at = off + layout.FRAME_HEADER + len(prefix)
        check = crc32(payload, crc32(prefix)) << 32 | size
        if not self._mark[0]:
            raise Forked
        words = self._words
        self._mem[off + layout.FRAME_HEADER : at] = prefix
        self._mem[at : off + size] = payload
        self._cells[off >> 3] = check
        words[SEQ] = seq
        words[TAIL] = end
        self.seq = seq
        self._off = off + size
        self._tail = end

    def _make_room(self, size: int) -> tuple[int, int]:
        """Offset and end position for `size` bytes, after padding the lap and forgetting the oldest frames."""
        tail, ring = self._tail, self._size
        if size > ring // 2:
            raise TooLarge
        off = tail % ring
        padding = ring - off if off + size > ring else 0
        end = tail + padding + size
        head = max(self._words[RELEASED], self._forgot)
        forget = end - head > ring
        if forget:
            cells = self._cells
            room = end + min(self._ahead * size, ring >> 6)  # a few at a time: the next calls need not look
            while room - head > ring and head < tail:
                frame = cells[(head % ring) >> 3] & LENGTH_MASK
                if frame < 8 or frame & 7 or frame > tail - head:
                    frame = tail - head  # damaged: where the next one starts is unknown
                head += frame
        if not self._mark[0]:
            raise Forked
        if forget:
            self._words[FORGOT] = head
            self._forgot = head
        self._limit = head + ring
        if padding:
            self._cells[off >> 3] = PADDING | padding
            off = 0
        return off, end

    def next_position(self, size: int) -> tuple[memoryview, int] | None:
        """The lane's header and the position behind a frame of `size` bytes; None where room must be made for it."""
        end = self._tail + size
        return (self._words, end) if end <= self._limit and self._off + size <= self._size else None

    def tail_position(self) -> tuple[memoryview, int, int]:
        """The lane's header, the position behind its last frame, the size of the ring."""
        return self._words, self._tail, self._size

    def in_the_way(self, size: int) -> Iterator[memoryview]:
        """The frames that one of `size` bytes would make forgotten, oldest first, as far as they can be told apart."""
        tail, ring = self._tail, self._size
        off = tail % ring
        end = tail + size + (ring - off if off + size > ring else 0)
        head = max(self._words[RELEASED], self._forgot)
        while end - head > ring and head < tail:
            at = head % ring
            check = self._cells[at >> 3]
            length = check & LENGTH_MASK
            if length < 8 or length & 7 or length > tail - head:
                return
            if not check & PADDING:
                yield self._mem[at : at + length]
            head += length

    def detach(self) -> None:
        """In a forked child, for good: whoever still holds this lane gets `Forked`."""
        self._mark = b"\0"

    def resync(self) -> bool:
        """After an interrupted offer: take over what was committed (True), take back what was not (False)."""
        if not self._mark[0]:
            return False
        tail = self._words[TAIL]
        committed = tail != self._tail
        if committed:
            self.seq = self._words[SEQ]
            self._tail = tail
        else:
            self._words[SEQ] = self.seq
        self._off = self._tail % self._size
        return committed


# The token: how one call of a process has something to itself for a while, without a lock.
#
#     me = object()
#     try:
#         if claims.setdefault(key, me) is not me:
#             return  # another call has it: this one does without, and waits for nobody
#         ...
#     finally:  # no call here: nothing can come between
#         if key in claims and claims[key] is me:
#             del claims[key]
#
# A lock would stay held for ever in a child that was forked meanwhile, and a signal handler or finalizer that comes
# while its own thread holds it would wait for itself. `setdefault` looks and stores in one indivisible step, for keys
# whose hash and comparison are not written in Python. Whatever is raised afterwards, the dict itself tells whose it is:
# an exception that came between the store and a flag "I have it" would leave the token there for ever. Handlers,
# exceptions that are injected into a thread, and other threads come in at calls and at jumps backwards only; between
# looking and deleting is neither.
#
# So it is written out in each place, and is no function or `with`: those would be calls at just these points, and
# `log()` goes through most of them. Places: `Blocks.offer`; `Cells.claim` (a `Claim` is the token, and the caller
# deletes it); `Encoder._intern`, `Device._make`, `device_copy._advance`; `Session.after_fork` (the key is the process)
# and `Outcome.claim` (never given back).


class Blocks:
    """The cells beside the rings that hold large payloads; each is taken by one record until that is gone.

    A cell is free when the agent has stored its payload, or when the frame that named it was released or forgotten.
    Whoever has its token in `_claims` (see above) uses the cell until that frame is committed: an interrupted call
    leaves nothing taken for longer than a lap of its lane.
    """

    __slots__ = ("_claims", "_count", "_mark", "_mem", "_uses", "_words", "cell_bytes")

    def __init__(self, mem: memoryview, mark: Mark = _NEVER_FORKED) -> None:
        words = mem.cast("Q")
        offset, size, count = words[layout.FILE_BLOCKS : layout.FILE_BLOCKS + 3]
        self._mem = mem[offset : offset + size * count]
        self._words = self._mem.cast("Q")
        self._mark = mark
        self._count = count
        self._claims: dict[int, object] = {}
        # cell -> header of the lane that uses it, position behind the frame that names it
        self._uses: dict[int, tuple[memoryview, int]] = {}
        self.cell_bytes = size

    def offer(self, lane: RingWriter, prefix: bytes, payload: bytes, seq: int) -> bool:
        """Commit one record whose payload lies in a cell; False, with nothing written, where none takes it."""
        if len(payload) > self.cell_bytes - layout.BLOCK_HEADER:
            return False
        for cell in range(self._count):
            me = object()
            try:
                if self._claims.setdefault(cell, me) is not me or not self._is_free(cell):
                    continue
                word = cell * self.cell_bytes >> 3
                number = self._words[word] + 1
                reference = BLOCK_REFERENCE.pack(cell, number, len(payload), crc32(payload))
                at = cell * self.cell_bytes + layout.BLOCK_HEADER
                stop = at + len(payload)
                if not self._mark[0]:
                    raise Forked
                self._uses[cell] = lane._words, lane._tail + 2 * lane._size  # corrected once it is committed
                self._words[word] = number
                self._mem[at:stop] = payload
                lane.offer_body(prefix, reference, seq)
                self._uses[cell] = lane._words, lane._tail
                return True
            finally:  # no call here, see "the token"
                if cell in self._claims and self._claims[cell] is me:
                    del self._claims[cell]
        return False

    def _is_free(self, cell: int) -> bool:
        word = cell * self.cell_bytes >> 3
        if self._words[word] == self._words[word + 1] or cell not in self._uses:
            return True
        lane, end = self._uses[cell]
        return end <= lane[RELEASED] or end <= lane[FORGOT]

    def detach(self) -> None:
        """In a forked child, for good: whoever still holds a cell gets `Forked`."""
        self._mark = b"\0"


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


class Alike:
    """The frames of a `Taken` that are all alike, as a sequence that is not laid out: a list of them costs as a CRC."""

    __slots__ = ("_count", "_head", "_size")

    def __init__(self, size: int, head: int, count: int) -> None:
        self._size = size
        self._head = head
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Frame]:
        return zip(range(0, self._count * self._size, self._size), repeat(self._size), repeat(self._head))

    def __getitem__(self, index: int) -> Frame:
        return range(0, self._count * self._size, self._size)[index], self._size, self._head


class Taken:
    """Frames that one `RingReader.take` copied: whole ones that check, and where they end.

    `frames` are (offset, size, head word) into `data`; `first_seq` belongs to the first of them, each next one is
    one higher except where `jumps` (index -> seq) says otherwise. `is_alike`: all have one size and head word, lie end
    to end from the beginning of `data`, and no seq is missing between them.
    """

    __slots__ = ("damaged", "data", "end", "first_seq", "frames", "is_alike", "jumps", "last_seq", "start")

    def __init__(self, data: bytes, start: int) -> None:
        self.data = data
        self.start = self.end = start
        self.frames: list[Frame] | Alike = []
        self.jumps: dict[int, int] = {}
        self.is_alike = False
        self.first_seq = 0
        self.last_seq = 0
        self.damaged: list[tuple[int, int]] = []  # seq ranges, inclusive

    def jumps_before(self, index: int) -> int:
        """The seq of the frame before the one at `index`."""
        at = self.frames[index - 1][0]
        return int.from_bytes(self.data[at + 8 : at + 16], "little")

    def cut(self, index: int) -> None:
        """Keep the frames before that one, and what lay between them; at least one."""
        self.end = self.start + self.frames[index][0]
        self.last_seq = self.jumps_before(index)
        self.frames = list(self.frames)[:index]
        self.jumps = {at: seq for at, seq in self.jumps.items() if at < index}
        self.damaged = [(first, last) for first, last in self.damaged if last < self.last_seq]

    def note_damage(self, before: int, upto: int) -> None:
        """Note as damaged what lies between the last whole frame (of this copy, else seq `before`) and `upto`."""
        first = (self.last_seq or before) + 1
        if upto >= first:
            self.damaged.append((first, upto))


class RingReader:
    """Copies frames out of one lane and never writes to its ring."""

    __slots__ = ("_mem", "_size", "_skipped", "_suspect", "position", "seq", "words")

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
        self._suspect = (-1, 0)  # position that did not check, how often it was looked at
        self._skipped = -1  # position up to which damage was skipped, if what follows is not yet known

    @property
    def pending(self) -> int:
        """Bytes committed and not yet taken (what was forgotten meanwhile included)."""
        return self.words[TAIL] - self.position

    @property
    def size(self) -> int:
        """Bytes of the ring."""
        return self._size

    def take(self, most_bytes: int = 1 << 20) -> Taken | None:
        """Copy the next frames; None when there is nothing (or nothing that checks yet).

        The caller sets `seq` to `last_seq` once it has kept what was taken, or `position` back to try again.
        """
        while True:
            tail = self.words[TAIL]
            start = max(self.position, self.words[FORGOT])
            if start >= tail or tail - start > self._size:  # nothing, or a store seen out of order
                return None
            off = start % self._size
            stop = min(tail, start + most_bytes, start + self._size - off)
            is_cut = stop == start + most_bytes < tail
            data = bytes(self._mem[off : off + stop - start])
            forgot = self.words[FORGOT]
            if forgot >= stop:
                self.position = max(self.position, forgot)
                continue
            if forgot > start:  # overwritten while it was copied
                data = data[forgot - start :]
                start = forgot
            taken = self._check(data, start, is_cut)
            if taken.end > start:
                self.position = taken.end
                return taken
            if not is_cut:
                return None
            most_bytes = self._size  # a frame larger than the usual copy, or one that does not check

    def _check(self, data: bytes, start: int, is_cut: bool) -> Taken:
        taken = Taken(data, start)
        cells = memoryview(data).cast("Q")
        if start != self._skipped and _take_alike(taken, cells):
            self._skipped = -1
            return taken
        view = memoryview(data)
        frames: list[Frame] = []
        taken.frames = frames
        jumps, total = taken.jumps, len(data)
        at, expected, skipped = 0, 0, start == self._skipped
        while at < total:
            word = cells[at >> 3]
            size = word & LENGTH_MASK
            stop = at + size
            if (
                size < layout.FRAME_PREFIX
                or size & 7
                or word & PADDING
                or stop > total
                or crc32(view[at + 8 : stop]) != word >> 32
            ):
                if word == PADDING | size and (start + stop) % self._size == 0 and 8 <= size <= self._size:
                    at = stop  # to the end of the lap, beyond the copy or not: what padding holds does not matter
                    continue
                if is_cut or not self._give_up(start + at):
                    break
                skipped = True
                at = next_sound(cells, view, at + 8, total, taken.last_seq or self.seq)
                continue
            seq = cells[(at >> 3) + 1]
            if seq != expected:
                if not frames:
                    taken.first_seq = seq
                else:
                    jumps[len(frames)] = seq
                if skipped:
                    taken.note_damage(self.seq, seq - 1)
            skipped = False
            frames.append((at, size, cells[(at >> 3) + 5]))
            taken.last_seq = seq
            expected = seq + 1
            at = stop
        if skipped and start + at >= self.words[TAIL]:
            taken.note_damage(
                self.seq, self.words[SEQ]
            )  # nothing sound up to the tail: SEQ says how many were lost
            taken.last_seq = max(taken.last_seq, self.words[SEQ])
        taken.end = start + at
        self._skipped = taken.end if skipped else -1
        return taken

    def _give_up(self, position: int) -> bool:
        suspect, looks = self._suspect
        self._suspect = (position, looks + 1 if suspect == position else 1)
        return self._suspect[1] > _RETRY_LOOKS


def next_sound(words: memoryview, view: memoryview, at: int, total: int, above: int = -1) -> int:
    """Return the next offset at which a frame checks whose seq is above that one; `total` where there is none."""
    while at + layout.FRAME_PREFIX <= total:
        word = words[at >> 3]
        size = word & LENGTH_MASK
        may_be = layout.FRAME_PREFIX <= size <= total - at and not word & (PADDING | 7)
        if may_be and words[(at >> 3) + 1] > above and crc32(view[at + 8 : at + size]) == word >> 32:
            return at
        at += 8
    return total


def _take_alike(taken: Taken, cells: memoryview) -> bool:
    """Take frames of one size and shape that follow each other, as a loop logs them: without a look at each in Python.

    False, and nothing is taken, where one is another or does not check: then they are taken one by one.
    """
    data, total = taken.data, len(taken.data)
    size = cells[0] & LENGTH_MASK
    count = total // size if size >= layout.FRAME_PREFIX and not size & 7 else 0
    if count < _ALIKE_FRAMES:
        return False
    end, width = count * size, size >> 3
    heads = cells[5 : end >> 3 : width].tolist()
    seqs = cells[1 : end >> 3 : width].tolist()
    if heads.count(heads[0]) != count or seqs != list(range(seqs[0], seqs[0] + count)):
        return False
    halves = memoryview(data).cast("I")  # of the first word: size, CRC
    sizes = halves[: end >> 2 : size >> 2].tolist()
    checks = halves[1 : end >> 2 : size >> 2].tolist()
    if sizes.count(size) != count:
        return False
    if [crc32(body) for (body,) in iter_unpack(f"8x{size - 8}s", memoryview(data)[:end])] != checks:
        return False
    taken.frames = Alike(size, heads[0], count)
    taken.first_seq, taken.last_seq = seqs[0], seqs[-1]
    taken.is_alike = True
    taken.end = taken.start + end  # what follows is for the next call
    return True


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

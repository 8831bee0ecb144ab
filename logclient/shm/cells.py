"""Device cells: memory into which a device writes values by itself, each value of a record at its place.

`Cells` belongs to the training process; `read_cell` and `free_cell` to the agent. Both see one file beside the lane
file, made with the first device value. The record itself lies in a lane for such records (`Lanes.device`): its step,
time and host values are those of the call, its device values are looked up in the cell once they are there.

::

    page 0   magic, bytes, then offset, cell bytes and number of cells of each class; cells from byte 4096
    cell     +0 u64 taken, counted up by the producer    +8 u64 freed: equal to taken once the agent stored it
             +16 u32 number of values, u32 their offset
             +24 u16 place in the record, u16 type, for each value; then the values, 4 or 8 bytes each
    payload of a frame with DEVICE_SHAPE
             +0 u64 head of the record as it will be   +8 u64 offset of its cell   +16 u64 taken
             +24 that record's payload, with zeros where device values go

A word that is still to come reads ABSENT, which the producer writes before it asks for the copy. As a float that is a
NaN which no arithmetic makes; a value of 64 bits is there when neither half reads so. One value in some billions of
64 bits has such a half: it counts as one that never came. So a copy needs no tag behind it, and one call of the driver
is enough for a record.

Invariants:

- each word is written once per use, so what does not read ABSENT is the value;
- a cell is taken again only when all its values were seen, so no copy is under way, and its record was stored or
  forgotten;
- the number of cells bounds the copies in flight; beyond it, values are left out and counted.
"""

from __future__ import annotations

import errno
import mmap
import os
from itertools import count
from struct import Struct, unpack

from ..guest.descriptors import Mapped
from . import layout, modes
from .layout import CELL_CLASSES, CELL_HEADER, CELLS_BYTES, CELLS_CLASSES, FORGOT, RELEASED
from .ring import Forked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from .ring import Mark, RingWriter

    Values: TypeAlias = "list[tuple[int, str, int | float]]"

FULL_BYTES = 640 << 10
MIN_BYTES = FULL_BYTES >> 4
# bytes of a cell, cells, at FULL_BYTES; few of the smallest are enough mostly, and used again while they are in a cache
_CLASSES = ((128, 128), (128, 1920), (1024, 128), (32 << 10, 8))
LARGEST = _CLASSES[-1][0]
_LOOKS = 4  # cells looked at for a free one: they become free in turn
ABSENT = 0x7FA5_C3E1.to_bytes(4, "little")
TYPES = {1: ("f", 4), 2: ("d", 8), 3: ("q", 8)}  # how a value lies in its cell
_LOST = 0x8000  # with a type: the value will not come
_META = Struct("<II")
_PLACE = Struct("<HH")
REFERENCE = Struct("<QQQ")  # head, cell, taken


def describe(places: list[tuple[int, int]]) -> tuple[bytes, int]:
    """Return the type table of a cell for values of (place, type), widest first, and the offset of the values.

    The values themselves read ABSENT.
    """
    start = CELL_HEADER + (4 * len(places) + 7 & ~7)
    head = _META.pack(len(places), start) + b"".join([_PLACE.pack(*place) for place in places])
    words = sum(TYPES[kind][1] for _, kind in places) // 4
    return head.ljust(start - 16, b"\0") + ABSENT * words, start


class Claim:
    """A cell that one call holds, and how far the call came with it. Noting it calls nothing else."""

    cell = 0
    taken = 0  # which use of the cell it is; 0 as long as it is nobody's
    launched = 0  # so many of its values were surely asked of the device
    asked = 0  # and so many perhaps


class Cells:
    """The cells of one process incarnation."""

    __slots__ = ("_classes", "_mark", "claims", "map", "mem", "path", "uses", "words")

    def __init__(self, path: str, total_bytes: int, mark: Mark) -> None:
        """Make the file, reserved and populated. Raises OSError."""
        scale = total_bytes / FULL_BYTES
        sizes = [(size, max(1, int(amount * scale))) for size, amount in _CLASSES]
        length = mmap.PAGESIZE + sum(size * amount for size, amount in sizes)
        length = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
        making, fd = path + modes.MAKING, -1
        try:
            modes.remove_if_there(making)  # of a call that was interrupted
            fd = modes.new_file(making, os.O_RDWR)
            modes.reserve(fd, length)
            self.map = Mapped(fd, length, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            self.mem = memoryview(self.map)
            self.words = words = self.mem.cast("Q")
            words[CELLS_BYTES] = length
            at = mmap.PAGESIZE
            self._classes: list[tuple[int, int, int, range, Callable[[], int]]] = []
            for index, (size, amount) in enumerate(sizes):
                words[CELLS_CLASSES + 3 * index] = at
                words[CELLS_CLASSES + 3 * index + 1], words[CELLS_CLASSES + 3 * index + 2] = size, amount
                self._classes.append((at, size, amount, range(min(_LOOKS, amount)), count().__next__))
                at += size * amount
            words[0] = layout.CELLS_MAGIC
            os.rename(making, path)  # complete before anybody sees it
        except BaseException:
            modes.remove_if_there(making)
            raise
        finally:
            if fd >= 0:
                os.close(fd)
        self.path = path
        self._mark = mark
        self.claims: dict[int, Claim] = {}
        # cell -> header of a lane, position behind the frame that names it
        self.uses: dict[int, tuple[memoryview, int]] = {}

    def claim(self, size: int, me: Claim) -> tuple[int, int] | None:
        """Take a cell of at least `size` bytes: (offset, taken); None where all are in use.

        `me` is the token of `ring.py`: whatever comes, the caller deletes `claims[me.cell]` if that is `me`, with no
        call before.
        """
        words, claims, fitting = self.words, self.claims, 0
        for first, cell_bytes, amount, looks, turn in self._classes:
            if cell_bytes < size:
                continue
            if fitting and cell_bytes > fitting:
                return None  # a larger one would be taken from those who need it
            fitting = cell_bytes
            for _ in looks:
                cell = first + turn() % amount * cell_bytes
                me.cell = cell
                if claims.setdefault(cell, me) is me:
                    at = cell >> 3
                    taken = words[at]
                    if words[at + 1] == taken or self._is_free(cell):
                        if not self._mark[0]:
                            raise Forked
                        words[at] = taken + 1
                        me.taken = taken + 1  # no call between: a cell that is another's is never given up
                        return cell, taken + 1
                    del claims[cell]
        return None

    def begin(self, cell: int, content: bytes, lane: RingWriter) -> None:
        """Say what will lie in it. Until `name` is called it counts as named by a later frame of the lane."""
        words, tail, size = lane.tail_position()
        if not self._mark[0]:
            raise Forked
        self.uses[cell] = words, tail + 2 * size
        self.mem[cell + 16 : cell + 16 + len(content)] = content

    def name(self, cell: int, lane: RingWriter) -> None:
        """The lane's last frame names it: in use until the agent has stored that, or the lane forgot it."""
        words, tail, _ = lane.tail_position()
        self.uses[cell] = words, tail

    def give_up(self, me: Claim, asked: int) -> None:
        """No record will name the cell: it is free once the first `asked` of its values are there."""
        if me.taken:
            amount = _META.unpack_from(self.mem, me.cell + 16)[0]
            marks, start = self.marks(me.cell, range(asked, amount)), me.cell + CELL_HEADER
            stop = start + len(marks)
            if not self._mark[0]:
                return  # it is the parent's
            self.mem[start:stop] = marks
            self.uses.pop(me.cell, None)

    def marks(self, cell: int, lost: Iterable[int]) -> bytes:
        """Return the cell's type table, from byte CELL_HEADER on, with the values at these indexes marked as lost."""
        amount = _META.unpack_from(self.mem, cell + 16)[0]
        found = bytearray(self.mem[cell + CELL_HEADER : cell + CELL_HEADER + 4 * amount])
        for index in lost:
            place, kind = _PLACE.unpack_from(found, 4 * index)
            _PLACE.pack_into(found, 4 * index, place, kind | _LOST)
        return bytes(found)

    def is_awaited(self, payload: memoryview) -> bool:
        """Apply the function `is_awaited` to a cell of this memory."""
        return is_awaited(self.mem, payload)

    def in_flight(self) -> int:
        """Cells whose values are not all there yet."""
        words, waiting = self.words, 0
        for first, cell_bytes, amount, _, _ in self._classes:
            for cell in range(first, first + cell_bytes * amount, cell_bytes):
                taken = words[cell >> 3]
                if taken and words[cell + 8 >> 3] != taken:
                    waiting += self._is_waiting(cell, taken)
        return waiting

    def _is_free(self, cell: int) -> bool:
        taken = self.words[cell >> 3]
        if self.words[cell + 8 >> 3] == taken:
            return True
        lane, end = self.uses.get(cell, (None, 0))
        if lane is not None and end > lane[RELEASED] and end > lane[FORGOT]:
            return False
        return not self._is_waiting(cell, taken)  # else the device may still write

    def _is_waiting(self, cell: int, taken: int) -> bool:
        try:
            return bool(read_cell(self.mem, cell, taken)[1])
        except LookupError:  # somebody else wrote into it
            return False

    def detach(self) -> None:
        """In a forked child, for good."""
        self._mark = b"\0"


class BadCells(Exception):
    """The file is none of cells."""


def check(mem: memoryview) -> None:
    """Raises BadCells where the file's head contradicts it."""
    words = mem.cast("Q")
    if len(mem) < mmap.PAGESIZE or words[0] != layout.CELLS_MAGIC or words[CELLS_BYTES] != len(mem):
        raise BadCells
    for index in range(CELL_CLASSES):
        at, size, amount = words[CELLS_CLASSES + 3 * index : CELLS_CLASSES + 3 * index + 3]
        if at % 8 or size % 8 or size < CELL_HEADER or at + size * amount > len(mem):
            raise BadCells


def read_cell(mem: memoryview, cell: int, taken: int) -> tuple[Values, list[int], list[int]]:
    """Read a use of a cell: (place, type letter, value) of values that came, places of those to come, and lost ones.

    Raises LookupError where the cell was taken again, or what is in it makes no sense.
    """
    if cell % 8 or not mmap.PAGESIZE <= cell <= len(mem) - CELL_HEADER:
        raise LookupError(cell)
    if mem[cell : cell + 8].cast("Q")[0] != taken:
        raise LookupError(cell)
    amount, start = _META.unpack_from(mem, cell + 16)
    there: Values = []
    waiting: list[int] = []
    lost: list[int] = []
    at = cell + start
    if start < CELL_HEADER + 4 * amount or at + 4 * amount > len(mem):
        raise LookupError(cell)
    for index in range(amount):
        place, kind = _PLACE.unpack_from(mem, cell + CELL_HEADER + 4 * index)
        letter, size = TYPES.get(kind & ~_LOST, ("", 0))
        if not letter or at + size > len(mem):
            raise LookupError(cell)
        word = bytes(mem[at : at + size])
        if kind & _LOST:
            lost.append(place)
        elif word[:4] == ABSENT or word[-4:] == ABSENT:
            waiting.append(place)
        else:
            there.append((place, letter, unpack("<" + letter, word)[0]))
        at += size
    return there, waiting, lost


def is_awaited(mem: memoryview, payload: bytes | memoryview) -> bool:
    """May values of a record with this payload, that of a frame with DEVICE_SHAPE, still come?"""
    if len(payload) < REFERENCE.size:
        return False
    _, cell, taken = REFERENCE.unpack_from(payload)
    try:
        return bool(read_cell(mem, cell, taken)[1])
    except LookupError:
        return False


def free_cell(mem: memoryview, cell: int, taken: int) -> None:
    """Tell the producer that the record is stored."""
    mem.cast("Q")[cell + 8 >> 3] = taken


def reserve(path: str, room: Callable[[], int], mark: Mark) -> Cells:
    """Cells within the run's budget on this node: fewer where it is short. Raises OSError."""
    wanted = FULL_BYTES
    while wanted >= MIN_BYTES:
        if room() >= wanted:
            try:
                return Cells(path, wanted, mark)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
                    raise
        wanted //= 2
    raise OSError(errno.ENOSPC, "the run's share of shared memory is used up", path)

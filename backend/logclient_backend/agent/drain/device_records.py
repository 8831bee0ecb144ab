"""Records that a device completes: wait for their values, put them in, or say that they will not come.

Runs in the worker; touches shared memory only.

Invariants:

- a record is taken out of its lane when all its values are there, or its process is dead: records stay in order;
- a cell is freed only after its record is staged;
- a value that never came is left out of its record and counted; everything else of the record is kept.
"""

from __future__ import annotations

import mmap
import os
from array import array
from struct import pack_into

from logclient.errors import Corrupt
from logclient.shm import cells, layout
from logclient.shm.columns import Columns
from logclient.shm.record import PREFIX, VARIABLE, Shape, variable_cells
from logclient.shm.regular import open_regular
from logclient.shm.ring import Taken

from ...wal.files import WRITE
from ..host.mapping import map_file
from ..host.shm_dir_handle import ShmDirHandle

_MAX_BYTES = 64 << 20


class Cells:
    """The cells of one producer, as soon as there are any."""

    def __init__(self, handle: ShmDirHandle, name: str) -> None:
        self._handle = handle
        self._name = name
        self._mem: memoryview | None = None

    def memory(self) -> memoryview | None:
        """None where the file is not there, or none of cells."""
        if self._mem is None:
            try:
                fd = open_regular(self._handle.file(self._name), WRITE)
            except OSError:
                return None
            try:
                size = os.fstat(fd).st_size
                if not mmap.PAGESIZE <= size <= _MAX_BYTES:
                    return None
                found = memoryview(map_file(fd, size))
                cells.check(found)
                self._mem = found
            except (OSError, ValueError, cells.BadCells):
                return None
            finally:
                os.close(fd)
        return self._mem

    def is_awaited(self, payload: memoryview) -> bool:
        """May values of a record with this payload still come?"""
        mem = self.memory()
        return mem is not None and cells.is_awaited(mem, payload)

    def free(self, cell: int, taken: int) -> None:
        """Its record is staged."""
        mem = self.memory()
        if mem is not None:
            try:
                cells.free_cell(mem, cell, taken)
            except (IndexError, ValueError):
                pass  # a damaged reference


def ready(area: Cells, taken: Taken) -> int:
    """Return how many of these frames, from the first, have all their values."""
    data = memoryview(taken.data)
    for index, (at, size, head) in enumerate(taken.frames):
        payload = data[at + layout.FRAME_PREFIX : at + size]
        if head & layout.SHAPE_MASK == layout.DEVICE_SHAPE and area.is_awaited(payload):
            return index
    return len(taken.frames)


def complete(area: Cells, payload: bytes, shape: Shape, at: int) -> tuple[bytes, list[int]]:
    """The record's payload (from byte `at` of the frame's) with its values in it, and the places that stay empty.

    Raises Corrupt where the cell is gone or does not belong to it any more.
    """
    _, cell, number = cells.REFERENCE.unpack_from(payload)
    mem = area.memory()
    if mem is None:
        raise Corrupt("device record", cell, "cells of its process", "none")
    try:
        there, waiting, lost = cells.read_cell(mem, cell, number)
    except LookupError:
        raise Corrupt("device record", cell, f"use {number} of the cell", "another one") from None
    filled = bytearray(payload[at:])
    last = max([place for place, _, _ in there] + waiting + lost, default=0)
    if 8 * last + 8 > min(len(filled), 8 * len(shape.codes)):
        raise Corrupt("device record", cell, f"places below {len(shape.codes)}", last)
    for place, letter, value in there:
        pack_into("<q" if letter == "q" else "<d", filled, 8 * place, value)
    return bytes(filled), waiting + lost


def without(shape: Shape, rank: int | None, frame: bytes, empty: list[int]) -> Columns:
    """The record less the values at those places."""
    _, seq, order, step, time, _ = PREFIX.unpack_from(frame)
    given = variable_cells(shape, frame[layout.FRAME_PREFIX :])
    kept = [place for place in range(len(shape.codes)) if place not in empty]
    codes = "".join(shape.codes[place] for place in kept)
    part = Shape(tuple(shape.names[place] for place in kept), codes)
    columns = [
        [given[place]] if shape.codes[place] in VARIABLE else array("Q", given[place]) for place in kept
    ]
    one = array("Q", [seq]), array("Q", [order]), array("q", [step]), array("q", [time])
    return Columns(part, rank, *one, columns)

"""`Rows`: records of one stream, key table and rank as numpy columns; read from the body of a tail row.

Pure. A tail row holds the records of one `StreamColumns` as they came (`wal/encoded.py`).

Invariants: what comes out is what went in, bit by bit; rows are in rising order of seq, each seq once.
"""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from logclient.shm.columns import Columns
from logclient.shm.record import FLOATS, VARIABLE, Shape

from ....wal.codec import DELTA, RANGE, Codec
from ....wal.encoded import unpack
from ....wal.varint import Reader
from .pack import Ints, Words

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from logclient.shm.record import Value

_FLOAT, _INT = Struct("<d"), Struct("<q")
_WORD = (1 << 64) - 1

Cells: TypeAlias = "Words | list[bytes]"


@dataclass(slots=True)
class Rows:
    """Some records; `cells` holds the columns that were asked for, by place in the key table."""

    seq: Words
    order: Words
    step: Ints
    time: Ints
    cells: dict[int, Cells]

    def __len__(self) -> int:
        return len(self.seq)

    def part(self, start: int, stop: int) -> Rows:
        cut = slice(start, stop)
        cells = {place: cells[cut] for place, cells in self.cells.items()}
        return Rows(self.seq[cut], self.order[cut], self.step[cut], self.time[cut], cells)

    def taken(self, positions: Ints) -> Rows:
        """Return the rows at these positions, in that order."""
        cells: dict[int, Cells] = {}
        for place, column in self.cells.items():
            if isinstance(column, list):
                cells[place] = [column[at] for at in positions.tolist()]
            else:
                cells[place] = column[positions]
        at = positions
        return Rows(self.seq[at], self.order[at], self.step[at], self.time[at], cells)

    def in_order(self) -> Rows:
        """By seq."""
        if len(self) < 2 or (self.seq[1:] > self.seq[:-1]).all():
            return self
        return self.taken(np.argsort(self.seq, kind="stable"))

    def between(self, first: int, last: int) -> Rows:
        """Return the rows with seqs from `first` to `last`."""
        start = int(np.searchsorted(self.seq, np.uint64(first)))
        stop = int(np.searchsorted(self.seq, np.uint64(last), side="right"))
        return self if stop - start == len(self) else self.part(start, stop)

    def oldest(self) -> int:
        """Position of the one with the lowest (time, order, seq)."""
        at = np.flatnonzero(self.time == self.time.min())
        if len(at) > 1:
            orders = self.order[at]
            at = at[orders == orders.min()]
        return int(at[0])


def joined(parts: Sequence[Rows]) -> Rows:
    """One behind the other."""
    if len(parts) == 1:
        return parts[0]
    cells: dict[int, Cells] = {}
    for place, column in parts[0].cells.items():
        if isinstance(column, list):
            cells[place] = [cell for part in parts for cell in part.cells[place]]
        else:
            cells[place] = np.concatenate([part.cells[place] for part in parts])
    return Rows(
        np.concatenate([part.seq for part in parts]),
        np.concatenate([part.order for part in parts]),
        np.concatenate([part.step for part in parts]),
        np.concatenate([part.time for part in parts]),
        cells,
    )


def heads_of(columns: Columns) -> Rows:
    """Without a copy, and without the cells."""
    return Rows(
        np.frombuffer(columns.seq, np.uint64),
        np.frombuffer(columns.order, np.uint64),
        np.frombuffer(columns.step, np.int64),
        np.frombuffer(columns.time, np.int64),
        {},
    )


def to_columns(rows: Rows, shape: Shape, rank: int | None, places: Sequence[int] | None = None) -> Columns:
    """`shape` is that of the columns at `places`."""
    cells: list[array[int] | list[bytes]] = []
    for place in range(len(shape.codes)) if places is None else places:
        column = rows.cells[place]
        cells.append(column if isinstance(column, list) else array("Q", column.tobytes()))
    return Columns(
        shape,
        rank,
        array("Q", rows.seq.tobytes()),
        array("Q", rows.order.tobytes()),
        array("q", rows.step.tobytes()),
        array("q", rows.time.tobytes()),
        cells,
    )


def values_of(code: str, cells: Cells) -> Sequence[Value]:
    """Python values; `logclient.shm.record.read_column` for these columns."""
    if isinstance(cells, list):
        if code == "s":
            return [cell.decode("utf-8", "replace") for cell in cells]
        return [int.from_bytes(cell, "little", signed=True) for cell in cells]
    if code in FLOATS:
        return cells.view(np.float64).tolist()  # type: ignore[no-any-return]
    numbers: list[int] = cells.view(np.int64).tolist()
    return list(map(bool, numbers)) if code == "b" else numbers


def raw_value(cells: Cells, at: int) -> bytes:
    """The bytes of one value, as `value_of` reads them."""
    return cells[at] if isinstance(cells, list) else cells[at : at + 1].tobytes()


def value_of(code: str, raw: bytes) -> Value:
    """One value; of very many runs, so without numpy."""
    if code in FLOATS:
        return float(_FLOAT.unpack(raw)[0])
    if code in "qb":
        number: int = _INT.unpack(raw)[0]
        return bool(number) if code == "b" else number
    return values_of(code, [raw])[0]


def floats_of(code: str, cells: Cells) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the values as a chart shows them; ints beyond 2**53 are rounded, those beyond a float are infinite."""
    if isinstance(cells, list):
        numbers = [int.from_bytes(cell, "little", signed=True) for cell in cells]
        return np.array([_float(number) for number in numbers], np.float64)
    if code in FLOATS:
        return cells.view(np.float64)
    return cells.view(np.int64).astype(np.float64)


def _float(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


# ---- bodies of tail rows ------------------------------------------------------------------------------------


def read_tail(body: bytes, count: int, codes: str, places: Sequence[int] | None = None) -> Rows:
    """The records; with `places`, only those columns of them. `ValueError` where the bytes are none."""
    rows = read_tails([(body, count)], codes)
    if places is not None:
        rows.cells = {place: rows.cells[place] for place in places}
    return rows


class _ArrayCodec(Codec):
    """A codec that makes columns with numpy, for bodies that another one has checked: some ten times faster."""

    def numbers(self, reader: Reader, mode: int, code: str, first: int, count: int) -> array[int]:
        # Modulo 2**64: two steps may lie further apart than an int64 holds, and a time or a seq may begin beyond one.
        found: npt.NDArray[Any]
        if mode == RANGE and count > 1:
            stride = np.uint64(reader.zigzag() & _WORD)
            found = np.arange(count, dtype=np.uint64) * stride + np.uint64(first & _WORD)
        elif mode == DELTA and count > 1:
            found = np.empty(count, np.uint64)
            found[0] = first & _WORD
            found[1:] = np.frombuffer(self.unplanes(reader, count - 1), np.uint64)
            np.cumsum(found, out=found)
        else:
            return super().numbers(reader, mode, code, first, count)
        return found.view(np.uint64 if code == "Q" else np.int64)  # type: ignore[return-value]  # read as a buffer


class _Codecs(threading.local):
    """A codec for each thread."""

    def __init__(self) -> None:
        self.arrays = _ArrayCodec()


_codecs = _Codecs()


def read_tails(packed: Sequence[tuple[bytes, int]], codes: str) -> Rows:
    """The records of several (body, count), one behind the other; no loop over rows for each key of a fixed code."""
    fixed = [place for place, code in enumerate(codes) if code not in VARIABLE]
    variable = [place for place, code in enumerate(codes) if code in VARIABLE]
    codec = _codecs.arrays
    parts = [body.decode(codes, codec=codec) for body_of_row, _ in packed for body in unpack(body_of_row)]
    expected, found = sum(count for _, count in packed), sum(len(part.seq) for part in parts)
    if found != expected:
        raise ValueError(f"tail rows of {expected} records expected, found {found}")
    cells: dict[int, Cells] = {}
    for index, place in enumerate(variable):
        cells[place] = [text for part in parts for text in part.texts[index]]
    if fixed:
        words = [np.frombuffer(part.words, np.uint64).reshape(len(fixed), -1) for part in parts]
        cells.update(zip(fixed, np.concatenate(words, axis=1), strict=True))
    return Rows(
        np.concatenate([np.frombuffer(part.seq, np.uint64) for part in parts]),
        np.concatenate([np.frombuffer(part.order, np.uint64) for part in parts]),
        np.concatenate([np.frombuffer(part.step, np.int64) for part in parts]),
        np.concatenate([np.frombuffer(part.time, np.int64) for part in parts]),
        cells,
    )

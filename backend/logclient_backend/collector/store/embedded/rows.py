"""`Rows`: records of one stream, key table and rank as numpy columns; and the body of a tail row.

Pure. A tail row holds the records of one `StreamColumns`, nearly as they came::

    u16 number of pieces, then u32 length of each
    numbers seq, order, step, time
    words   of all keys with a fixed code, key behind key (absent where there is none)
    texts   of each key with a variable code

Invariants: what comes out is what went in, bit by bit; rows are in rising order of seq, each seq once.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from struct import Struct, pack, unpack_from
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from logclient.shm.columns import Columns
from logclient.shm.record import FLOATS, VARIABLE, Shape

from .pack import Ints, Packer, Words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logclient.shm.columns import Column
    from logclient.shm.record import Value

_FLOAT, _INT = Struct("<d"), Struct("<q")

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


def pack_tail(packer: Packer, rows: Rows, columns: Columns) -> bytes:
    """`rows` are the heads of the columns, whose cells are taken as they came: a record may have thousands."""
    pieces = [packer.numbers(column) for column in (rows.seq, rows.order, rows.step, rows.time)]
    cells: Sequence[Column] = columns.cells
    texts = [] if columns.shape.fixed else [column for column in cells if isinstance(column, list)]
    fixed = cells if not texts else [column for column in cells if not isinstance(column, list)]
    if fixed:
        pieces.append(packer.words(np.frombuffer(b"".join(fixed), np.uint64)))  # type: ignore[arg-type]
    pieces += map(packer.texts, texts)
    return pack(f"<H{len(pieces)}I", len(pieces), *map(len, pieces)) + b"".join(pieces)


def read_tail(
    packer: Packer, body: bytes, count: int, codes: str, places: Sequence[int] | None = None
) -> Rows:
    """The records; with `places`, only those columns of them. `ValueError` where the bytes are none."""
    pieces = _pieces(body, codes)
    fixed, variable = _places(codes)
    wanted = set(range(len(codes)) if places is None else places)
    cells: dict[int, Cells] = {}
    if not wanted.isdisjoint(fixed):
        words = packer.read_words(pieces[4], count * len(fixed))
        for index, place in enumerate(fixed):
            if place in wanted:
                cells[place] = words[index * count : (index + 1) * count]
    for place, piece in zip(variable, pieces[4 + bool(fixed) :], strict=True):
        if place in wanted:
            cells[place] = packer.read_texts(piece, count)
    seq, order, step, time = (packer.read_numbers(piece, count) for piece in pieces[:4])
    return Rows(seq.view(np.uint64), order.view(np.uint64), step, time, cells)


def read_tails(packer: Packer, bodies: Sequence[tuple[bytes, int]], codes: str) -> Rows:
    """The records of several (body, count), one behind the other; no loop over rows for each key of a fixed code."""
    fixed, variable = _places(codes)
    heads: list[list[Ints]] = [[], [], [], []]
    words: list[np.ndarray[tuple[int, int], np.dtype[np.uint64]]] = []
    texts: list[list[bytes]] = [[] for _ in variable]
    for body, count in bodies:
        pieces = _pieces(body, codes)
        for column, piece in zip(heads, pieces, strict=False):
            column.append(packer.read_numbers(piece, count))
        if fixed:
            words.append(packer.read_words(pieces[4], count * len(fixed)).reshape(len(fixed), count))
        for found, piece in zip(texts, pieces[4 + bool(fixed) :], strict=True):
            found += packer.read_texts(piece, count)
    cells: dict[int, Cells] = dict(zip(variable, texts, strict=True))
    if fixed:
        cells.update(zip(fixed, np.concatenate(words, axis=1), strict=True))
    seq, order, step, time = map(np.concatenate, heads)
    return Rows(seq.view(np.uint64), order.view(np.uint64), step, time, cells)


def _places(codes: str) -> tuple[list[int], list[int]]:
    """Return the places of keys with a fixed code, and of the others."""
    fixed = [place for place, code in enumerate(codes) if code not in VARIABLE]
    return fixed, [place for place, code in enumerate(codes) if code in VARIABLE]


def _pieces(body: bytes, codes: str) -> list[memoryview]:
    view = memoryview(body)
    (number,) = unpack_from("<H", view)
    sizes = unpack_from(f"<{number}I", view, 2)
    at = 2 + 4 * number
    pieces = []
    for size in sizes:
        pieces.append(view[at : at + size])
        at += size
    variable = sum(map(codes.count, VARIABLE))
    if at != len(body) or number != 4 + (variable < len(codes)) + variable:
        raise ValueError(f"{len(codes)} columns in {len(body)} bytes expected, found {number} pieces")
    return pieces

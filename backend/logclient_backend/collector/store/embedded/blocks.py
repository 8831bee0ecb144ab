"""Blocks: many records of one stream, key table and rank, each column packed for itself, with summaries for charts.

A block is a row of `block` (its head), rows of `coarse` and rows of `part`, numbered ``block << 20 | number``:

=========  ==============================================================================================
0 to 3     seq, order, step, time, as numbers (`pack.py`)
4          groups: words of six columns, each as differences: index, count, first step, and step, time, seq of the
           last record
8 + place  one key: its summary, then its words or texts
=========  ==============================================================================================

A *group* is the records of a block with the same ``step >> shift``; the shift is the smallest that leaves some
GROUP_RECORDS records to a group. Groups of a power of two nest in buckets of a larger one, so a chart that reads
summaries is the same as one that reads every value. A summary has, per group, the lowest and highest finite value, the
last value, and how many are NaN, plus infinity and minus infinity. The last record of a group is that with the highest
(step, seq); in store versions 1 and 2 it was that with the highest (step, time, seq). Values are summed up as floats;
texts have no summary::

    u8 which counts follow: bit 0 NaN, 1 plus infinity, 2 minus infinity; u32 size of the words
    words lowest, highest, last
    each count that follows: numbers per group, behind their u32 size; the last one reaches to the end without a size

A large block has its summaries once more, of groups of ``shift + COARSER``: in one row of `coarse` per key, next to the
key's rows of other blocks, so that a chart of a whole long series reads few pages::

    words: the six columns of groups and NaN per group, each as differences; lowest, highest, last
    with `groups` below 0: its absolute value, and behind NaN the counts of plus and of minus infinity

Store version 1 counted no infinities: there they were lowest and highest. A summary with such an extreme is not exact,
and the values themselves are read.

Invariants: records in a block rise by seq; at most MAX_RECORDS records and MAX_WORDS values; a block never changes;
one that has coarse groups is never merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from logclient.shm.record import VARIABLE

from .pack import Ints, Packer
from .rows import Cells, Rows, floats_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .database import Session

Floats: TypeAlias = npt.NDArray[np.float64]

MAX_RECORDS = 1 << 16
MAX_WORDS = 1 << 21
GROUP_RECORDS = 256
COARSER = 3  # bits
PART_BITS = 20
FIRST_CELL = 8
_GROUPS = 4
_GROUP_COLUMNS = 6
_COARSE_INTS, _COARSE_COLUMNS = 7, 10
_SUMMARY = Struct(
    "<BI"
)  # which counts follow (bit 0 NaN, 1 plus infinity, 2 minus infinity), bytes of the words
_COUNTS = 3


@dataclass(slots=True)
class Head:
    """The head of a block, parsed."""

    block: int
    stream: int
    table: int
    rank: int
    n: int
    first_seq: int
    last_seq: int
    min_step: int
    max_step: int
    groups: int
    shift: int

    @property
    def coarse_shift(self) -> int | None:
        """Size of its coarse groups as a shift; None where it has none."""
        return self.shift + COARSER if has_coarse(self.n) else None


@dataclass(slots=True)
class Groups:
    """Groups of a block, the same for all of its keys."""

    index: Ints  # step >> shift
    count: Ints
    first_step: Ints
    last_step: Ints
    last_time: Ints
    last_seq: Ints


@dataclass(slots=True)
class Summary:
    """Summaries of one key, per group."""

    low: Floats  # of what is finite; NaN where nothing is
    high: Floats
    last: Floats
    nans: Ints
    infs: Ints  # of plus infinity
    neg_infs: Ints
    is_exact: bool = (
        True  # False: store version 1 made it, and an infinity hides the finite extreme somewhere
    )


@dataclass(slots=True)
class Encoded:
    """A block, packed."""

    n: int
    groups: int
    shift: int
    first_seq: int
    last_seq: int
    min_step: int
    max_step: int
    parts: list[tuple[int, bytes | None, bytes]]  # number, summary, data
    coarse: list[tuple[int, int, bytes]]  # place of the key, groups, words

    @property
    def bytes(self) -> int:
        parts = sum(len(data) + len(summary or b"") for _, summary, data in self.parts)
        return parts + sum(len(words) for _, _, words in self.coarse)


def parts_of(block: int) -> tuple[int, int]:
    """First and last number that a part of it may have."""
    return block << PART_BITS, (block + 1 << PART_BITS) - 1


def most_records(keys: int) -> int:
    """Return how many records fit a block of so many keys."""
    return max(1, min(MAX_RECORDS, MAX_WORDS // max(1, keys)))


def has_coarse(records: int) -> bool:
    """Does a block of so many records have coarse groups? Only full ones do, however many keys they have."""
    return 2 * records >= MAX_RECORDS


def encode(packer: Packer, rows: Rows, codes: str) -> Encoded:
    """`rows` is whole and in order."""
    step = rows.step
    if (step[1:] > step[:-1]).all():
        by_step = None
    else:
        by_step = np.argsort(step, kind="stable")  # of equal steps the one with the highest seq is the last
        step = step[by_step]
    shift = _shift(step)
    starts = _starts(step >> shift)
    ends = np.append(starts[1:], len(step)) - 1
    last = ends if by_step is None else by_step[ends]
    groups = np.stack(
        (
            step[starts] >> shift,
            ends - starts + 1,
            step[starts],
            rows.step[last],
            rows.time[last],
            rows.seq[last].view(np.int64),
        )
    )
    coarse: list[tuple[int, int, bytes]] = []
    parts: list[tuple[int, bytes | None, bytes]] = [
        (number, None, packer.numbers(column))
        for number, column in enumerate((rows.seq, rows.order, rows.step, rows.time))
    ]
    # one piece: a chart reads those of very many blocks
    parts.append((_GROUPS, None, packer.words(np.diff(groups, axis=1, prepend=0).reshape(-1))))
    for place, code in enumerate(codes):
        cells = rows.cells[place]
        summary = None
        if code != "s":
            fine = _summarise(floats_of(code, cells), by_step, starts, ends)
            summary = _pack_summary(packer, fine)
            if has_coarse(len(rows)):
                coarse.append((place, *_pack_coarse(packer, *_coarser(Groups(*groups), fine))))
        data = packer.texts(cells) if isinstance(cells, list) else packer.words(cells)
        parts.append((FIRST_CELL + place, summary, data))
    return Encoded(
        len(rows),
        len(starts),
        shift,
        int(rows.seq[0]),
        int(rows.seq[-1]),
        int(step[0]),
        int(step[-1]),
        parts,
        coarse,
    )


def _shift(step: Ints) -> int:
    """The smallest that leaves at most one group per GROUP_RECORDS records, and one more."""
    most = len(step) // GROUP_RECORDS + 1
    if most == 1:
        first, last = int(step[0]), int(step[-1])
        return 63 if first < 0 <= last else (first ^ last).bit_length()
    low, high = 0, 63  # with 63 there are at most two groups: below 0, and the rest
    while low < high:
        middle = (low + high) // 2
        if np.count_nonzero(np.diff(step >> middle)) < most:
            high = middle
        else:
            low = middle + 1
    return low


def _starts(indexes: Ints) -> Ints:
    return np.concatenate(([0], np.flatnonzero(np.diff(indexes)) + 1))


def _summarise(values: Floats, by_step: Ints | None, starts: Ints, ends: Ints) -> Summary:
    if by_step is not None:
        values = values[by_step]
    nothing = np.zeros(len(starts), np.int64)
    if np.isfinite(values).all():
        low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
        return Summary(low, high, values[ends], nothing, nothing, nothing)
    finite = np.where(np.isfinite(values), values, np.nan)  # a signalling NaN would win over numbers
    counts = [
        np.add.reduceat(odd, starts, dtype=np.int64)
        for odd in (np.isnan(values), values == np.inf, values == -np.inf)
    ]
    low, high = np.fmin.reduceat(finite, starts), np.fmax.reduceat(finite, starts)
    return Summary(low, high, values[ends], counts[0], counts[1], counts[2])


def _pack_summary(packer: Packer, summary: Summary) -> bytes:
    counts = (summary.nans, summary.infs, summary.neg_infs)
    flags = sum(bool(count.any()) << bit for bit, count in enumerate(counts))
    words = packer.words(np.concatenate((summary.low, summary.high, summary.last)))
    odd = [packer.numbers(count) for count in counts if count.any()]
    sizes = [len(each).to_bytes(4, "little") for each in odd[:-1]]
    return b"".join((_SUMMARY.pack(flags, len(words)), words, *_between(odd, sizes)))


def _between(parts: list[bytes], sizes: list[bytes]) -> list[bytes]:
    """Each part behind its size, but for the last, which reaches to the end."""
    return [piece for part, size in zip(parts, [*sizes, b""], strict=False) for piece in (size, part)]


def _coarser(groups: Groups, summary: Summary) -> tuple[Groups, Summary]:
    index = groups.index >> COARSER
    starts = _starts(index)
    ends = np.append(starts[1:], len(index)) - 1
    return Groups(
        index[starts],
        np.add.reduceat(groups.count, starts),
        groups.first_step[starts],
        groups.last_step[ends],
        groups.last_time[ends],
        groups.last_seq[ends],
    ), Summary(
        np.fmin.reduceat(summary.low, starts),
        np.fmax.reduceat(summary.high, starts),
        summary.last[ends],
        np.add.reduceat(summary.nans, starts),
        np.add.reduceat(summary.infs, starts),
        np.add.reduceat(summary.neg_infs, starts),
    )


def _pack_coarse(packer: Packer, groups: Groups, summary: Summary) -> tuple[int, bytes]:
    """Pack the number of groups, and their words; a number below 0 means that infinities are counted there."""
    has_infinities = bool(summary.infs.any() or summary.neg_infs.any())
    ints = np.stack(
        (
            groups.index,
            groups.count,
            groups.first_step,
            groups.last_step,
            groups.last_time,
            groups.last_seq,
            summary.nans,
            *((summary.infs, summary.neg_infs) if has_infinities else ()),
        )
    )
    floats = np.concatenate((summary.low, summary.high, summary.last))
    differences = np.diff(ints, axis=1, prepend=0).reshape(-1)
    words = packer.words(np.concatenate((differences, floats.view(np.int64))))
    return -len(groups.index) if has_infinities else len(groups.index), words


# ---- reading ------------------------------------------------------------------------------------------------


def read_rows(session: Session, block: int, n: int, codes: str, places: Sequence[int] | None = None) -> Rows:
    """The records of a block; with `places`, only those columns of them."""
    packer = session.packer
    fetch = session.connection.execute
    first, last = parts_of(block)
    if places is None:
        found = fetch("SELECT id, data FROM part WHERE id BETWEEN ? AND ?", (first, last)).fetchall()
    else:
        found = fetch("SELECT id, data FROM part WHERE id BETWEEN ? AND ?", (first, first + 3)).fetchall()
        for place in places:
            found += fetch("SELECT id, data FROM part WHERE id=?", (first + FIRST_CELL + place,)).fetchall()
    data = {id - first: body for id, body in found}
    wanted = range(len(codes)) if places is None else places
    if not data.keys() >= {0, 1, 2, 3, *(FIRST_CELL + place for place in wanted)}:
        raise ValueError(f"block {block}: parts are missing")
    seq, order, step, time = (packer.read_numbers(data[number], n) for number in range(4))
    cells: dict[int, Cells] = {}
    for place in wanted:
        body = data[FIRST_CELL + place]
        is_variable = codes[place] in VARIABLE
        cells[place] = packer.read_texts(body, n) if is_variable else packer.read_words(body, n)
    return Rows(seq.view(np.uint64), order.view(np.uint64), step, time, cells)


def read_groups(session: Session, head: Head) -> Groups:
    (data,) = session.connection.execute(
        "SELECT data FROM part WHERE id=?", (parts_of(head.block)[0] + _GROUPS,)
    ).fetchone() or (b"",)
    if not data:
        raise ValueError(f"block {head.block}: its groups are missing")
    words = session.packer.read_words(data, _GROUP_COLUMNS * head.groups)
    return Groups(*np.cumsum(words.view(np.int64).reshape(_GROUP_COLUMNS, head.groups), axis=1))


def read_summary(session: Session, head: Head, place: int) -> Summary:
    (data,) = session.connection.execute(
        "SELECT summary FROM part WHERE id=?", (parts_of(head.block)[0] + FIRST_CELL + place,)
    ).fetchone() or (None,)
    if data is None:
        raise ValueError(f"block {head.block}: the summary of key {place} is missing")
    flags, size = _SUMMARY.unpack_from(data)
    view = memoryview(data)[_SUMMARY.size :]
    n = head.groups
    words = session.packer.read_words(view[:size], 3 * n).view(np.float64)
    view = view[size:]
    counts = []
    for bit in range(_COUNTS):
        if not flags >> bit & 1:
            counts.append(np.zeros(n, np.int64))
            continue
        is_last = not flags >> bit + 1
        size = len(view) if is_last else int.from_bytes(view[:4], "little")
        body = view if is_last else view[4 : 4 + size]
        counts.append(session.packer.read_numbers(body, n))
        view = view[len(view) if is_last else 4 + size :]
    low, high, last = words[:n], words[n : 2 * n], words[2 * n :]
    return _checked(Summary(low, high, last, counts[0], counts[1], counts[2]))


def _checked(summary: Summary) -> Summary:
    """In store version 1 infinities were extremes, and not counted."""
    summary.is_exact = not (np.isinf(summary.low).any() or np.isinf(summary.high).any())
    return summary


def read_coarse(session: Session, head: Head, place: int) -> tuple[Groups, Summary]:
    """Read the coarse groups of a block that has them."""
    n, data = session.connection.execute(
        "SELECT groups, words FROM coarse WHERE tbl=? AND place=? AND block=?",
        (head.table, place, head.block),
    ).fetchone() or (0, None)
    if data is None:
        raise ValueError(f"block {head.block}: the coarse groups of key {place} are missing")
    more = 2 if n < 0 else 0
    n, ints = abs(n), _COARSE_INTS + more
    words = session.packer.read_words(data, (_COARSE_COLUMNS + more) * n).view(np.int64)
    words = words.reshape(_COARSE_COLUMNS + more, n)
    found = np.cumsum(words[:ints], axis=1)
    low, high, last = words[ints:].view(np.float64)
    nothing = np.zeros(n, np.int64)
    infs, neg_infs = found[_COARSE_INTS:] if more else (nothing, nothing)
    groups, nans = found[: _COARSE_INTS - 1], found[_COARSE_INTS - 1]
    return Groups(*groups), _checked(Summary(low, high, last, nans, infs, neg_infs))

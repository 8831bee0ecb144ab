"""A key reduced to buckets, from summaries of blocks where those are fine enough, else from values. Any reader.

Everything becomes `Rows`-like columns of *bits* (one per group of a block, per value, or per bucket), which are reduced
to one per bucket; since groups nest in buckets, it does not matter which of these a point came as, nor in how many
steps they are reduced. The last value of a bucket is of the highest step; of one stream's points at that step the one
with the highest (seq, place), of those of several streams that with the highest (attempt, time, stream).

The width is the smallest power of two that divides the range of steps into at most `most` buckets; where most of these
are empty (a stray step far off) it is halved as long as what is not empty surely stays within `most`. One bucket over
steps on both sides of 0 starts at minus half its width: no power of two divides them into one.

Of attempts that overlap, the newest counts: see `_hidden`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..interface import Buckets
from .blocks import Floats, Groups, Summary, read_coarse, read_groups, read_summary
from .ledger import MAX_SEQ
from .pack import Ints
from .rows import floats_of
from .sources import Source, of_key

if TYPE_CHECKING:
    import numpy.typing as npt

    from .database import Session
    from .shared import Shared

_PENDING = 1 << 20  # bits that wait to be reduced
_LOWEST, _HIGHEST = -(1 << 63), MAX_SEQ

Range = tuple[int, int]
_Kept: TypeAlias = "Groups | Summary | tuple[Groups, Summary]"


@dataclass(slots=True)
class Bits:
    """One per group, value or bucket."""

    bucket: Ints
    count: Ints
    nans: Ints
    infs: Ints
    neg_infs: Ints
    low: Floats  # of what is finite
    high: Floats
    last: Floats
    first_step: Ints
    step: Ints  # of the last
    attempt: Ints
    time: Ints
    stream: Ints
    seq: Ints
    place: Ints

    def __len__(self) -> int:
        return len(self.bucket)

    def columns(self) -> tuple[npt.NDArray[np.generic], ...]:
        return (
            self.bucket,
            self.count,
            self.nans,
            self.infs,
            self.neg_infs,
            self.low,
            self.high,
            self.last,
            self.first_step,
            self.step,
            self.attempt,
            self.time,
            self.stream,
            self.seq,
            self.place,
        )


def buckets(
    session: Session,
    shared: Shared,
    name_id: int | None,
    attempts: Mapping[str, int],
    *,
    most: int,
    first_step: int | None,
    last_step: int | None,
    all_attempts: bool,
    main_rank: bool = False,
) -> Buckets:
    """See `interface.Reader.buckets`; `main_rank` as `curves` has it."""
    sources = [] if name_id is None else of_key(session, name_id)
    codes = "".join(sorted({source.code for source in sources}))
    rank = _main_rank(sources) if main_rank else -1
    if rank >= 0:
        sources = [source for source in sources if source.head.rank in (rank, -1)]
    attempt_of = _attempts(session, sources, attempts)
    hidden = {} if all_attempts else _hidden(sources, attempt_of)
    first = _LOWEST if first_step is None else max(_LOWEST, first_step)
    last = _HIGHEST if last_step is None else min(_HIGHEST, last_step)
    wanted = []
    for source in sources:
        if source.code != "s":
            spans = _shown(source, hidden.get(attempt_of[source.head.stream], ()), first, last)
            if spans:
                wanted.append((source, spans))
    if not wanted:
        return _made(0, _reduced([], _OF_STREAMS), codes, rank)
    most = max(1, most)
    reader = _BitReader(session, shared, attempt_of)
    if most == 1:
        return _single(reader, wanted, codes, rank)
    low = min(max(source.head.min_step, spans[0][0]) for source, spans in wanted)
    high = max(min(source.head.max_step, spans[-1][1]) for source, spans in wanted)
    shift = _shift(low, high, most)
    found = reader.reduced(wanted, shift)
    if not len(found):  # first and last step of a source may lie around what was asked for
        return _made(0, found, codes, rank)
    exact = _shift(int(found.first_step[0]), int(found.step[-1]), most)
    if exact < shift:  # there are no points near the ends of what was asked for
        shift = exact
        found = reader.reduced(wanted, shift)
    while shift and 2 * len(found) <= most:
        finer = most // len(found)
        shift = max(0, shift - (finer.bit_length() - 1))
        found = reader.reduced(wanted, shift)
    return _made(shift, found, codes, rank)


def _main_rank(sources: Sequence[Source]) -> int:
    """Return the lowest rank that logged numbers of a key; -1: none has one."""
    ranks = [source.head.rank for source in sources if source.code != "s" and source.head.rank >= 0]
    return min(ranks, default=-1)


def _single(
    reader: _BitReader, wanted: Sequence[tuple[Source, list[Range]]], codes: str, rank: int
) -> Buckets:
    """Reduce everything to one bucket, as narrow as the points themselves allow."""
    found = reader.reduced(wanted, 63)  # at most two: below 0, and the rest
    if not len(found):
        return _made(0, found, codes, rank)
    low, high = int(found.first_step[0]), int(found.step[-1])
    is_around_0 = low < 0 <= high
    shift = _shift(low, high, 1 + is_around_0)
    found.bucket = np.full(len(found), low >> shift, np.int64)
    made = _made(shift, _reduced([found], _OF_STREAMS), codes, rank)
    return replace(made, width=2 << shift) if is_around_0 else made


def _shift(low: int, high: int, most: int) -> int:
    """The smallest that leaves at most `most` buckets."""
    shift = 0
    while shift < 63 and (high >> shift) - (low >> shift) >= most:
        shift += 1
    return shift


def _made(shift: int, bits: Bits, codes: str, rank: int = -1) -> Buckets:
    return Buckets(
        width=1 << shift,
        start=bits.bucket << shift,
        count=bits.count,
        nans=bits.nans,
        infs=bits.infs,
        neg_infs=bits.neg_infs,
        min=bits.low,
        max=bits.high,
        last=bits.last,
        last_ns=bits.time,
        points=int(bits.count.sum()),
        first_step=int(bits.first_step[0]) if len(bits) else 0,
        last_step=int(bits.step[-1]) if len(bits) else 0,
        codes=codes,
        rank=rank,
    )


def _attempts(session: Session, sources: Sequence[Source], attempts: Mapping[str, int]) -> dict[int, int]:
    """Attempt of each stream."""
    found = {}
    for stream in {source.head.stream for source in sources}:
        (process,) = session.connection.execute(
            "SELECT process FROM streams WHERE stream=?", (stream,)
        ).fetchone()
        found[stream] = attempts.get(process.hex(), 1)
    return found


def _hidden(sources: Sequence[Source], attempt_of: Mapping[int, int]) -> dict[int, list[Range]]:
    """By attempt: from the lowest to the highest step that each later one logged of this key (as `runs.contents`)."""
    steps: dict[int, Range] = {}
    for source in sources:
        attempt = attempt_of[source.head.stream]
        low, high = steps.get(attempt, (_HIGHEST, _LOWEST))
        steps[attempt] = min(low, source.head.min_step), max(high, source.head.max_step)
    return {attempt: [span for later, span in sorted(steps.items()) if later > attempt] for attempt in steps}


def _shown(source: Source, hidden: Sequence[Range], first: int, last: int) -> list[Range]:
    """Ranges of steps of this source that count; empty: none."""
    low, high = max(first, source.head.min_step), min(last, source.head.max_step)
    found = []
    for start, stop in sorted(hidden):
        if low > high:
            break
        if stop < low or start > high:
            continue
        if start > low:
            found.append((low, start - 1))
        low = stop + 1
    if low <= high:
        found.append((low, high))
    return found


class _BitReader:
    """Bits of sources, reduced as they come."""

    def __init__(self, session: Session, shared: Shared, attempt_of: Mapping[int, int]) -> None:
        self._session = session
        self._shared = shared
        self._attempt_of = attempt_of

    def reduced(self, wanted: Sequence[tuple[Source, list[Range]]], shift: int) -> Bits:
        """`wanted` is ordered by stream."""
        pending: list[Bits] = []
        waiting = 0
        for _, group in groupby(wanted, key=lambda each: each[0].head.stream):
            bits = self._of_stream(group, shift)
            pending.append(bits)
            waiting += len(bits)
            if waiting > _PENDING:
                pending = [_reduced(pending, _OF_STREAMS)]
                waiting = len(pending[0])
        return _reduced(pending, _OF_STREAMS)

    def _of_stream(self, sources: Iterable[tuple[Source, list[Range]]], shift: int) -> Bits:
        """Bits of one stream, no two of the same step in one bucket."""
        pending: list[Bits] = []
        waiting = 0
        for source, spans in sources:
            for bits in self._bits(source, spans, shift):
                pending.append(bits)
                waiting += len(bits)
            if waiting > _PENDING:
                pending = [_reduced(pending, _OF_ONE_STREAM)]
                waiting = len(pending[0])
        whole = _joined(pending)
        return whole if _is_sorted(whole) else _reduced([whole], _OF_ONE_STREAM)

    def _bits(self, source: Source, spans: list[Range], shift: int) -> Iterator[Bits]:
        head = source.head
        is_whole = len(spans) == 1 and spans[0][0] <= head.min_step and spans[0][1] >= head.max_step
        if source.is_tail and is_whole:
            yield self._of_tail(source, shift)
            return
        if source.is_tail or head.shift > shift:
            yield from self._values(source, None if is_whole else spans, shift)
            return
        coarse_shift = head.coarse_shift
        if is_whole and coarse_shift is not None and coarse_shift <= shift:
            groups, summary = self._shared.summaries.coarse(self._session, source)
            if summary.is_exact:
                yield self._of_groups(source, groups, summary, shift - coarse_shift, slice(None))
                return
        groups, summary = self._shared.summaries.get(self._session, source)
        if not summary.is_exact:
            yield from self._values(source, None if is_whole else spans, shift)
            return
        if is_whole:
            yield self._of_groups(source, groups, summary, shift - head.shift, slice(None))
            return
        first = groups.index << head.shift
        last = first + ((1 << head.shift) - 1)
        inside = np.zeros(len(first), bool)
        cut = np.zeros(len(first), bool)
        for low, high in spans:
            inside |= (low <= first) & (last <= high)
            cut |= (first <= high) & (low <= last)
        cut &= ~inside
        if inside.any():
            yield self._of_groups(source, groups, summary, shift - head.shift, inside)
        if cut.any():
            yield from self._values(source, spans, shift, groups.index[cut])

    def _of_tail(self, source: Source, shift: int) -> Bits:
        """Return the bits of a tail row, which is decoded once as long as nobody asks for finer ones."""
        row, place, stream = source.head.block, source.place, source.head.stream
        found = self._shared.tail_bits.get(row, place, shift)
        if found is None:
            made = _reduced(list(self._values(source, None, shift)), _OF_ONE_STREAM)
            found = shift, made
            self._shared.tail_bits.keep(row, place, shift, made)
        finest, bits = found
        # an attempt becomes known by documents, perhaps later than its records
        attempt = np.full(len(bits), self._attempt_of[stream], np.int64)
        return replace(bits, bucket=bits.bucket >> (shift - finest), attempt=attempt)

    def _values(
        self, source: Source, spans: list[Range] | None, shift: int, only: Ints | None = None
    ) -> Iterator[Bits]:
        head = source.head
        codes = self._shared.tables.shape(self._session, head.table).codes
        rows = source.read(self._session, codes, [source.place])
        values = floats_of(source.code, rows.cells[source.place])
        step, time, seq = rows.step, rows.time, rows.seq.view(np.int64)
        if spans is not None:
            kept = np.zeros(len(step), bool)
            for low, high in spans:
                kept |= (low <= step) & (step <= high)
            if only is not None:
                kept &= np.isin(step >> head.shift, only)
            values, step, time, seq = values[kept], step[kept], time[kept], seq[kept]
        if len(step):
            yield self._of_values(source, shift, step, time, seq, values)

    def _of_values(
        self, source: Source, shift: int, step: Ints, time: Ints, seq: Ints, values: Floats
    ) -> Bits:
        """One per bucket where steps rise, as they mostly do, else one per value."""
        bucket = step >> shift
        if bool((step[1:] > step[:-1]).all()):
            starts = np.concatenate(([0], np.flatnonzero(np.diff(bucket)) + 1))
        else:
            starts = np.arange(len(step))
        ends = np.append(starts[1:], len(step)) - 1
        n = len(starts)
        nans = infs = neg_infs = np.zeros(n, np.int64)
        is_finite = np.isfinite(values)
        finite = values
        if not is_finite.all():
            finite = np.where(is_finite, values, np.nan)  # a signalling NaN would win over numbers
            nans, infs, neg_infs = (
                np.add.reduceat(odd.astype(np.int64), starts)
                for odd in (np.isnan(values), values == np.inf, values == -np.inf)
            )
        stream = source.head.stream
        return Bits(
            bucket[starts],
            ends - starts + 1,
            nans,
            infs,
            neg_infs,
            np.fmin.reduceat(finite, starts),
            np.fmax.reduceat(finite, starts),
            values[ends],
            step[starts],
            step[ends],
            np.full(n, self._attempt_of[stream], np.int64),
            time[ends],
            np.full(n, stream, np.int64),
            seq[ends],
            np.full(n, source.place, np.int64),
        )

    def _of_groups(
        self,
        source: Source,
        groups: Groups,
        summary: Summary,
        coarser: int,
        chosen: slice | npt.NDArray[np.bool_],
    ) -> Bits:
        """In buckets so many bits coarser than the groups."""
        bucket = groups.index[chosen] >> coarser
        stream = source.head.stream
        return Bits(
            bucket,
            groups.count[chosen],
            summary.nans[chosen],
            summary.infs[chosen],
            summary.neg_infs[chosen],
            summary.low[chosen],
            summary.high[chosen],
            summary.last[chosen],
            groups.first_step[chosen],
            groups.last_step[chosen],
            np.full(len(bucket), self._attempt_of[stream], np.int64),
            groups.last_time[chosen],
            np.full(len(bucket), stream, np.int64),
            groups.last_seq[chosen],
            np.full(len(bucket), source.place, np.int64),
        )


# the last of several bits of one bucket is found by these, least first
_OF_ONE_STREAM = ("place", "seq", "step", "bucket")
_OF_STREAMS = ("stream", "time", "attempt", "step", "bucket")


def _joined(parts: Sequence[Bits]) -> Bits:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        whole, real = np.empty(0, np.int64), np.empty(0, np.float64)
        return Bits(*(5 * [whole]), *(3 * [real]), *(7 * [whole]))  # type: ignore[arg-type]
    columns: list[npt.NDArray[Any]] = [
        np.concatenate(found) for found in zip(*(part.columns() for part in parts), strict=True)
    ]
    return Bits(*columns)


def _reduced(parts: Sequence[Bits], by: Sequence[str]) -> Bits:
    """One per bucket, rising."""
    bits = _joined(parts)
    if not len(bits):
        return bits
    if not _is_sorted(bits):
        order = np.lexsort([getattr(bits, name) for name in by])
        columns: list[npt.NDArray[Any]] = [column[order] for column in bits.columns()]
        bits = Bits(*columns)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(bits.bucket)) + 1))
    ends = np.append(starts[1:], len(bits)) - 1
    low, high = np.fmin.reduceat(bits.low, starts), np.fmax.reduceat(bits.high, starts)
    return Bits(
        bits.bucket[starts],
        np.add.reduceat(bits.count, starts),
        np.add.reduceat(bits.nans, starts),
        np.add.reduceat(bits.infs, starts),
        np.add.reduceat(bits.neg_infs, starts),
        low,
        high,
        bits.last[ends],
        np.minimum.reduceat(bits.first_step, starts),
        *(column[ends] for column in bits.columns()[9:]),
    )


def _is_sorted(bits: Bits) -> bool:
    """Steps that rise need no sorting: a step is in one bucket."""
    return bool((bits.step[1:] > bits.step[:-1]).all())


class TailBits:
    """Bits of tail rows, as they were asked for last; any thread. Rows never change, and no number is used twice.

    A chart that is asked for while its points arrive decodes what is new, not all that waits to be packed.
    """

    MAX_BYTES = 24 << 20
    MAX_BITS = 4096  # of one row; finer ones are decoded each time

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], tuple[int, Bits]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, row: int, place: int, shift: int) -> tuple[int, Bits] | None:
        """Return the shift of the bits that are kept, and these; None where they are coarser than that."""
        with self._lock:
            found = self._kept.get((row, place))
            if found is None or found[0] > shift:
                return None
            self._kept.move_to_end((row, place))
            return found

    def keep(self, row: int, place: int, shift: int, bits: Bits) -> None:
        if len(bits) > self.MAX_BITS:
            return
        with self._lock:
            before = self._kept.pop((row, place), None)
            if before is not None:
                self._bytes -= _size(before[1])
            self._kept[row, place] = shift, bits
            self._bytes += _size(bits)
            while self._bytes > self.MAX_BYTES:
                self._bytes -= _size(self._kept.popitem(last=False)[1][1])


def _size(bits: Bits) -> int:
    """Return about the memory that they take."""
    return 3000 + 120 * len(bits)


class Summaries:
    """Groups and summaries of blocks, as they were read last; any thread. Blocks never change, and no number of one is
    used twice.
    """

    MAX_BYTES = 48 << 20

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], tuple[int, _Kept]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, session: Session, source: Source) -> tuple[Groups, Summary]:
        head = source.head
        groups = self._find(head.block, -1)
        if groups is None:
            groups = read_groups(session, head)
            self._keep(head.block, -1, groups, 48 * head.groups)
        summary = self._find(head.block, source.place)
        if summary is None:
            summary = read_summary(session, head, source.place)
            self._keep(head.block, source.place, summary, 32 * head.groups)
        assert isinstance(groups, Groups) and isinstance(summary, Summary)
        return groups, summary

    def coarse(self, session: Session, source: Source) -> tuple[Groups, Summary]:
        """Return the coarse summaries of a block that has them."""
        head, place = source.head, -2 - source.place
        found = self._find(head.block, place)
        if found is None:
            found = read_coarse(session, head, source.place)
            self._keep(head.block, place, found, 80 * len(found[0].index))
        assert isinstance(found, tuple)
        return found

    def _find(self, block: int, place: int) -> _Kept | None:
        with self._lock:
            found = self._kept.get((block, place))
            if found is None:
                return None
            self._kept.move_to_end((block, place))
            return found[1]

    def _keep(self, block: int, place: int, found: _Kept, size: int) -> None:
        size += 1000
        with self._lock:
            if (block, place) not in self._kept:
                self._kept[block, place] = size, found
                self._bytes += size
            while self._bytes > self.MAX_BYTES:
                self._bytes -= self._kept.popitem(last=False)[1][0]

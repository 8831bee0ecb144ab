"""The canonical order of a run's records, each once, in bounded memory; whatever they are read from.

`Records` puts them in order; where they lie a subclass knows: in segments of a folder (`points.py`), or behind a store
or a server that gives pages of them (`paged.py`). What was there when the reader was made is read, what comes later
is not.

The canonical order: within a stream by seq, within a process by `order` (its process-wide number), processes merged by
time, where a clock that was set back counts as standing still; ties by process id. It depends on nothing else, so it
is the same after an import, and from a server.

Invariants:

- each record comes once, by (stream, seq), in however many segments, writers and node folders it is stored;
- memory holds the segments that overlap in time with the point that was reached, a few of them decoded, never all.

Does not: count, or say which attempt wins where several overlap (`contents.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate
from operator import le
from typing import TYPE_CHECKING, NamedTuple

from logclient.shm.columns import Columns, read_column

from ..wal.coverage import Spans
from ..wal.encoded import StreamColumns
from ..wal.scan import Damage

if TYPE_CHECKING:
    from logclient.shm.record import Value

_MAX_DECODED = 8  # segments that are kept decoded for streams that still need them


class Part(NamedTuple):
    """Records `start` to `stop` of some columns, which follow each other in the canonical order."""

    stream: bytes
    process: bytes
    lane: int
    columns: Columns
    start: int
    stop: int


class Point(NamedTuple):
    """One value; `code` as in `logclient.shm.record` tells a rounded float from an exact one, a text from a number."""

    step: int
    key: str
    value: Value
    time: int
    stream: bytes
    rank: int | None
    code: str


@dataclass(slots=True)
class Slice:
    """Part of some columns, and what it is ordered by: `keys[row - offset]`, which never falls."""

    columns: Columns
    start: int
    stop: int
    keys: Sequence[int]
    offset: int = 0
    stream: bytes = b""

    @property
    def first_key(self) -> int:
        return self.keys[self.start - self.offset]

    @property
    def last_key(self) -> int:
        return self.keys[self.stop - 1 - self.offset]


@dataclass(slots=True)
class Segment:
    """One segment of one node, and what it held when it was looked at."""

    folder: str
    stem: str
    spans: Spans

    def may_hold(self, wanted: Mapping[bytes, Sequence[int]]) -> bool:
        """Lies one of these seqs between its first and its last of that stream?"""
        for stream, seqs in wanted.items():
            span = self.spans.get(stream)
            if span is not None and span.first is not None and span.last is not None:
                at = bisect_left(seqs, span.first)
                if at < len(seqs) and seqs[at] <= span.last:
                    return True
        return False


@dataclass(slots=True)
class Stream:
    """Location of the records of one stream: groups of segments whose seqs overlap, in order."""

    id: bytes
    process: bytes
    lane: int
    node: str  # folder
    groups: list[list[Segment]] = field(default_factory=list)


class Records(ABC):
    """The records of a run as they are now."""

    def __init__(self, segments: Iterable[Segment], spans: Spans | None = None) -> None:
        """`spans`: of everything, where somebody knows more than the segments tell."""
        self.damage: list[Damage] = []
        self.unsupported: dict[str, str] = {}  # file name: why it could not be read
        self.spans = Spans() if spans is None else spans  # what footers say is believed here
        self.streams: dict[bytes, Stream] = {}
        self._decoded: OrderedDict[tuple[str, str], dict[bytes, list[Columns]]] = OrderedDict()
        self._all = list(segments)
        if spans is None:
            for segment in self._all:
                self.spans.merge(segment.spans)
        self._index(self._all)

    @abstractmethod
    def _decode(self, segment: Segment) -> dict[bytes, list[Columns]]:
        """The records of a segment, by stream; through `_keep`."""

    @property
    def records(self) -> int:
        """Number of records, if nothing turns out to be damaged."""
        return sum(span.records for span in self.spans.values())

    def parts(self) -> Iterator[Part]:
        """All records in the canonical order."""
        by_process: dict[bytes, list[Stream]] = {}
        for stream in sorted(self.streams.values(), key=lambda stream: stream.id):
            by_process.setdefault(stream.process, []).append(stream)
        sources = [
            (self._first_time(streams), self._process(streams)) for _, streams in sorted(by_process.items())
        ]
        for piece in merge(sources):
            stream = self.streams[piece.stream]
            yield Part(stream.id, stream.process, stream.lane, piece.columns, piece.start, piece.stop)

    def blocks(self, around: Mapping[bytes, Sequence[int]] | None = None) -> Iterator[StreamColumns]:
        """All records as they lie, segment by segment, for those to whom the order does not matter.

        What two segments hold comes twice. `around`: only segments that may hold one of these seqs, in rising order.
        """
        for segment in self._all:
            if around is not None and not segment.may_hold(around):
                continue
            for stream, found in self._decode(segment).items():
                entry = self.streams[stream]
                for columns in found:
                    yield StreamColumns(stream, entry.process, entry.lane, columns)

    def points(self, keys: set[str] | None = None) -> Iterator[Point]:
        """The single values, in the order of `parts` and, within a record, as they were logged."""
        for part in self.parts():
            shape = part.columns.shape
            if keys is not None and not keys.intersection(shape.names):
                continue
            yield from points_of(part, keys)

    # ---- order ------------------------------------------------------------------------------------------

    def _first_time(self, streams: list[Stream]) -> int:
        """A time at or before that of the process's first record."""
        return min(self.spans[stream.id].first_time for stream in streams)

    def _process(self, streams: list[Stream]) -> Iterator[Slice]:
        """Records of one process, by their number in it; keys are times that never fall."""
        # the n-th record of a stream has number n or higher
        sources = [(self.spans[stream.id].first or 0, self._stream(stream)) for stream in streams]
        latest = -(1 << 63)
        for piece in merge(sources):
            times = piece.columns.time[piece.start : piece.stop]
            if times[0] < latest or not all(map(le, times[:-1], times[1:])):
                times = array("q", list(accumulate(times, max, initial=latest))[1:])
            latest = times[-1]
            yield Slice(piece.columns, piece.start, piece.stop, times, piece.start, piece.stream)

    def _stream(self, stream: Stream) -> Iterator[Slice]:
        """Records of one stream by seq, each once; keys are their numbers in the process."""
        last = 0
        for group in stream.groups:
            found = [columns for segment in group for columns in self._load(segment, stream.id)]
            found.sort(key=lambda columns: columns.seq[0])
            pieces = [
                (columns.seq[0], iter((Slice(columns, 0, len(columns), columns.seq),))) for columns in found
            ]
            for piece in merge(pieces):
                columns = piece.columns
                start = bisect_right(columns.seq, last, piece.start, piece.stop)
                if start < piece.stop:
                    last = columns.seq[piece.stop - 1]
                    yield Slice(columns, start, piece.stop, columns.order, 0, stream.id)

    # ---- segments -----------------------------------------------------------------------------------------

    def _index(self, segments: list[Segment]) -> None:
        spans: dict[bytes, list[tuple[int, int, Segment]]] = {}
        for segment in segments:
            for span in segment.spans.values():
                if span.first is not None and span.last is not None:
                    spans.setdefault(span.stream, []).append((span.first, span.last, segment))
                    if span.stream not in self.streams:
                        self.streams[span.stream] = Stream(
                            span.stream, span.process, span.lane, segment.folder
                        )
        for id, found in spans.items():
            groups = self.streams[id].groups
            reach = 0
            for first, last, segment in sorted(found, key=lambda span: (span[:2], span[2].stem)):
                if groups and first <= reach:
                    groups[-1].append(segment)
                else:
                    groups.append([segment])
                reach = max(reach, last)

    def _load(self, segment: Segment, stream: bytes) -> list[Columns]:
        """The columns of one stream; those of the other streams are kept for a while, since they are wanted soon."""
        key = (segment.folder, segment.stem)
        decoded = self._decoded.get(key)
        if decoded is None or stream not in decoded:
            decoded = self._decoded[key] = self._decode(segment)
        self._decoded.move_to_end(key)
        found = decoded.pop(stream, [])
        if not decoded:
            del self._decoded[key]
        while len(self._decoded) > _MAX_DECODED:
            self._decoded.popitem(last=False)
        return found

    def _keep(self, found: dict[bytes, list[Columns]], item: StreamColumns) -> None:
        """Keep what was there at the first look; a live segment may have grown."""
        known = self.spans.get(item.stream)
        if known is None or known.last is None or item.stream not in found:
            return
        columns = item.columns
        if columns.seq[-1] > known.last:
            columns = columns.part(0, bisect_right(columns.seq, known.last))
        if len(columns):
            found[item.stream].append(columns)


def merge(sources: Sequence[tuple[int, Iterator[Slice]]]) -> Iterator[Slice]:
    """Slices of all sources by key; ties in the order of the sources, each of which is ordered.

    A source comes with a bound that its first key does not go below: it is not started before that is reached.
    """
    heap: list[tuple[int, int, Slice | None]] = [(bound, at, None) for at, (bound, _) in enumerate(sources)]
    heapify(heap)
    while heap:
        _, at, piece = heappop(heap)
        if piece is None:
            piece = next(sources[at][1], None)
            if piece is None:
                continue
            if heap and (piece.first_key, at) > heap[0][:2]:
                heappush(heap, (piece.first_key, at, piece))
                continue
        stop = piece.stop
        if heap:
            limit, other, _ = heap[0]
            cut = bisect_right if at < other else bisect_left
            low, high = piece.start - piece.offset, piece.stop - piece.offset
            stop = max(piece.start + 1, piece.offset + cut(piece.keys, limit, low, high))
        yield Slice(piece.columns, piece.start, stop, piece.keys, piece.offset, piece.stream)
        if stop < piece.stop:
            piece.start = stop
            heappush(heap, (piece.first_key, at, piece))
        else:
            heappush(heap, (piece.last_key, at, None))


def points_of(part: Part, keys: set[str] | None = None) -> Iterator[Point]:
    """The values of some records, record by record."""
    columns = part.columns
    cut = slice(part.start, part.stop)
    wanted = [
        (name, code, read_column(code, column[cut]))
        for name, code, column in zip(columns.shape.names, columns.shape.codes, columns.cells, strict=True)
        if keys is None or name in keys
    ]
    heads = zip(columns.step[cut], columns.time[cut], strict=True)
    for at, (step, time) in enumerate(heads):
        for name, code, values in wanted:
            yield Point(step, name, values[at], time, part.stream, columns.rank, code)

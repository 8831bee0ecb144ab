"""Coverage of each stream in a segment or a folder: `StreamSpan`, and the footer that keeps it in a sealed segment.

Pure bytes.

::

    body of a FOOTER block (zstd where that is smaller, see the packing in its head)
    varint number of streams, then each (in the order of their index)
        u32 length, the body of its STREAM block
        varint number of ranges, each: first seq - last seq of the range before, last - first
        varint records
        if records: first step, last - first step, first time - base, last - first time  (zigzag)
        varint number of gaps, each: cause, first, last - first
    varint number of shapes, then each: u32 length, its definition

Invariants: *stored* wins over every gap, then trimmed (it was stored once), forgotten, damaged: each seq
counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from logclient.shm.columns import Columns
from logclient.shm.record import Shape

from .segment import CAUSES, STREAM_BODY, StreamEntry, pack_stream
from .seqs import SeqSet
from .varint import Reader, put_varint, put_zigzag


@dataclass(slots=True)
class StreamSpan:
    """The seqs of one stream that are stored, and those that are known to be gone."""

    stream: bytes
    process: bytes
    lane: int
    stored: SeqSet = field(default_factory=SeqSet)
    gaps: dict[str, SeqSet] = field(default_factory=dict)
    first_step: int = 0  # of the record with the lowest seq stored; time in ns since 1970
    first_time: int = 0
    last_step: int = 0
    last_time: int = 0
    _first: int = -1
    _last: int = -1

    @property
    def records(self) -> int:
        return len(self.stored)

    @property
    def first(self) -> int | None:
        """The lowest seq stored."""
        return self._first if self._first >= 0 else None

    @property
    def last(self) -> int | None:
        """The highest seq stored."""
        return self._last if self._last >= 0 else None

    @property
    def forgotten(self) -> SeqSet:
        return self._gap("forgotten", "trimmed")

    @property
    def damaged(self) -> SeqSet:
        return self._gap("damaged", "trimmed", "forgotten")

    @property
    def trimmed(self) -> SeqSet:
        return self._gap("trimmed")

    def missing(self, up_to: int | None = None) -> SeqSet:
        """Seqs from 1 to the highest known (or `up_to`) that nothing here explains."""
        known = self.stored.copy()
        for seqs in self.gaps.values():
            known.update(seqs)
        last = max(known.last if known else 0, up_to or 0)
        return (SeqSet([(1, last)]) if last else SeqSet()).minus(known)

    def add(self, columns: Columns) -> None:
        """Count these records as stored."""
        seq = columns.seq
        self.stored.add_seqs(seq)
        self.add_edges(seq[0], columns.step[0], columns.time[0], seq[-1], columns.step[-1], columns.time[-1])

    def fill(self, ranges: Iterable[tuple[int, int]], first: tuple[int, int], last: tuple[int, int]) -> None:
        """All that is stored, and (step, time) of its first and last record, as somebody else counted them."""
        self.stored = SeqSet(ranges)
        if self.stored:
            self._first, self._last = self.stored.first, self.stored.last
            self.first_step, self.first_time = first
            self.last_step, self.last_time = last

    def add_gap(self, first: int, last: int, cause: str) -> None:
        self.gaps.setdefault(cause, SeqSet()).add(first, last)

    def merge(self, other: StreamSpan) -> None:
        """Add what another segment holds of the same stream."""
        self.stored.update(other.stored)
        for cause, seqs in other.gaps.items():
            self.gaps.setdefault(cause, SeqSet()).update(seqs)
        if other._first >= 0:
            self.add_edges(
                other._first,
                other.first_step,
                other.first_time,
                other._last,
                other.last_step,
                other.last_time,
            )

    def add_edges(self, first: int, step: int, time: int, last: int, last_step: int, last_time: int) -> None:
        """The records with the lowest and with the highest seq of some that are stored."""
        if self._first < 0 or first < self._first:
            self._first, self.first_step, self.first_time = first, step, time
        if last > self._last:
            self._last, self.last_step, self.last_time = last, last_step, last_time

    def _gap(self, cause: str, *stronger: str) -> SeqSet:
        seqs = self.gaps.get(cause)
        if not seqs:
            return SeqSet()
        seqs = seqs.minus(self.stored)
        for other in stronger:
            if other in self.gaps:
                seqs = seqs.minus(self.gaps[other])
        return seqs


class Spans(dict[bytes, StreamSpan]):
    """`StreamSpan` by stream id."""

    def of(self, stream: bytes, process: bytes, lane: int) -> StreamSpan:
        span = self.get(stream)
        if span is None:
            span = self[stream] = StreamSpan(stream, process, lane)
        return span

    def merge(self, other: Spans) -> None:
        for span in other.values():
            self.of(span.stream, span.process, span.lane).merge(span)


@dataclass(slots=True)
class Footer:
    """A footer, decoded: all that the segment holds, and the entries by index."""

    spans: Spans
    streams: list[StreamEntry]
    shapes: list[Shape]


def pack_footer(
    spans: Spans, streams: list[tuple[bytes, bytes, int]], shapes: list[Shape], base_ns: int
) -> bytes:
    """The body, not yet compressed."""
    out = bytearray()
    put_varint(out, len(streams))
    for stream, process, lane in streams:
        entry = pack_stream(stream, process, lane, base_ns)
        out += len(entry).to_bytes(4, "little") + entry
        span = spans.of(stream, process, lane)
        ranges = span.stored.ranges()
        put_varint(out, len(ranges))
        before = 0
        for first, last in ranges:
            put_varint(out, first - before)
            put_varint(out, last - first)
            before = last
        put_varint(out, span.records)
        if span.records:
            put_zigzag(out, span.first_step)
            put_zigzag(out, span.last_step - span.first_step)
            put_zigzag(out, span.first_time - base_ns)
            put_zigzag(out, span.last_time - span.first_time)
        gaps = list(_gaps(span))
        put_varint(out, len(gaps))
        for cause, first, last in gaps:
            put_varint(out, cause)
            put_varint(out, first)
            put_varint(out, last - first)
    put_varint(out, len(shapes))
    for shape in shapes:
        definition = shape.definition()
        out += len(definition).to_bytes(4, "little") + definition
    return bytes(out)


def _gaps(span: StreamSpan) -> Iterator[tuple[int, int, int]]:
    for cause, seqs in span.gaps.items():
        for first, last in seqs.ranges():
            yield CAUSES.index(cause), first, last


def parse_footer(body: bytes | memoryview) -> Footer:
    """`ValueError` or `Corrupt` where the bytes are no footer."""
    reader = Reader(body)
    footer = Footer(Spans(), [], [])
    for _ in range(reader.varint()):
        entry = parse_stream(reader.take(int.from_bytes(reader.take(4), "little")))
        footer.streams.append(entry)
        stream, process, lane, base_ns = entry
        span = footer.spans.of(stream, process, lane)
        before = 0
        for _ in range(reader.varint()):
            first = before + reader.varint()
            before = first + reader.varint()
            span.stored.add(first, before)
        if reader.varint():
            span.first_step = reader.zigzag()
            span.last_step = span.first_step + reader.zigzag()
            span.first_time = base_ns + reader.zigzag()
            span.last_time = span.first_time + reader.zigzag()
            span._first, span._last = span.stored.first, span.stored.last
        for _ in range(reader.varint()):
            cause, first = reader.varint(), reader.varint()
            span.add_gap(first, first + reader.varint(), cause_of(cause))
    for _ in range(reader.varint()):
        footer.shapes.append(Shape.from_definition(reader.take(int.from_bytes(reader.take(4), "little"))))
    return footer


def parse_stream(body: bytes | memoryview) -> StreamEntry:
    """The body of a STREAM block."""
    reader = Reader(body)
    stream, process, base_ns = STREAM_BODY.unpack(reader.take(STREAM_BODY.size))
    return StreamEntry(stream, process, reader.varint(), base_ns)


def cause_of(number: int) -> str:
    """A cause that a newer version made up counts as damage."""
    return CAUSES[number] if number < len(CAUSES) else "damaged"

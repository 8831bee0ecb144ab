"""What a store should answer, from plain dicts: slow, small, and obviously right."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from logclient.shm.columns import read_column
from logclient.shm.record import VARIABLE
from logclient_backend.collector.store.interface import Parcel
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.seqs import SeqSet


@dataclass
class Record:
    order: int
    step: int
    time: int
    rank: int | None
    cells: list[tuple[str, str, Any]]  # key, code, raw cell


@dataclass
class Stream:
    id: bytes
    process: bytes
    number: int  # by arrival
    nodes: set[str] = field(default_factory=set)
    records: dict[int, Record] = field(default_factory=dict)
    gaps: dict[str, set[int]] = field(default_factory=dict)


@dataclass
class Point:
    stream: Stream
    seq: int
    place: int
    record: Record
    code: str
    cell: Any

    @property
    def value(self) -> Any:
        column: Any = [self.cell]
        if self.code not in VARIABLE:
            from array import array

            column = array("Q", column)
        return read_column(self.code, column)[0]

    def as_float(self) -> float:
        try:
            return float(self.value)
        except OverflowError:
            return math.inf if self.value > 0 else -math.inf


@dataclass
class Run:
    streams: dict[bytes, Stream] = field(default_factory=dict)
    documents: dict[str, bytes] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    deleted: bool = False

    def points(self, key: str) -> list[Point]:
        """By stream, seq and place."""
        return [
            Point(stream, seq, place, record, code, cell)
            for stream in sorted(self.streams.values(), key=lambda stream: stream.number)
            for seq, record in sorted(stream.records.items())
            for place, (name, code, cell) in enumerate(record.cells)
            if name == key
        ]

    def first_came(self) -> dict[str, tuple[int, int, int]]:
        """Return when each key came first: the order of keys. Those of one moment have none among themselves."""
        first: dict[str, tuple[int, int, int]] = {}
        for stream in self.streams.values():
            for record in stream.records.values():
                for place, (name, _, _) in enumerate(record.cells):
                    here = (record.time, record.order, place)
                    first[name] = min(first.get(name, here), here)
        return first

    def newest(self, points: list[Point]) -> Point:
        """Of each process the last that it counted; of those by attempt, then time."""
        lasts: dict[bytes, Point] = {}
        for point in sorted(points, key=lambda p: (p.record.order, p.seq, p.stream.number, p.place)):
            lasts[point.stream.process] = point
        return max(
            lasts.values(),
            key=lambda p: (self.attempt(p), p.record.time, p.record.order, p.stream.process),
        )

    def attempt(self, point: Point) -> int:
        return self.attempts.get(point.stream.process.hex(), 1)

    def shown(self, key: str, first: int | None, last: int | None, all_attempts: bool) -> list[Point]:
        """The points that buckets are made of."""
        points = self.points(key)
        ranges: dict[int, list[int]] = {}
        for point in points:
            ranges.setdefault(self.attempt(point), []).append(point.record.step)
        kept = []
        for point in points:
            step = point.record.step
            later = [steps for attempt, steps in ranges.items() if attempt > self.attempt(point)]
            if not all_attempts and any(min(steps) <= step <= max(steps) for steps in later):
                continue
            if point.code != "s" and (first is None or step >= first) and (last is None or step <= last):
                kept.append(point)
        return kept


class Model:
    """Runs by id; `purged` are ids that take no data."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.purged: set[str] = set()
        self._numbers = count(1)

    def takes(self, run: str) -> bool:
        return run not in self.purged and not (run in self.runs and self.runs[run].deleted)

    def write(self, parcels: list[Parcel]) -> tuple[int, int, int]:
        """Records that were new, that were not, and new points."""
        new = repeated = points = 0
        for parcel in parcels:
            run = self.runs.setdefault(parcel.run, Run())
            for item in parcel.batches:
                stream = self._stream(run, parcel.node, item)
                for at, seq in enumerate(item.columns.seq):
                    if seq in stream.records:
                        repeated += 1
                        continue
                    new += 1
                    points += len(item.columns.shape.codes)
                    stream.records[seq] = _record(item, at)
            for gap in parcel.holes:
                stream = self._stream(run, parcel.node, gap)
                stream.gaps.setdefault(gap.cause, set()).update(range(gap.first, gap.last + 1))
            if parcel.documents is not None:
                run.documents[parcel.node] = parcel.documents
            if parcel.description is not None:
                run.attempts = dict(parcel.description.attempts)
        return new, repeated, points

    def _stream(self, run: Run, node: str, item: Any) -> Stream:
        stream = run.streams.get(item.stream)
        if stream is None:
            stream = run.streams[item.stream] = Stream(item.stream, item.process, next(self._numbers))
        stream.nodes.add(node)
        return stream


def _record(item: StreamColumns, at: int) -> Record:
    columns = item.columns
    shape = columns.shape
    cells = [
        (name, code, column[at])
        for name, code, column in zip(shape.names, shape.codes, columns.cells, strict=True)
    ]
    return Record(columns.order[at], columns.step[at], columns.time[at], columns.rank, cells)


def seqs(numbers: set[int]) -> SeqSet:
    made = SeqSet()
    for number in sorted(numbers):
        made.add(number, number)
    return made


def bits(value: Any) -> Any:
    """Equal only where every bit is."""
    return struct.pack("<d", value) if isinstance(value, float) else (type(value), value)


BUCKET_COLUMNS = ("start", "count", "nans", "infs", "neg_infs", "min", "max", "last")


def buckets(
    points: list[Point], most: int, attempt: Callable[[Point], int] = lambda point: 1
) -> tuple[int, list[tuple[Any, ...]]]:
    """Width, and of each bucket: start, count, NaN, infinities above and below, lowest, highest, last."""
    if not points:
        return 1, []
    low, high = min(p.record.step for p in points), max(p.record.step for p in points)
    shift = 0
    if most == 1 and low < 0 <= high:  # no aligned range of steps holds them
        while low < -(1 << shift) or high >= 1 << shift:
            shift += 1
        return 2 << shift, [_bucket(-(1 << shift), points, attempt)]
    while shift < 63 and (high >> shift) - (low >> shift) >= most:
        shift += 1
    while True:
        found: dict[int, list[Point]] = {}
        for point in points:
            found.setdefault(point.record.step >> shift, []).append(point)
        if not shift or 2 * len(found) > most:
            break
        shift = max(0, shift - ((most // len(found)).bit_length() - 1))
    return 1 << shift, [_bucket(index << shift, mine, attempt) for index, mine in sorted(found.items())]


def _bucket(start: int, mine: list[Point], attempt: Callable[[Point], int]) -> tuple[Any, ...]:
    numbers = [point.as_float() for point in mine]
    real = [number for number in numbers if math.isfinite(number)]
    lasts: dict[int, Point] = {}
    for point in sorted(mine, key=lambda p: (p.record.step, p.seq, p.place)):
        lasts[point.stream.number] = point
    newest = max(lasts.values(), key=lambda p: (p.record.step, attempt(p), p.record.time, p.stream.number))
    return (
        start,
        len(mine),
        sum(map(math.isnan, numbers)),
        numbers.count(math.inf),
        numbers.count(-math.inf),
        min(real, default=math.nan),
        max(real, default=math.nan),
        newest.as_float(),
    )

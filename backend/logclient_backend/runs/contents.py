"""Contents of a run: exact counts, gaps, last values, ranges of steps, curves. One pass over its segments.

Runs in any reader. Every block is read and checked, so the counts are those of what can be had, not of what was
promised: accepted = stored + forgotten + damaged, per stream. What was removed by the disk budget (trimmed) counts as
forgotten, what is in no segment and in no note (missing: a file was deleted) as damaged.

Where attempts overlap in steps, the newest counts: of an older attempt's points of a key, those are *superseded* that
lie between the lowest and the highest step that a later attempt logged of that key.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from logclient.shm.columns import Columns, read_column
from logclient.shm.record import NUMBERS

from ..wal.coverage import Spans, StreamSpan
from ..wal.encoded import StreamColumns
from ..wal.scan import Damage
from ..wal.seal import unseen_part
from .curve import Curve
from .extremes import Extremes, merged, of_newest
from .order import Records
from .view import COUNTS, RunView

if TYPE_CHECKING:
    from logclient.shm.record import Value

CAUSES = ("forgotten", "trimmed", "damaged", "missing")
_LOOKED_AT = 100  # blocks in which the first keys are looked for

Only = Callable[[str], bool] | None  # keys whose curves are wanted
Progress = Callable[[int], None] | None  # is called with the records done since the last call


@dataclass(slots=True)
class Last:
    """The newest point of a key: of a process by its order, of several by attempt, then time."""

    value: Value
    code: str
    step: int
    time: int
    order: int
    rank: int | None


@dataclass(slots=True)
class Key:
    """Contents of one key."""

    name: str
    first: tuple[int, int, int] = (0, 0, 0)  # time, order and place in the record of its first point
    points: int = 0
    last: Last | None = None
    lasts: dict[bytes, tuple[int, Last]] = field(
        default_factory=dict
    )  # by process: its attempt, and its newest point
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # lowest and highest, by attempt
    curves: dict[int, Curve] = field(default_factory=dict)  # by attempt
    is_text: bool = False
    extremes: dict[int, Extremes] = field(default_factory=dict)  # by attempt

    @property
    def low(self) -> int | float | None:
        """The lowest finite value; None where there is none."""
        return merged(self.extremes.values()).low

    @property
    def high(self) -> int | float | None:
        """The highest finite value; None where there is none."""
        return merged(self.extremes.values()).high

    def newest(self) -> Last:
        """The newest point over all processes."""
        return max(
            self.lasts.items(), key=lambda each: (each[1][0], each[1][1].time, each[1][1].order, each[0])
        )[1][1]

    def superseded(self, attempt: int) -> list[tuple[int, int]]:
        """Ranges of steps in which a later attempt logged this key."""
        return [steps for number, steps in self.steps.items() if number > attempt]

    def curve(self) -> Curve:
        """The curve of all attempts, the newest where they overlap."""
        whole = Curve()
        for attempt, curve in sorted(self.curves.items(), reverse=True):
            whole.merge(curve, self.superseded(attempt))
        return whole


@dataclass(frozen=True, slots=True)
class Edge:
    """A record beside a gap."""

    seq: int
    step: int
    time: int


@dataclass(frozen=True, slots=True)
class Hole:
    """Records that are not there: `first` to `last` of a stream; `after` and `before` are those around them."""

    stream: str
    process: str
    first: int
    last: int
    cause: str
    after: Edge | None
    before: Edge | None

    @property
    def records(self) -> int:
        return self.last - self.first + 1


@dataclass(slots=True)
class Contents:
    """Result of one pass."""

    spans: Spans = field(default_factory=Spans)
    accepted: dict[bytes, int] = field(default_factory=dict)  # by stream
    keys: dict[str, Key] = field(default_factory=dict)  # in the order in which they were logged first
    ranks: set[int] = field(default_factory=set)
    damage: list[Damage] = field(default_factory=list)
    unsupported: dict[str, str] = field(default_factory=dict)
    gaps: list[Hole] = field(default_factory=list)
    first_time: int = 0
    last_time: int = 0

    def stream_counts(self, stream: bytes) -> dict[str, int]:
        """Return the counts of one stream; `trimmed` is part of forgotten, `missing` of damaged."""
        span = self.spans.get(stream) or StreamSpan(stream, b"", 0)
        holes = {
            cause: sum(b - a + 1 for a, b in ranges)
            for cause, ranges in holes_of(span, self.accepted[stream])
        }
        return {
            "accepted": self.accepted[stream],
            "stored": span.records,
            "forgotten": holes["forgotten"] + holes["trimmed"],
            "damaged": holes["damaged"] + holes["missing"],
            "trimmed": holes["trimmed"],
            "missing": holes["missing"],
        }

    def counts(self, run: RunView) -> dict[str, int]:
        """Return the run's counts, exact for what is on disk; `waiting`: logged by live processes and not yet there."""
        total = dict.fromkeys((*COUNTS, "trimmed", "missing", "waiting"), 0)
        for stream in self.accepted:
            for name, number in self.stream_counts(stream).items():
                total[name] += number
        told = run.counts()
        total["refused"], total["left_out"] = told["refused"], told["left_out"]
        for live_dir in run.found.live.values():
            for lanes in live_dir.processes:
                for name, accepted in lanes.streams().items():
                    total["waiting"] += max(0, accepted - self.accepted.get(bytes.fromhex(name), 0))
        return total


def read(run: RunView, curves: int = 0, only: Only = None, progress: Progress = None) -> Contents:
    """One pass. Curves are kept of the first `curves` keys of numbers, or of those that `only` takes."""
    reader = run.found.records()
    found = begun(reader)
    if only is None:
        only = set(_first_keys(reader, curves)).__contains__
    numbers = run.attempt_numbers()
    for item in reader.blocks():
        add(found, numbers.get(item.process.hex(), 1), item, only)
        if progress is not None:
            progress(len(item.columns))
    for key in found.keys.values():
        key.last = key.newest()
    found.keys = {key.name: key for key in sorted(found.keys.values(), key=lambda key: key.first)}
    _settle_extremes(found, numbers, reader)
    settle(found, run, reader)
    return found


def _settle_extremes(found: Contents, numbers: Mapping[str, int], reader: Records) -> None:
    """Take the newest attempt's values alone where attempts overlap in steps."""
    again = {name: key.superseded for name, key in found.keys.items() if _do_overlap(key)}
    if again:
        for name, by_attempt in of_newest(reader.blocks(), numbers, again).items():
            found.keys[name].extremes = by_attempt


def _do_overlap(key: Key) -> bool:
    ranges = list(key.steps.values())
    return any(
        one[0] <= other[1] and other[0] <= one[1] for at, one in enumerate(ranges) for other in ranges[:at]
    )


def begun(reader: Records) -> Contents:
    """Return what is known before anything is read: gaps, and how far each stream reaches."""
    found = Contents()
    for span in reader.spans.values():
        mine = found.spans.of(span.stream, span.process, span.lane)
        mine.gaps = dict(span.gaps)
        if span.last is not None:
            found.accepted[span.stream] = span.last
    return found


def settle(found: Contents, run: RunView, reader: Records) -> None:
    """The accounts, once all that is stored was counted: what each stream accepted, and where records are missing."""
    found.damage, found.unsupported = reader.damage, reader.unsupported
    for node in run.nodes:
        for id, told in node.streams.items():
            if told.accepted:
                stream = bytes.fromhex(id)
                found.spans.of(stream, bytes.fromhex(told.process), told.lane)
                found.accepted[stream] = max(told.accepted, found.accepted.get(stream, 0))
    for stream, span in found.spans.items():
        known = max([seqs.last for seqs in (span.stored, *span.gaps.values()) if seqs], default=0)
        found.accepted[stream] = max(known, found.accepted.get(stream, 0))
    found.gaps = list(_holes(found, reader))


def _first_keys(reader: Records, most: int) -> list[str]:
    """The keys of numbers that were logged first, as the first blocks tell."""
    first: dict[str, tuple[int, int, int]] = {}
    for item in islice(reader.blocks(), _LOOKED_AT if most else 0):
        columns = item.columns
        for place, (name, code) in enumerate(zip(columns.shape.names, columns.shape.codes, strict=True)):
            here = (columns.time[0], columns.order[0], place)
            if code in NUMBERS and here < first.get(name, (1 << 63, 0, 0)):
                first[name] = here
    return sorted(first, key=first.__getitem__)[:most]


def add(found: Contents, attempt: int, item: StreamColumns, is_drawn: Callable[[str], bool]) -> None:
    """Add records of one stream, which a process of this attempt logged; those that are there already do not count."""
    span = found.spans.of(item.stream, item.process, item.lane)
    columns = unseen_part(item.columns, span.stored)  # a copied node folder holds the same once more
    if columns is None:
        return
    span.add(columns)
    if columns.rank is not None:
        found.ranks.add(columns.rank)
    first, last = columns.time[0], columns.time[-1]
    found.first_time = min(found.first_time or first, first)
    found.last_time = max(found.last_time, last)
    steps = min(columns.step), max(columns.step)
    shape = columns.shape
    for place, (name, code, cells) in enumerate(zip(shape.names, shape.codes, columns.cells, strict=True)):
        start = (first, columns.order[0], place)
        key = found.keys.get(name)
        if key is None:
            key = found.keys[name] = Key(name, start)
        key.first = min(key.first, start)
        key.points += len(columns)
        before = key.steps.get(attempt)
        key.steps[attempt] = steps if before is None else (min(before[0], steps[0]), max(before[1], steps[1]))
        newest = key.lasts.get(item.process)
        if newest is None or columns.order[-1] >= newest[1].order:  # its clock may have been set back
            value = read_column(code, cells[-1:])[0]
            point = Last(value, code, columns.step[-1], last, columns.order[-1], columns.rank)
            key.lasts[item.process] = attempt, point
        if code not in NUMBERS:
            key.is_text = True
            continue
        values: Any = read_column(code, cells)
        key.extremes.setdefault(attempt, Extremes()).take(values)
        if is_drawn(name):
            key.curves.setdefault(attempt, Curve()).add(columns.step, values)


def holes_of(span: StreamSpan, accepted: int) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """(cause, ranges of seqs) for each of CAUSES; every seq up to `accepted` is stored or in exactly one of them."""
    yield "forgotten", span.forgotten.ranges()
    yield "trimmed", span.trimmed.ranges()
    yield "damaged", span.damaged.ranges()
    yield "missing", span.missing(accepted).ranges()


def _holes(found: Contents, reader: Records) -> Iterator[Hole]:
    holes = [
        (span, cause, first, last)
        for span in found.spans.values()
        for cause, ranges in holes_of(span, found.accepted[span.stream])
        for first, last in ranges
    ]
    wanted: dict[bytes, set[int]] = {}
    for span, _, first, last in holes:
        wanted.setdefault(span.stream, set()).update((first - 1, last + 1))
    edges = find_edges(reader, wanted)
    made = [
        Hole(
            span.stream.hex(),
            span.process.hex(),
            first,
            last,
            cause,
            edges.get((span.stream, first - 1)),
            edges.get((span.stream, last + 1)),
        )
        for span, cause, first, last in holes
    ]
    return iter(sorted(made, key=_when))


def _when(hole: Hole) -> tuple[int, str, int]:
    edge = hole.after or hole.before
    return edge.time if edge is not None else 0, hole.stream, hole.first


def find_edges(reader: Records, wanted: dict[bytes, set[int]]) -> dict[tuple[bytes, int], Edge]:
    """Step and time of single records."""
    found: dict[tuple[bytes, int], Edge] = {}
    if not wanted:
        return found
    in_order = {stream: array("Q", sorted(seq for seq in seqs if seq > 0)) for stream, seqs in wanted.items()}
    for item in reader.blocks(in_order):
        if item.stream in in_order:
            for edge in _edges(item.columns, in_order[item.stream]):
                found[item.stream, edge.seq] = edge
    return found


def _edges(columns: Columns, seqs: array[int]) -> Iterator[Edge]:
    own = columns.seq
    for at in range(bisect_left(seqs, own[0]), len(seqs)):
        if seqs[at] > own[-1]:
            return
        index = bisect_left(own, seqs[at])
        if own[index] == seqs[at]:
            yield Edge(seqs[at], columns.step[index], columns.time[index])


def gap_steps(gaps: Iterable[Hole]) -> list[tuple[int, int]]:
    """Ranges of steps between which records are missing, as far as the records around tell, for a curve's axis."""
    found = []
    for gap in gaps:
        known = [edge.step for edge in (gap.after, gap.before) if edge is not None]
        if known:
            found.append((min(known), max(known)))
    return found


def as_dict(gap: Hole) -> dict[str, Any]:
    """A gap for JSON."""
    return {
        "stream": gap.stream,
        "process": gap.process,
        "first": gap.first,
        "last": gap.last,
        "records": gap.records,
        "cause": gap.cause,
        "after": None if gap.after is None else {"step": gap.after.step, "time": gap.after.time},
        "before": None if gap.before is None else {"step": gap.before.step, "time": gap.before.time},
    }

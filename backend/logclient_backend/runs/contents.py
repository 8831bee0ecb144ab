"""What is stored of a run: exact counts, gaps, last values, ranges of steps, curves. One pass over its segments.

Runs in any reader. Every block is read and checked, so the counts are those of what can be had, not of what was
promised: accepted = stored + forgotten + damaged, per stream. What was removed by the disk budget (trimmed) counts as
forgotten, what is in no segment and in no note (missing: a file was deleted) as damaged.

Where attempts overlap in steps, the newest counts: of an older attempt's points of a key, those are *superseded* that
lie between the lowest and the highest step that a later attempt logged of that key.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from logclient.record import Columns, read_column

from ..wal.reader import WalReader
from ..wal.scan import Damage, Gap, StreamColumns
from ..wal.seal import unseen_part
from ..wal.spans import Spans, StreamSpan
from .curve import Curve
from .view import COUNTS, RunView

if TYPE_CHECKING:
    from logclient.record import Value

CAUSES = ("forgotten", "trimmed", "damaged", "missing")
_NUMBERS = frozenset("drqbi")

Progress = Callable[[int], None]  # records done since the last call


@dataclass(slots=True)
class Last:
    """The newest point of a key."""

    value: Value
    code: str
    step: int
    time: int
    order: int
    rank: int | None


@dataclass(slots=True)
class Key:
    """What is stored of one key."""

    name: str
    points: int = 0
    last: Last | None = None
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # lowest and highest, by attempt
    curves: dict[int, Curve] = field(default_factory=dict)  # by attempt
    is_text: bool = False

    def superseded(self, attempt: int) -> list[tuple[int, int]]:
        """Ranges of steps in which a later attempt logged this key."""
        return [steps for number, steps in self.steps.items() if number > attempt]

    def curve(self) -> Curve:
        """Of all attempts, the newest where they overlap."""
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
    """What one pass found."""

    spans: Spans = field(default_factory=Spans)
    accepted: dict[bytes, int] = field(default_factory=dict)  # by stream
    keys: dict[str, Key] = field(default_factory=dict)  # in the order of their first appearance
    ranks: set[int] = field(default_factory=set)
    damage: list[Damage] = field(default_factory=list)
    unsupported: dict[str, str] = field(default_factory=dict)
    gaps: list[Hole] = field(default_factory=list)
    first_time: int = 0
    last_time: int = 0

    def stream_counts(self, stream: bytes) -> dict[str, int]:
        """Of one stream; `trimmed` is part of forgotten, `missing` of damaged."""
        span = self.spans.get(stream) or StreamSpan(stream, b"", 0)
        holes = {cause: sum(b - a + 1 for a, b in ranges) for cause, ranges in holes_of(span, self.accepted[stream])}
        return {
            "accepted": self.accepted[stream],
            "stored": span.records,
            "forgotten": holes["forgotten"] + holes["trimmed"],
            "damaged": holes["damaged"] + holes["missing"],
            "trimmed": holes["trimmed"],
            "missing": holes["missing"],
        }

    def counts(self, run: RunView) -> dict[str, int]:
        """Of the run, exact for what is on disk; `waiting` is what live processes logged that is not."""
        total = dict.fromkeys((*COUNTS, "trimmed", "missing", "waiting"), 0)
        for stream in self.accepted:
            for name, number in self.stream_counts(stream).items():
                total[name] += number
        told = run.counts()
        total["refused"], total["left_out"] = told["refused"], told["left_out"]
        for place in run.found.live.values():
            for lanes in place.processes:
                for name, accepted in lanes.streams().items():
                    total["waiting"] += max(0, accepted - self.accepted.get(bytes.fromhex(name), 0))
        return total


def read(
    run: RunView, *, curves: int | None = None, only: Iterable[str] | None = None, progress: Progress | None = None
) -> Contents:
    """One pass. Curves are kept of the first `curves` keys, or of those in `only`; None: of none."""
    found = Contents()
    wanted = set(only) if only is not None else None
    for node in run.nodes:
        reader = WalReader(node.path)
        for item in reader.items():
            if isinstance(item, Damage):
                found.damage.append(item)
            elif isinstance(item, Gap):
                found.spans.of(item.stream, item.process, item.lane).add_gap(item.first, item.last, item.cause)
            else:
                _count(found, run, item, curves, wanted)
                if progress is not None:
                    progress(len(item.columns))
        found.unsupported.update(reader.unsupported)
        for id, told in node.streams.items():
            if told.accepted:
                stream = bytes.fromhex(id)
                found.spans.of(stream, bytes.fromhex(told.process), told.lane)
                found.accepted[stream] = max(told.accepted, found.accepted.get(stream, 0))
    for stream, span in found.spans.items():
        known = max([seqs.last for seqs in (span.stored, *span.gaps.values()) if seqs], default=0)
        found.accepted[stream] = max(known, found.accepted.get(stream, 0))
    found.gaps = list(_holes(found, run))
    return found


def _count(found: Contents, run: RunView, item: StreamColumns, curves: int | None, wanted: set[str] | None) -> None:
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
    attempt = run.attempt_of(item.process.hex())
    steps = min(columns.step), max(columns.step)
    for name, code, cells in zip(columns.shape.names, columns.shape.codes, columns.cells, strict=True):
        key = found.keys.get(name)
        if key is None:
            key = found.keys[name] = Key(name)
        key.points += len(columns)
        before = key.steps.get(attempt)
        key.steps[attempt] = steps if before is None else (min(before[0], steps[0]), max(before[1], steps[1]))
        if key.last is None or (last, columns.order[-1]) >= (key.last.time, key.last.order):
            value = read_column(code, cells[-1:])[0]
            key.last = Last(value, code, columns.step[-1], last, columns.order[-1], columns.rank)
        if code not in _NUMBERS:
            key.is_text = True
        elif _is_drawn(found, name, key, curves, wanted):
            key.curves.setdefault(attempt, Curve()).add(columns.step, read_column(code, cells))  # type: ignore[arg-type]


def _is_drawn(found: Contents, name: str, key: Key, curves: int | None, wanted: set[str] | None) -> bool:
    if wanted is not None:
        return name in wanted
    if not curves:
        return False
    return bool(key.curves) or sum(1 for other in found.keys.values() if other.curves) < curves


def holes_of(span: StreamSpan, accepted: int) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """(cause, ranges of seqs) for each of CAUSES; every seq up to `accepted` is stored or in exactly one of them."""
    yield "forgotten", span.forgotten.ranges()
    yield "trimmed", span.trimmed.ranges()
    yield "damaged", span.damaged.ranges()
    yield "missing", span.missing(accepted).ranges()


def _holes(found: Contents, run: RunView) -> Iterator[Hole]:
    holes = [
        (span, cause, first, last)
        for span in found.spans.values()
        for cause, ranges in holes_of(span, found.accepted[span.stream])
        for first, last in ranges
    ]
    wanted: dict[bytes, set[int]] = {}
    for span, _, first, last in holes:
        wanted.setdefault(span.stream, set()).update((first - 1, last + 1))
    edges = find_edges([node.path for node in run.nodes], wanted) if wanted else {}
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


def find_edges(folders: Iterable[str], wanted: dict[bytes, set[int]]) -> dict[tuple[bytes, int], Edge]:
    """Step and time of single records."""
    found: dict[tuple[bytes, int], Edge] = {}
    sorted_seqs = {stream: array("Q", sorted(seq for seq in seqs if seq > 0)) for stream, seqs in wanted.items()}
    for folder in folders:
        for item in WalReader(folder).items():
            if isinstance(item, StreamColumns) and item.stream in sorted_seqs:
                for edge in _edges(item.columns, sorted_seqs[item.stream]):
                    found[item.stream, edge.seq] = edge
    return found


def _edges(columns: Columns, seqs: array[int]) -> Iterator[Edge]:
    own = columns.seq
    for at in range(bisect_left(seqs, own[0]), len(seqs)):
        if seqs[at] > own[-1]:
            return
        place = bisect_left(own, seqs[at])
        if own[place] == seqs[at]:
            yield Edge(seqs[at], columns.step[place], columns.time[place])


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



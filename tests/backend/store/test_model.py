"""A store against plain dicts: whatever is written, compacted, deleted and reopened, answers agree bit by bit."""

from __future__ import annotations

import math
import shutil
import struct
import tempfile
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from logclient.shm.columns import read_column
from logclient.shm.record import Shape
from logclient_backend.collector.store.embedded import EmbeddedStore, blocks, compact
from logclient_backend.collector.store.interface import Description, Parcel, RunDeleted
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.scan import Gap

from .model import BUCKET_COLUMNS, Model, bits, buckets, seqs
from .samples import NOW_NS, columns

RUNS = ("a", "b")
NODES = ("n1", "n2")
SHAPES = (
    Shape(("x", "y"), "dd"),
    Shape(("y", "n", "x"), "rqd"),
    Shape(("x", "note", "big", "ok"), "qsib"),
    Shape(("x", "x"), "dq"),  # no trainer logs that; whoever speaks the protocol may
    Shape((), ""),
)
KEYS = ("x", "y", "n", "note", "big", "ok", "nobody")
STREAMS = [(bytes([number]) * 16, bytes([64 + number // 2]) * 16) for number in range(4)]
NAN = struct.pack("<Q", 0x7FF4_0000_DEAD_BEEF)

FLOATS = st.sampled_from([0.0, -0.0, 1.5, -3.25, math.inf, -math.inf, math.nan, NAN, 1e300, 5e-324, 0.1])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "d": FLOATS,
    "r": FLOATS,
    "q": st.sampled_from([0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "b": st.booleans(),
    "i": st.sampled_from([2**64, -(2**70), 10**400, -(10**400), 0]),
    "s": st.sampled_from(["", "a", "ü" * 50, "\0"]),
}
STEPS = st.one_of(
    st.integers(-3, 40), st.sampled_from([10_000_000, -(2**63), 2**63 - 1, 2**40, -(2**40) + 1])
)


@st.composite
def batches(draw: st.DrawFn) -> StreamColumns:
    """Records of one stream, shape and rank."""
    stream, process = draw(st.sampled_from(STREAMS))
    shape = draw(st.sampled_from(SHAPES))
    first, stride = draw(st.integers(1, 60)), draw(st.sampled_from([1, 1, 1, 2]))
    count = draw(st.integers(1, 12))
    numbers = [first + stride * at for at in range(count)]
    rows = [[draw(VALUES[code]) for code in shape.codes] for _ in numbers]
    steps = numbers if draw(st.booleans()) else [draw(STEPS) for _ in numbers]
    times = [NOW_NS + draw(st.integers(-2, 2)) for _ in numbers]
    rank = draw(st.sampled_from([None, 0, 1]))
    made = columns(shape, numbers, rows, steps=steps, times=times, rank=rank)
    return StreamColumns(stream, process, 0, made)


@st.composite
def holes(draw: st.DrawFn) -> Gap:
    stream, process = draw(st.sampled_from(STREAMS))
    first = draw(st.integers(1, 80))
    cause = draw(st.sampled_from(["damaged", "forgotten", "trimmed"]))
    return Gap(stream, process, 0, first, first + draw(st.integers(0, 5)), cause)


DESCRIPTIONS = st.dictionaries(
    st.sampled_from([process.hex() for _, process in STREAMS]), st.integers(1, 3)
).map(lambda attempts: Description(attempts=attempts))


@st.composite
def parcels(draw: st.DrawFn) -> Parcel:
    told = draw(st.one_of(st.none(), DESCRIPTIONS))
    return Parcel(
        draw(st.sampled_from(RUNS)),
        draw(st.sampled_from(NODES)),
        NOW_NS,
        draw(st.lists(batches(), max_size=3)),
        draw(st.lists(holes(), max_size=2)),
        None if told is None else b"{%d}" % draw(st.integers(0, 9)),
        told,
    )


class StoreMachine(RuleBasedStateMachine):
    """Small blocks, so that a few records make and merge many of them."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for module, name, value in (
            (blocks, "MAX_RECORDS", 32),
            (blocks, "GROUP_RECORDS", 4),
            (blocks, "COARSER", 1),
            (compact, "MERGED", 2),
            (compact, "ROUND_POINTS", 60),
        ):
            self.patch.setattr(module, name, value)
        self.folder = tempfile.mkdtemp(prefix="logclient-test-")
        self.model = Model()
        self.sent: list[Parcel] = []

    @initialize()
    def open(self) -> None:
        self.store = EmbeddedStore(self.folder, synchronous="NORMAL")

    def teardown(self) -> None:
        try:
            for run in RUNS:
                self._check_run(run)
            self.store.close()
        finally:
            self.patch.undo()
            shutil.rmtree(self.folder)

    @rule(some=st.lists(parcels(), min_size=1, max_size=3))
    def write(self, some: list[Parcel]) -> None:
        if not all(self.model.takes(each.run) for each in some):
            with pytest.raises(RunDeleted):
                self.store.writer.write(some)
            return
        written = self.store.writer.write(some)
        assert (written.records, written.repeated, written.points) == self.model.write(some)
        self.sent += some

    @rule(number=st.integers(0, 99))
    def write_again(self, number: int) -> None:
        """What is sent again is stored once."""
        each = self.sent[number % len(self.sent)] if self.sent else None
        if each is not None and self.model.takes(each.run):
            written = self.store.writer.write([each])
            assert (written.records, written.repeated, written.points) == self.model.write([each])

    @rule()
    def compact(self) -> None:
        while self.store.compact(deadline_s=60, now=True):
            pass
        assert self.store.statistics()["uncompacted_points"] == 0
        for run in RUNS:
            self._check_run(run)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = EmbeddedStore(self.folder, synchronous="NORMAL")

    @rule(
        run=st.sampled_from(RUNS),
        then=st.sampled_from(["leave it", "undelete", "undelete", "purge", "take it back"]),
    )
    def delete(self, run: str, then: str) -> None:
        assert self.store.writer.delete(run, NOW_NS) == (run in self.model.runs)
        if run in self.model.runs:
            self.model.runs[run].deleted = True
        if then in ("purge", "take it back"):
            self._purge()
        if then in ("undelete", "take it back"):
            self._undelete(run)

    def _undelete(self, run: str) -> None:
        was = run in self.model.purged or (run in self.model.runs and self.model.runs[run].deleted)
        assert self.store.writer.undelete(run) == was
        self.model.purged.discard(run)
        if run in self.model.runs:
            self.model.runs[run].deleted = False

    def _purge(self) -> None:
        gone = {id for id, run in self.model.runs.items() if run.deleted}
        assert self.store.writer.purge(0) == len(gone)
        for id in gone:
            del self.model.runs[id]
        self.model.purged |= gone

    @rule(
        run=st.sampled_from(RUNS),
        key=st.sampled_from(KEYS),
        most=st.integers(1, 20),
        first=st.one_of(st.none(), STEPS),
        last=st.one_of(st.none(), STEPS),
        all_attempts=st.booleans(),
    )
    def ask_for_buckets(
        self, run: str, key: str, most: int, first: int | None, last: int | None, all_attempts: bool
    ) -> None:
        found = self.store.reader.buckets(
            run, key, most=most, first_step=first, last_step=last, all_attempts=all_attempts
        )
        known = self.model.runs.get(run)
        points = known.shown(key, first, last, all_attempts) if known else []
        width, expected = buckets(points, most, known.attempt if known else lambda point: 1)
        assert found.width == width
        assert found.points == len(points)
        if points:
            steps = [point.record.step for point in points]
            assert (found.first_step, found.last_step) == (min(steps), max(steps))
        columns = tuple(getattr(found, name) for name in BUCKET_COLUMNS)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        assert len(rows) == len(expected)
        for got, want in zip(rows, expected, strict=True):
            assert all(a == b or (a != a and b != b) for a, b in zip(got, want, strict=True)), (got, want)

    @rule(run=st.sampled_from(RUNS), key=st.sampled_from(KEYS), most=st.integers(1, 30))
    def ask_for_points(self, run: str, key: str, most: int) -> None:
        self._check_points(run, key, most)

    @rule(run=st.sampled_from(RUNS), most=st.integers(1, 30), keys=st.sets(st.sampled_from(KEYS)))
    def ask_for_records(self, run: str, most: int, keys: set[str]) -> None:
        self._check_records(run, most, keys)

    @rule(some=st.lists(parcels(), min_size=1, max_size=2), key=st.sampled_from(KEYS), most=st.integers(1, 9))
    def late_points_come_with_the_next_page(self, some: list[Parcel], key: str, most: int) -> None:
        """A cursor misses nothing that comes later, wherever its seqs lie, and repeats nothing."""
        got = []
        for run in RUNS:
            if not all(self.model.takes(each.run) for each in some):
                return
            page = self.store.reader.points(run, key, most=most)
            got.append((run, page))
        self.write(some)
        for run, page in got:
            found = _rows(page)
            while True:
                page = self.store.reader.points(run, key, after=page.next, most=most)
                found += _rows(page)
                if page.is_all:
                    break
            known = self.model.runs.get(run)
            expected = [_row(point) for point in known.points(key)] if known else []
            assert sorted(found, key=repr) == sorted(expected, key=repr)

    @invariant()
    def runs_are_there(self) -> None:
        if not hasattr(self, "store"):
            return
        reader = self.store.reader
        for id in RUNS:
            found, known = reader.run(id), self.model.runs.get(id)
            assert (found is None) == (known is None)
            assert reader.is_deleted(id) == (not self.model.takes(id))
            if found is not None and known is not None:
                records = [record for stream in known.streams.values() for record in stream.records.values()]
                assert found.records == len(records)
                assert found.points == sum(len(record.cells) for record in records)

    # ---- comparing --------------------------------------------------------------------------------------

    def _check_run(self, run: str) -> None:
        reader, known = self.store.reader, self.model.runs.get(run)
        assert reader.documents(run) == (known.documents if known else {})
        for node in NODES:
            held = reader.held(run, node)
            mine = [s for s in known.streams.values() if node in s.nodes] if known else []
            assert held.documents == (known.documents.get(node) if known else None)
            assert held.stored == {stream.id: seqs(set(stream.records)) for stream in mine}
            assert held.gaps == {
                stream.id: {cause: seqs(found) for cause, found in stream.gaps.items()} for stream in mine
            }
        spans = reader.contents(run)
        assert set(spans) == set(known.streams if known else ())
        for stream in known.streams.values() if known else ():
            span = spans[stream.id]
            assert span.stored == seqs(set(stream.records))
            if stream.records:
                low, high = stream.records[min(stream.records)], stream.records[max(stream.records)]
                assert (span.first_step, span.first_time) == (low.step, low.time)
                assert (span.last_step, span.last_time) == (high.step, high.time)
        for most in (7, 1000):
            for key in KEYS:
                self._check_points(run, key, most)
        self._check_records(run, 5, None)
        self._check_keys(run)
        for all_attempts in (False, True):
            for key in KEYS:
                self.ask_for_buckets(run, key, 8, None, None, all_attempts)

    def _check_keys(self, run: str) -> None:
        known = self.model.runs.get(run)
        found = self.store.reader.keys(run).keys
        names, came = [key.name for key in found], known.first_came() if known else {}
        assert set(names) == set(came) and len(names) == len(came)
        assert names == sorted(names, key=came.__getitem__)
        for start in range(len(found) + 1):
            page = self.store.reader.keys(run, start=start, most=2)
            assert repr(page.keys) == repr(found[start : start + 2]) and page.total == len(found)
        values = self.store.reader.last_values([run, "none"], KEYS)
        assert {name for _, name in values} == {key.name for key in found}
        for key in found:
            assert known is not None
            points = known.points(key.name)
            newest = known.newest(points)
            assert key.codes == "".join(sorted({point.code for point in points}))
            assert key.points == len(points)
            assert key.first_step == min(point.record.step for point in points)
            assert key.last_step == max(point.record.step for point in points)
            for last in (key.last, values[run, key.name]):
                assert (bits(last.value), last.code) == (bits(newest.value), newest.code)
                assert (last.step, last.time_ns) == (newest.record.step, newest.record.time)
                assert last.rank == newest.record.rank

    def _check_points(self, run: str, key: str, most: int) -> None:
        found, after = [], ""
        while True:
            page = self.store.reader.points(run, key, after=after, most=most)
            assert len(page.step) <= most + 1  # a key may stand twice in a record
            found += _rows(page)
            after = page.next
            if page.is_all:
                break
        known = self.model.runs.get(run)
        assert found == ([_row(point) for point in known.points(key)] if known else [])

    def _check_records(self, run: str, most: int, keys: set[str] | None) -> None:
        known = self.model.runs.get(run)
        for stream, _ in STREAMS:
            found: dict[int, Any] = {}
            at, pages = 1, 0
            while at:
                items, following = self.store.reader.records(run, stream, at, most=most, keys=keys)
                for item in items:
                    taken = item.columns
                    cells = list(zip(*[_raw(column) for column in taken.cells], strict=True)) or [()] * len(
                        taken
                    )
                    for row, seq in enumerate(taken.seq):
                        assert seq not in found and seq >= at and (not following or seq < following)
                        heads = (taken.order[row], taken.step[row], taken.time[row], taken.rank)
                        found[seq] = (*heads, taken.shape.names, taken.shape.codes, cells[row])
                at, pages = following, pages + 1
                assert pages < 1000
            expected = {}
            mine = known.streams.get(stream) if known else None
            for seq, record in mine.records.items() if mine else ():
                cells = [each for each in record.cells if keys is None or each[0] in keys]
                if keys and not cells:  # no keys at all: every record, without its values
                    continue
                names, codes, raw = zip(*cells, strict=True) if cells else ((), (), ())
                heads = (record.order, record.step, record.time, record.rank)
                expected[seq] = (*heads, names, "".join(codes), tuple(raw))
            assert found == expected


def _raw(column: Any) -> list[Any]:
    return list(column)


def _rows(page: Any) -> list[tuple[Any, ...]]:
    """Points of a page as tuples."""
    values = page.values
    if isinstance(values, np.ndarray):
        values = values.tolist() if values.dtype == np.int64 else list(read_column("d", _words(values)))
    columns = (page.step, page.time_ns, page.seq, page.order, page.stream, page.rank)
    rows = zip(*(column.tolist() for column in columns), values, strict=True)
    streams = [info.stream for info in page.streams]
    return [
        (step, time, seq, order, streams[stream], rank, bits(value))
        for step, time, seq, order, stream, rank, value in rows
    ]


def _words(values: Any) -> Any:
    from array import array

    return array("Q", values.tobytes())


def _row(point: Any) -> tuple[Any, ...]:
    record = point.record
    rank = -1 if record.rank is None else record.rank
    return record.step, record.time, point.seq, record.order, point.stream.id, rank, bits(point.value)


TestStore = StoreMachine.TestCase
TestStore.settings = hypothesis.settings(
    max_examples=max(10, hypothesis.settings().max_examples // 4), stateful_step_count=14
)
TestStore = pytest.mark.timeout(900)(pytest.mark.slow(TestStore))  # a machine may be slow; none waits here

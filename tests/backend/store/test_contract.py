"""Promises of every engine (`interface.py`)."""

from __future__ import annotations

import json
import math
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logclient.errors import BadArgument
from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.collector.store.interface import (
    Description,
    Filter,
    RunDeleted,
    RunQuery,
    Store,
    StoreError,
)
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.scan import Gap
from logclient_backend.wal.seqs import SeqSet

from .conftest import ENGINES, all_upkeep
from .samples import NODE, NOW_NS, PROCESS, STREAM, columns, described, parcel, ramp

AWKWARD = [
    "a'; DROP TABLE runs; --",
    "%_*?[",
    "../../etc/passwd",
    "ü" * 250,
    "a::b",
    'say "x"',
    "\u202e",
    " ",
]


def steps(store: Store, key: str = "loss", run: str = "run") -> list[int]:
    found: list[int] = store.reader.points(run, key).step.tolist()
    return found


# ---- records ------------------------------------------------------------------------------------------------


def test_what_is_sent_again_is_stored_once(store: Store) -> None:
    """In the same write, in a later one, in part, and from another node's folder."""
    first = store.writer.write([parcel(ramp(1, 10), ramp(5, 10)), parcel(ramp(1, 14), node="copy")])
    assert (first.records, first.repeated, first.points) == (14, 20, 28)
    again = store.writer.write([parcel(ramp(10, 10))])
    assert (again.records, again.repeated, again.points) == (5, 5, 10)
    assert steps(store) == list(range(1, 20))
    assert store.reader.held("run", "copy").stored == {STREAM: SeqSet([(1, 19)])}
    assert store.reader.held("run", "another").stored == {}


def test_a_write_is_all_or_nothing(store: Store) -> None:
    """One parcel of a deleted run: none is stored, and the error says whose it was."""
    store.writer.write([parcel(ramp(1, 2), run="gone")])
    assert store.writer.delete("gone", NOW_NS)
    with pytest.raises(RunDeleted) as refused:
        store.writer.write([parcel(ramp(1, 5)), parcel(ramp(3, 5), run="gone")])
    assert refused.value.run == "gone"
    assert store.reader.run("run") is None
    assert store.reader.held("run", NODE).stored == {}
    assert store.writer.write([parcel(ramp(1, 5))]).records == 5
    assert steps(store) == [1, 2, 3, 4, 5]


def test_seqs_beyond_what_any_stream_reaches_are_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="seq"):
        made = columns(Shape((), ""), [2**63, 2**63 + 1], [(), ()], steps=[1, 2], times=[1, 2])
        store.writer.write([parcel(StreamColumns(STREAM, PROCESS, 0, made))])
    assert store.reader.run("run") is None


def test_records_come_back_as_they_were(store: Store, settle: Callable[[Store], Store]) -> None:
    """Every type of value, bit by bit, from streams that log two shapes in turn."""
    mixed = Shape(("loss", "epoch", "ok", "note", "huge"), "rqbsi")
    rows = [[math.nan, -(2**63), True, "ü\0" * number, -(3**number)] for number in range(1, 6)]
    odd = columns(mixed, [1, 3, 5, 7, 9], rows, rank=None)
    even = columns(Shape((), ""), [2, 4, 6, 8], [()] * 4, rank=3)
    items = [StreamColumns(STREAM, PROCESS, 2, each) for each in (odd, even)]
    store.writer.write([parcel(*items)])
    store = settle(store)
    found, following = store.reader.records("run", STREAM, 1)
    assert following == 0
    assert [(item.stream, item.process, item.lane) for item in found] == [(STREAM, PROCESS, 2)] * 2
    for item, sent in zip(found, (odd, even), strict=True):
        got = item.columns
        assert (got.shape, got.rank) == (sent.shape, sent.rank)
        assert (got.seq, got.order, got.step, got.time) == (sent.seq, sent.order, sent.step, sent.time)
        assert got.cells == sent.cells
    page, following = store.reader.records("run", STREAM, 2, most=3, keys=["note"])
    assert [list(item.columns.seq) for item in page] == [[3]] and following == 5
    assert page[0].columns.shape == Shape(("note",), "s")


@pytest.mark.parametrize(
    "numbers",
    [[-(2**63), 2**63 - 1], [2**63 - 1, -(2**63)], [-(2**63), 2**63 - 1, 0], [2**63 - 2, 2**63 - 1]],
)
def test_steps_as_far_apart_as_there_are(
    store: Store, settle: Callable[[Store], Store], numbers: list[int]
) -> None:
    """Before they are merged into blocks and after that."""
    rows = [[number, 1.0] for number in range(len(numbers))]
    seqs = list(range(1, len(numbers) + 1))
    sent = columns(Shape(("n", "x"), "qr"), seqs, rows, steps=numbers)
    store.writer.write([parcel(StreamColumns(STREAM, PROCESS, 0, sent))])
    store = settle(store)
    found, _ = store.reader.records("run", STREAM, 1)
    assert [list(item.columns.step) for item in found] == [numbers]
    assert sorted(store.reader.points("run", "x").step.tolist()) == sorted(numbers)


def test_range_without_points_has_no_buckets(store: Store, settle: Callable[[Store], Store]) -> None:
    """Also between the first and the last step of a series."""
    sent = columns(Shape(("x",), "r"), [1, 2], [[1.0], [2.0]], steps=[0, 10**9])
    store.writer.write([parcel(StreamColumns(STREAM, PROCESS, 0, sent))])
    found = settle(store).reader.buckets("run", "x", most=2, first_step=1, last_step=10**7)
    assert (found.width, found.points, len(found.count)) == (1, 0, 0)


def test_late_records_take_their_place(store: Store, settle: Callable[[Store], Store]) -> None:
    """Seqs that come after higher ones, as after an upload of what was missing."""
    for first in (31, 1, 21):
        store.writer.write([parcel(ramp(first, 10))])
    all_upkeep(store)
    page = store.reader.points("run", "loss", most=25)
    assert page.seq.tolist() == [*range(1, 11), *range(21, 36)] and not page.is_all
    store.writer.write([parcel(ramp(11, 10))])
    store = settle(store)
    rest = store.reader.points("run", "loss", after=page.next)
    assert rest.seq.tolist() == [*range(11, 21), *range(36, 41)] and rest.is_all
    assert steps(store) == list(range(1, 41))
    nothing = store.reader.points("run", "loss", after=rest.next)
    assert nothing.is_all and not len(nothing.step)


def test_gaps_are_kept_beside_what_is_stored(store: Store, settle: Callable[[Store], Store]) -> None:
    gap = Gap(STREAM, PROCESS, 0, 11, 14, "forgotten")
    store.writer.write([parcel(ramp(1, 10), holes=[gap])])
    store.writer.write([parcel(ramp(15, 2), holes=[gap._replace(first=14, last=20, cause="trimmed")])])
    store = settle(store)
    held = store.reader.held("run", NODE)
    assert held.stored == {STREAM: SeqSet([(1, 10), (15, 16)])}
    assert held.gaps == {STREAM: {"forgotten": SeqSet([(11, 14)]), "trimmed": SeqSet([(14, 20)])}}
    span = store.reader.contents("run")[STREAM]
    assert (span.first_step, span.last_step) == (1, 16)
    assert span.forgotten == SeqSet([(11, 13)]) and span.trimmed == SeqSet([(14, 14), (17, 20)])


@pytest.mark.first_is_quick
def test_five_thousand_keys_of_a_record(store: Store, settle: Callable[[Store], Store]) -> None:
    names = [f"layer{number}/grad" for number in range(5000)]
    store.writer.write([parcel(ramp(1, 3, names=names))])
    store = settle(store)
    assert [key.name for key in store.reader.keys("run").keys] == names
    for start, most in ((0, 7), (4990, 7), (4995, 7), (5000, 7), (9000, 1)):
        page = store.reader.keys("run", start=start, most=most)
        assert ([key.name for key in page.keys], page.total) == (names[start : start + most], 5000)
    assert (store.reader.keys("another run").keys, store.reader.keys("another run").total) == ([], 0)
    assert sorted(store.reader.key_names("run")) == sorted(names)
    assert list(store.reader.key_names("another run")) == []
    assert steps(store, "layer4999/grad") == [1, 2, 3]


def test_names_are_data(store: Store, settle: Callable[[Store], Store]) -> None:
    """Run ids, nodes, keys and config keys that look like something else."""
    for name in AWKWARD:
        store.writer.write([parcel(ramp(1, 3, names=[name]), run=name, node=name)])
        store.writer.write([described(run=name, node=name, name=name, config={name: name, "other": 1})])
    store = settle(store)
    for name in AWKWARD:
        assert [key.name for key in store.reader.keys(name).keys] == [name]
        assert steps(store, name, name) == [1, 2, 3]
        assert store.reader.documents(name) == {name: b"{}"}
        found = store.reader.runs(RunQuery([Filter("config", name, value=name), Filter("name", value=name)]))
        assert [run.id for run in found.runs] == [name]
        assert store.reader.last_values([name], [name])[name, name].value == 3.0


# ---- charts -------------------------------------------------------------------------------------------------


def series(values: np.ndarray[Any, np.dtype[np.float64]], first: int = 1) -> StreamColumns:
    """One key, a record a value."""
    seqs = array("Q", range(first, first + len(values)))
    steps, times = array("q", seqs.tobytes()), array("q", [NOW_NS + seq for seq in seqs])
    cells: list[array[int] | list[bytes]] = [array("Q", values.tobytes())]
    return StreamColumns(STREAM, PROCESS, 0, Columns(Shape(("x",), "d"), 0, seqs, seqs, steps, times, cells))


def test_a_spike_and_a_nan_are_never_lost(store: Store, settle: Callable[[Store], Store]) -> None:
    """One of each in 150,000 points, some of them compacted before the rest came; as from all values."""
    values = np.sin(np.arange(150_000) / 700.0)
    values[70_001], values[71_777], values[149_998] = 1e6, math.nan, -math.inf
    for number in range(5):
        store.writer.write(
            [parcel(series(values[number * 30_000 : (number + 1) * 30_000], number * 30_000 + 1))]
        )
        if number == 2:
            all_upkeep(store)
    store = settle(store)
    found = store.reader.buckets("run", "x", most=300)
    assert (
        found.width == 512 and found.points == 150_000 and (found.first_step, found.last_step) == (1, 150_000)
    )
    indexes = np.arange(1, 150_001) >> 9
    for at, start in enumerate(found.start.tolist()):
        mine = values[indexes == start >> 9]
        real = mine[np.isfinite(mine)]
        assert found.count[at] == len(mine) and found.nans[at] == np.isnan(mine).sum()
        assert found.neg_infs[at] == (mine == -np.inf).sum()
        assert (found.min[at], found.max[at]) == (real.min(), real.max())
        assert found.last[at] == mine[-1] or math.isnan(mine[-1])
    assert found.max.max() == 1e6 and found.min.min() == values[np.isfinite(values)].min()
    assert (found.nans.sum(), found.infs.sum(), found.neg_infs.sum()) == (1, 0, 1)
    zoom = store.reader.buckets("run", "x", most=1000, first_step=70_000, last_step=70_999)
    assert zoom.width == 1 and zoom.points == 1000 and zoom.max.tolist()[2] == 1e6


def test_a_stray_step_does_not_flatten_the_rest(store: Store, settle: Callable[[Store], Store]) -> None:
    """Step 10,000,000 among the first thousand: the thousand stay apart."""
    seqs = range(1, 1002)
    steps = [10_000_000, *range(1000)]
    made = columns(Shape(("x",), "d"), seqs, [[float(step)] for step in steps], steps=steps)
    store.writer.write([parcel(StreamColumns(STREAM, PROCESS, 0, made))])
    store = settle(store)
    found = store.reader.buckets("run", "x", most=500)
    assert len(found.start) > 200 and found.points == 1001
    assert (found.first_step, found.last_step) == (0, 10_000_000)


def test_of_attempts_that_overlap_the_newest_counts(store: Store, settle: Callable[[Store], Store]) -> None:
    """Resumed from a step before the crash: what the first attempt logged there is hidden, not lost."""
    other = b"o" * 16
    store.writer.write([parcel(ramp(1, 100))])
    store.writer.write([parcel(ramp(1, 30, stream=other, process=b"q" * 16, step=59))])
    store.writer.write([described(attempts={PROCESS.hex(): 1, (b"q" * 16).hex(): 2})])
    store = settle(store)
    shown = store.reader.buckets("run", "loss")
    assert shown.points == 100 and shown.count.tolist() == [1] * 100
    assert shown.last.tolist() == [*range(1, 60), *range(1, 31), *range(90, 101)]
    both = store.reader.buckets("run", "loss", all_attempts=True)
    assert both.points == 130 and both.count.max() == 2
    points = store.reader.points("run", "loss")
    assert len(points.step) == 130 and [info.attempt for info in points.streams] == [1, 2]


@pytest.mark.parametrize("most", [1, 4, 1000])
def test_points_of_a_range_of_steps(store: Store, settle: Callable[[Store], Store], most: int) -> None:
    """Each once, page by page, though seqs and steps run against each other; what comes later is given later."""
    falling = columns(
        Shape(("loss",), "d"), range(1, 41), [[float(at)] for at in range(40)], steps=range(40, 0, -1)
    )
    store.writer.write([parcel(StreamColumns(STREAM, PROCESS, 0, falling))])
    store = settle(store)

    def pages(after: str) -> tuple[list[int], str]:
        found: list[int] = []
        while True:
            page = store.reader.points("run", "loss", after=after, most=most, first_step=10, last_step=20)
            assert len(page.step) <= most and page.spans == {
                1: (1, store.reader.keys("run").keys[0].last_step)
            }
            found += page.step.tolist()
            after = page.next
            if page.is_all:
                return found, after

    found, after = pages("")
    assert found == list(range(20, 9, -1))
    more = columns(Shape(("loss",), "d"), [41, 42, 43], [[1.0]] * 3, steps=[15, 99, 10])
    store.writer.write([parcel(StreamColumns(STREAM, PROCESS, 0, more))])
    assert pages(after)[0] == [15, 10]
    assert store.reader.points("run", "loss", first_step=200).is_all


def test_texts_have_no_buckets(store: Store, settle: Callable[[Store], Store]) -> None:
    shape = Shape(("note",), "s")
    store.writer.write([parcel(StreamColumns(STREAM, PROCESS, 0, columns(shape, [1, 2], [["a"], ["b"]])))])
    store = settle(store)
    charted = store.reader.buckets("run", "note")
    assert (charted.points, charted.codes) == (0, "s")
    assert store.reader.points("run", "note").values == ["a", "b"]
    charted = store.reader.buckets("none", "note")
    assert (charted.points, charted.codes) == (0, "")


# ---- runs ---------------------------------------------------------------------------------------------------


@pytest.fixture
def catalogued(store: Store) -> Store:
    """Five runs."""
    for number in range(5):
        about: dict[str, Any] = {
            "project": "p" if number < 3 else "q",
            "name": f"run {number}",
            "state": "finished" if number % 2 else "running",
            "created_ns": NOW_NS + number,
            "tags": ("even",) if number % 2 == 0 else ("odd", "old"),
            "config": {
                "lr": number / 10,
                "on": number == 1,
                "deep": {"a": [1, {"b": f"x{number}"}]},
                "one": 1,
            },
            "summary": {} if number == 3 else {"loss": (3, -1, 7, 0, 2**60)[number]},
        }
        store.writer.write([described(run=f"r{number}", **about)])
    return store


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], "01234"),
        ([Filter("project", value="p")], "012"),
        ([Filter("project", op="!=", value="p")], "34"),
        ([Filter("name", op="contains", value="n 3")], "3"),
        ([Filter("tag", value="odd")], "13"),
        ([Filter("tag", op="!=", value="odd")], "024"),
        ([Filter("tag", op="contains", value="ve")], "024"),
        ([Filter("created_ns", op=">=", value=NOW_NS + 3)], "34"),
        ([Filter("config", "lr", "<", 0.2)], "01"),
        ([Filter("config", "lr", "<=", 0.2), Filter("state", value="running")], "02"),
        ([Filter("config", "deep::a::1::b", value="x2")], "2"),
        ([Filter("config", "deep::a::0", value=1)], "01234"),
        ([Filter("config", "on", value=True)], "1"),
        ([Filter("config", "on", value=1)], ""),
        ([Filter("config", "one", value=True)], ""),
        ([Filter("config", "none", value=None)], ""),
        ([Filter("config", "deep::a::1::b", "contains", "x")], "01234"),
        ([Filter("summary", "loss", ">", 2)], "024"),
        ([Filter("summary", "loss", "=", 2**60)], "4"),
        ([Filter("id", value="r4")], "4"),
    ],
)
def test_filters(catalogued: Store, filters: list[Filter], expected: str) -> None:
    page = catalogued.reader.runs(RunQuery(filters, descending=False))
    assert "".join(run.id[1:] for run in page.runs) == expected
    assert page.total == len(expected) and page.next == ""


@pytest.mark.parametrize(
    ("sort", "rising", "falling"),
    [
        ("created_ns", "01234", "43210"),
        ("name", "01234", "43210"),
        ("project", "01234", "43210"),
        ("state", "13024", "42031"),
        ("summary::loss", "10243", "42013"),  # those without it come last, whichever way
        ("config::deep::a::1::b", "01234", "43210"),
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_pages_are_sorted(catalogued: Store, sort: str, rising: str, falling: str, limit: int) -> None:
    for descending, expected in ((False, rising), (True, falling)):
        found, after = "", ""
        while True:
            page = catalogued.reader.runs(
                RunQuery(sort=sort, descending=descending, limit=limit, after=after)
            )
            assert len(page.runs) <= limit and page.total == 5
            found += "".join(run.id[1:] for run in page.runs)
            after = page.next
            if not after:
                break
        if sort == "summary::loss":  # r3 has none
            expected = expected.replace("3", "") + "3"
        assert found == expected


@pytest.mark.parametrize(
    "question",
    [
        RunQuery([Filter("colour", value="red")]),
        RunQuery([Filter("name", op="like", value="%")]),
        RunQuery(sort="id; DROP TABLE runs"),
        RunQuery(after="nonsense"),
        RunQuery(after="WzEsIDIsIDNd"),
    ],
)
def test_questions_without_meaning_are_refused(catalogued: Store, question: RunQuery) -> None:
    with pytest.raises(BadArgument):
        catalogued.reader.runs(question)


def test_a_cursor_that_is_none_is_refused(store: Store) -> None:
    store.writer.write([parcel(ramp(1, 2))])
    for cursor in ("x", "AAAA", "é"):
        with pytest.raises(BadArgument):
            store.reader.points("run", "loss", after=cursor)


def test_a_description_replaces_the_one_before(catalogued: Store) -> None:
    told = Description(
        project="z", config={"lr": "new"}, attempts={"aa": 2}, ranks=(0, 1), more={"alerts": [1]}
    )
    catalogued.writer.write([parcel(run="r0", documents=b"second", description=told)])
    run = catalogued.reader.run("r0")
    assert run is not None and run.description == told
    assert catalogued.reader.documents("r0") == {NODE: b"second"}
    assert catalogued.reader.runs(RunQuery([Filter("config", "lr", value=0)])).total == 0
    assert catalogued.reader.runs(RunQuery([Filter("config", "lr", value="new")])).total == 1


def test_a_list_has_the_briefs_and_the_columns_that_it_is_asked_for(catalogued: Store) -> None:
    """What nobody told anything of has the brief of an empty description."""
    catalogued.writer.write([parcel(ramp(1, 2), run="r5")])
    asked = [("config", "deep::a::1::b"), ("config", "lr"), ("summary", "loss"), ("config", "none")]
    listed = {run.id: run for run in catalogued.reader.runs(RunQuery(columns=asked)).runs}
    for id, found in listed.items():
        run = catalogued.reader.run(id)
        assert run is not None
        assert json.loads(found.brief) == run.description.brief()
        assert (found.state, found.last_seen_ns, found.points) == (
            run.description.state,
            run.last_seen_ns,
            run.points,
        )
    assert listed["r4"].columns == {
        ("config", "deep::a::1::b"): "x4",
        ("config", "lr"): 0.4,
        ("summary", "loss"): 2**60,
    }
    assert listed["r5"].columns == {}
    assert all(not run.columns for run in catalogued.reader.runs(RunQuery()).runs)


def test_what_is_empty_is_found_and_shown_under_its_name(store: Store) -> None:
    """Filters and columns name values by one rule (R2-57)."""
    store.writer.write([described(config={"none": {}, "deep": {"no": [], "one": [{}]}})])
    for key, text in (("none", "{}"), ("deep::no", "[]"), ("deep::one::0", "{}")):
        assert store.reader.runs(RunQuery([Filter("config", key, value=text)])).total == 1
        (run,) = store.reader.runs(RunQuery(columns=[("config", key)])).runs
        assert json.dumps(run.columns["config", key]) == text


def test_last_seen_is_told_at_once_and_kept(catalogued: Store, opened: Callable[[], Store]) -> None:
    catalogued.writer.seen({"r2": NOW_NS + 50, "nobody": 7})
    catalogued.writer.seen({"r2": NOW_NS + 40})
    for store in (catalogued, opened()):
        run = store.reader.run("r2")
        assert run is not None and run.last_seen_ns == NOW_NS + 50


def test_a_deleted_run_comes_back_only_when_asked(store: Store) -> None:
    """Through bin, purge, late data and undelete."""
    store.writer.write([parcel(ramp(1, 10), documents=b"{}", description=Description(name="mine"))])
    assert not store.writer.delete("nobody", NOW_NS) and not store.writer.undelete("run")
    assert store.writer.delete("run", NOW_NS)
    binned = store.reader.run("run")
    assert binned is not None and binned.deleted_ns == NOW_NS and store.reader.is_deleted("run")
    assert store.reader.runs(RunQuery()).total == 0
    assert [run.id for run in store.reader.runs(RunQuery(deleted=True)).runs] == ["run"]
    assert store.writer.purge(10**12) == 0  # not yet
    assert store.writer.undelete("run") and steps(store) == list(range(1, 11))
    assert store.writer.delete("run", NOW_NS) and store.writer.purge(0) == 1
    assert store.reader.run("run") is None and store.reader.is_deleted("run")
    assert store.reader.keys("run").keys == [] and store.reader.documents("run") == {}
    with pytest.raises(RunDeleted):
        store.writer.write([parcel(ramp(11, 1))])
    assert store.writer.undelete("run") and not store.reader.is_deleted("run")
    assert store.writer.write([parcel(ramp(9, 3))]).records == 3
    assert steps(store) == [9, 10, 11]


# ---- at the same time ---------------------------------------------------------------------------------------


def test_readers_see_one_state_while_the_store_changes(store: Store) -> None:
    """Keys of the same records always have the same points, beside a writer and upkeep that moves them."""
    done = threading.Event()
    troubles: list[BaseException] = []
    seen = {"rounds": 0}

    def guarded(work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            try:
                while not done.is_set():
                    work()
            except BaseException as error:  # noqa: BLE001  # told below
                troubles.append(error)

        return run

    def read() -> None:
        counts = {key.points for key in store.reader.keys("run").keys}
        assert len(counts) <= 1, counts
        charted = store.reader.buckets("run", "loss", most=50)
        assert charted.points == 0 or charted.points == charted.last_step
        page = store.reader.points("run", "lr")
        assert page.seq.tolist() == list(range(1, len(page.seq) + 1))
        seen["rounds"] += 1

    threads = [
        threading.Thread(target=guarded(work))
        for work in (read, read, lambda: store.compact(deadline_s=1, now=True))  # type: ignore[call-arg]
    ]
    for thread in threads:
        thread.start()
    try:
        number = 0
        while (number < 40 or seen["rounds"] < 10) and not troubles:
            store.writer.write([parcel(ramp(1 + number * 50, 50))])
            number += 1
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
    assert not troubles, troubles
    assert steps(store) == list(range(1, number * 50 + 1))


def test_a_backup_is_one_state_of_a_store_that_changes(store: Store, tmp_path: Path, request: Any) -> None:
    """It holds all that was written before it was asked for, and opens as a store with an id of its own."""
    for number in range(20):
        store.writer.write([parcel(ramp(1 + number * 100, 100))])
    all_upkeep(store)
    done = threading.Event()

    def write() -> None:
        number = 20
        while not done.is_set():
            store.writer.write([parcel(ramp(1 + number * 100, 100))])
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        store.backup(str(tmp_path / "backup"))
    finally:
        done.set()
        thread.join(60)
    with pytest.raises(StoreError, match="not empty"):
        store.backup(str(tmp_path / "backup"))
    (engine,) = ENGINES.values()
    copy = engine(str(tmp_path / "backup"))
    try:
        assert copy.id != store.id
        found = steps(copy)
        assert len(found) >= 2000 and found == list(range(1, len(found) + 1))
        assert copy.writer.write([parcel(ramp(1, len(found) + 5))]).records == 5
    finally:
        copy.close()


# ---- edits --------------------------------------------------------------------------------------------------


def edits_of(store: Store) -> bytes | None:
    found = store.reader.run("run")
    assert found is not None
    return found.edits


def test_edits_are_kept_with_the_run(opened: Callable[[], Store]) -> None:
    """Written alone or beside records; also while it is in the bin, and gone for good with it."""
    store = opened()
    store.writer.write([parcel(ramp(1, 3), documents=b"{}", description=Description(name="mlp"))])
    assert edits_of(store) is store.reader.held("run", NODE).edits is None
    edited = parcel(description=Description(name="better", tags=("a",)))
    edited.edits = b"edits"
    store.writer.write([edited])
    store = opened()
    for _ in range(2):
        found = store.reader.run("run")
        assert found is not None and found.description.name == "better" and edits_of(store) == b"edits"
        assert store.reader.held("run", "any").edits == b"edits"
        store.writer.delete("run", NOW_NS)
        assert edits_of(store) == b"edits", "in the bin"
        store.writer.undelete("run")
    assert [run.id for run in store.reader.runs(RunQuery([Filter("tag", value="a")])).runs] == ["run"]
    store.writer.delete("run", NOW_NS)
    assert store.writer.purge(0) == 1 and store.writer.undelete("run")
    store.writer.write([parcel(ramp(1, 3))])
    assert edits_of(store) is None

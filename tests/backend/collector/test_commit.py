"""The committing thread: what is acknowledged, what is refused, and that one client's parcels stop no other's."""

from __future__ import annotations

import io
import json
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.collector.catalog import Catalog
from logclient_backend.collector.commit import Committer, Source
from logclient_backend.collector.eventlog import EventLog
from logclient_backend.collector.metrics import Metrics
from logclient_backend.collector.store.interface import Parcel, RunDeleted, StoreFull, Written
from logclient_backend.wal.coverage import Spans
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wire.messages import OUTDATED, NotTaken
from logclient_backend.wire.messages import Parcel as Sent
from tests.process.disturbed import wait_until


class FakeStore:
    """A writer and a reader that note what is asked, and fail as they are told."""

    id = "fake"

    def __init__(self) -> None:
        self.groups: list[list[Parcel]] = []
        self.deleted: set[str] = set()
        self.seen_runs: dict[str, int] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.fails: Callable[[Sequence[Parcel]], None] = lambda parcels: None

    @property
    def writer(self) -> FakeStore:
        return self

    @property
    def reader(self) -> FakeStore:
        return self

    def write(self, parcels: Sequence[Parcel]) -> Written:
        assert self.gate.wait(30)
        self.fails(parcels)
        if any(parcel.run in self.deleted for parcel in parcels):
            raise RunDeleted("deleted")
        self.groups.append(list(parcels))
        records = sum(len(item.columns) for parcel in parcels for item in parcel.batches)
        return Written(records, 0, records)

    def seen(self, runs: Mapping[str, int]) -> None:
        self.seen_runs.update(runs)

    def is_deleted(self, run: str) -> bool:
        return run in self.deleted

    def documents(self, run: str) -> Mapping[str, bytes]:
        return {}

    def contents(self, run: str) -> Spans:
        return Spans()


class Answers:
    """What a conversation was told."""

    def __init__(self) -> None:
        self.upto = 0
        self.refused: list[tuple[NotTaken, int]] = []

    def ack(self, upto: int) -> None:
        assert upto > self.upto
        self.upto = upto

    def refuse(self, refused: NotTaken, parcel: int = 0) -> None:
        self.refused.append((refused, parcel))


class Bench:
    """A committer at work, and conversations with it."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.log = io.StringIO()
        self.metrics = Metrics()
        store: Any = self.store
        self.committer = Committer(
            store,
            Catalog(store.documents, store.contents),
            self.metrics,
            EventLog(self.log),
            queue_bytes=1000,
        )
        self.committer.start()

    def source(self, run: str = "mlp") -> tuple[Source, Answers]:
        answers = Answers()
        return Source(run, "aa", False, answers), answers

    def put(self, source: Source, number: int, *, size: int = 10, documents: bytes | None = None) -> bool:
        columns = Columns(
            Shape(("loss",), "d"),
            None,
            array("Q", [number]),
            array("Q", [number]),
            array("q", [0]),
            array("q", [0]),
            [array("Q", [0])],
        )
        sent = Sent(number, [StreamColumns(b"s" * 16, b"p" * 16, 0, columns)], documents=documents)
        return self.committer.put(source, sent, size, 0.2)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    try:
        yield made
    finally:
        made.store.gate.set()
        assert made.committer.stop(30)


def test_what_waits_is_one_transaction_and_is_acked_after_it(bench: Bench) -> None:
    """Parcels of all conversations together."""
    (a, to_a), (b, to_b) = bench.source("a"), bench.source("b")
    bench.store.gate.clear()
    bench.put(a, 1)
    wait_until(lambda: bench.committer.queue_parcels == 0, 30, "the first is being written")
    for number in (2, 3, 4):
        bench.put(a, number)
        bench.put(b, number - 1)
    assert (to_a.upto, to_b.upto) == (0, 0)
    bench.store.gate.set()
    wait_until(lambda: (to_a.upto, to_b.upto) == (4, 3), 30, "all are acknowledged")
    assert [len(group) for group in bench.store.groups] == [1, 6]
    assert bench.metrics.value("parcels_total") == 7


def test_queue_is_bounded_and_one_parcel_always_finds_room(bench: Bench) -> None:
    """Who is too much waits, then is told."""
    source, answers = bench.source()
    bench.store.gate.clear()
    assert bench.put(source, 1, size=5000), "alone"
    assert not bench.put(source, 2, size=10)
    bench.store.gate.set()
    wait_until(lambda: answers.upto == 1, 30, "the first is committed")
    assert bench.put(source, 2, size=900)
    wait_until(lambda: bench.committer.queue_bytes == 0 and answers.upto == 2, 30, "there is room again")


def test_poison_is_refused_and_the_rest_of_its_group_goes_on(bench: Bench) -> None:
    """Also later parcels of the same conversation."""

    def fails(parcels: Sequence[Parcel]) -> None:
        if any(parcel.run == "bad" and parcel.batches[0].columns.seq[0] == 2 for parcel in parcels):
            raise OverflowError("a number that is too large")

    bench.store.fails = fails
    (good, to_good), (bad, to_bad) = bench.source("good"), bench.source("bad")
    bench.store.gate.clear()
    for number in (1, 2, 3):
        bench.put(bad, number)
        bench.put(good, number)
    bench.store.gate.set()
    wait_until(lambda: (to_good.upto, to_bad.upto) == (3, 3), 30, "all others are committed")
    ((refused, parcel),) = to_bad.refused
    assert parcel == 2 and refused.is_final and refused.reason == "invalid"
    assert not to_good.refused
    assert "OverflowError" in bench.log.getvalue()


def test_deleted_run_is_told_for_good_and_others_are_committed(bench: Bench) -> None:
    """Late data do not bring it back."""
    bench.store.deleted.add("gone")
    (a, to_a), (gone, to_gone) = bench.source("a"), bench.source("gone")
    bench.store.gate.clear()
    bench.put(gone, 1)
    bench.put(a, 1)
    bench.put(gone, 2)
    bench.store.gate.set()
    wait_until(lambda: to_a.upto == 1 and to_gone.refused, 30, "both are told")
    ((refused, parcel),) = to_gone.refused
    assert (refused.reason, refused.is_final, parcel) == ("deleted", True, 0)
    assert to_gone.upto == 0 and all(each.run == "a" for group in bench.store.groups for each in group)


def test_full_disk_is_told_with_a_time_and_works_again_later(bench: Bench) -> None:
    """Nothing is acknowledged; what the conversation had queued behind it is not stored out of turn."""

    def full(parcels: Sequence[Parcel]) -> None:
        raise StoreFull("the disk is full: make room")

    bench.store.fails = full
    source, answers = bench.source()
    bench.store.gate.clear()
    for number in (1, 2, 3):
        bench.put(source, number)
    bench.store.gate.set()
    wait_until(lambda: answers.refused, 30, "it is told")
    assert bench.committer.trouble == "the disk is full: make room"
    refused, parcel = answers.refused[0]
    assert (refused.reason, refused.is_final, parcel) == ("disk", False, 0)
    assert refused.retry_after_s and "make room" in refused.text
    bench.store.fails = lambda parcels: None
    again, to_again = bench.source()
    bench.put(again, 1)
    wait_until(lambda: to_again.upto == 1, 30, "it works again")
    assert len(answers.refused) == 1 and answers.upto == 0 and not bench.committer.trouble


@pytest.mark.parametrize("documents", [b"{", b"[]", b'{"version": 99}', b"\xff", b'{"processes": 5}'])
def test_documents_cost_at_most_their_own_parcel(bench: Bench, documents: bytes) -> None:
    """Whatever is in them."""
    source, answers = bench.source()
    bench.put(source, 1, documents=documents)
    bench.put(source, 2)
    wait_until(lambda: answers.upto == 2, 30, "the next one is committed")
    is_fine = isinstance(_loads(documents), dict) and _loads(documents).get("version", 1) == 1
    assert len(answers.refused) == (0 if is_fine else 1)


def test_a_parcel_with_documents_of_an_older_copy_is_refused_as_outdated(bench: Bench) -> None:
    """Nothing of it is acknowledged or stored; the same records without them are."""
    source, answers = bench.source()
    source.is_sync = True
    newer, older = b'{"version":1,"revision":9,"heard_ns":1}', b'{"version":1,"revision":8,"heard_ns":5}'
    bench.put(source, 1, documents=newer)
    bench.put(source, 2, documents=older)
    wait_until(lambda: answers.refused, 30, "the older ones are refused")
    bench.put(source, 3)
    wait_until(lambda: answers.upto == 3, 30, "the rest is committed")
    stored = [parcel for group in bench.store.groups for parcel in group]
    assert [parcel.documents for parcel in stored] == [newer, None]
    ((refused, parcel),) = answers.refused
    assert (refused.reason, refused.is_final, parcel) == (OUTDATED, True, 2)


def _loads(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def test_who_has_nothing_to_say_is_noted(bench: Bench) -> None:
    """By our clock; what an upload says of itself does not count."""
    source, _ = bench.source("live")
    upload = Source("upload", "aa", True, Answers())
    bench.committer.keepalive(source)
    bench.committer.keepalive(upload)
    wait_until(lambda: bench.store.seen_runs, 30, "it is noted")
    assert set(bench.store.seen_runs) == {"live"}


def test_calls_are_made_between_commits_and_their_errors_come_back(bench: Bench) -> None:
    """In the committing thread: one thread changes the store."""
    source, answers = bench.source()
    bench.put(source, 1)
    name = bench.committer.call(lambda: (threading.current_thread().name, answers.upto))
    assert name == ("commit", 1)
    with pytest.raises(ZeroDivisionError):
        bench.committer.call(lambda: 1 // 0)


def test_stop_commits_what_is_queued_and_takes_no_more(bench: Bench) -> None:
    """Then the thread ends."""
    source, answers = bench.source()
    bench.store.gate.clear()
    for number in range(1, 6):
        bench.put(source, number)
    threading.Timer(0.1, bench.store.gate.set).start()
    assert bench.committer.stop(30)
    assert answers.upto == 5
    with pytest.raises(NotTaken) as caught:
        bench.put(source, 6)
    assert caught.value.reason == "stopping" and not caught.value.is_final

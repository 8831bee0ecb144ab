"""What a store has since a position: each point once, or its series is named to be read anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from logclient.errors import BadArgument
from logclient.shm.record import Shape
from logclient.shm.side_stream import SYSTEM
from logclient_backend.collector.store.embedded import EmbeddedStore, compact, open_store
from logclient_backend.collector.store.interface import Store, side_id
from logclient_backend.collector.store.news import News, Position, Question, position_of
from logclient_backend.wal.encoded import StreamColumns
from tests.served import made_store

from .samples import PROCESS, STREAM, columns, described, parcel, ramp


def ask(store: Store, after: Position | None, *keys: str, run: str = "run", most: int = 2000) -> News:
    (found,) = store.live.news([Question(after, {run: keys})], most=most)
    return found


def pack(store: Store) -> None:
    """Pack all rows of the tail."""
    assert isinstance(store, EmbeddedStore)
    while store.compact(deadline_s=60, now=True):
        pass


def steps(news: News, key: str) -> list[int]:
    return [step for each in news.points if key in each.keys for step in each.step]


def test_new_points_come_once_whatever_the_order_of_seqs(tmp_path: Path) -> None:
    """Records that come late, a second stream, another shape: each is in one answer."""
    with made_store(tmp_path) as store:
        store.writer.write([parcel(ramp(1, 10), ramp(50, 10))])
        now = ask(store, None, "loss").position
        assert now == store.live.position()
        store.writer.write([parcel(ramp(20, 5)), parcel(ramp(1, 3, names=("loss", "x"), stream=b"t" * 16))])
        store.writer.write([parcel(ramp(1, 30), run="other")])
        found = ask(store, now, "loss", "x", "none")
        assert sorted(steps(found, "loss")) == [1, 2, 3, 20, 21, 22, 23, 24]
        assert steps(found, "x") == [1, 2, 3]
        assert [each.at for each in found.points] == sorted(each.at for each in found.points)
        assert found.keys == [("run", "x")]
        assert not found.missed
        assert not ask(store, found.position, "loss").points


def test_attempt_rank_and_values_are_those_of_the_record(tmp_path: Path) -> None:
    """Ints keep all their digits; the attempt is that of the process by the documents."""
    shape = Shape(("i", "f"), "qd")
    with made_store(tmp_path) as store:
        start = store.live.position()
        store.writer.write([described(attempts={PROCESS.hex(): 3})])
        rows = columns(shape, [1, 2], [(2**60, 0.5), (-1, float("inf"))], rank=None)
        store.writer.write([parcel(StreamColumns(STREAM, PROCESS, 0, rows))])
        (made,) = ask(store, start, "f", "i").points
        assert (made.run, list(made.keys), made.attempt, made.rank) == ("run", ["i", "f"], 3, None)
        assert list(map(list, made.values)) == [[2**60, -1], [0.5, float("inf")]]


def test_what_was_packed_meanwhile_is_to_be_read_anew(tmp_path: Path) -> None:
    """Only the series whose rows were packed after the position; a position after that misses nothing."""
    with made_store(tmp_path) as store:
        store.writer.write([parcel(ramp(1, 5)), parcel(ramp(1, 5), run="idle")])
        pack(store)
        start = store.live.position()
        store.writer.write([parcel(ramp(6, 5))])
        middle = store.live.position()
        pack(store)
        assert ask(store, start, "loss", "none").missed == {("run", "loss")}
        assert not ask(store, start, "loss", run="idle").missed
        assert not ask(store, middle, "loss").missed
        store.writer.write([parcel(ramp(11, 1))])
        assert steps(ask(store, middle, "loss"), "loss") == [11]


def test_rows_stay_in_the_tail_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upkeep that is due packs rows only once somebody who looks now and then has seen them."""
    monkeypatch.setattr(compact, "DUE_ROWS", 1)
    monkeypatch.setattr(compact, "KEEP_S", 3600.0)
    store = open_store(str(tmp_path / "store"), synchronous="NORMAL")
    try:
        start = store.live.position()
        store.writer.write([parcel(ramp(1, 5))])
        store.compact(deadline_s=60)
        assert steps(ask(store, start, "loss"), "loss") == [1, 2, 3, 4, 5]
        monkeypatch.setattr(compact, "KEEP_S", 0.0)
        store.compact(deadline_s=60)
        store.compact(deadline_s=60)
        assert ask(store, start, "loss").missed == {("run", "loss")}
    finally:
        store.close()


def test_too_much_and_texts_are_named_instead(tmp_path: Path) -> None:
    """An answer is bounded; texts are no points of a chart."""
    with made_store(tmp_path) as store:
        start = store.live.position()
        store.writer.write([parcel(ramp(1, 20))])
        assert ask(store, start, "loss", most=19).missed == {("run", "loss")}
        assert not ask(store, start, "loss", most=20).missed
        now = store.live.position()
        rows = columns(Shape(("loss", "note"), "ds"), [1], [(1.0, "text")])
        store.writer.write([parcel(StreamColumns(b"u" * 16, PROCESS, 0, rows))])
        found = ask(store, now, "loss", "note")
        assert found.missed == {("run", "note")}
        assert steps(found, "loss") == [1]


def test_host_metrics_are_followed_under_their_own_id(tmp_path: Path) -> None:
    """They are no points of the run, and the run's are none of theirs."""
    stream = b"lcsystem" + b"x" * 8
    with made_store(tmp_path) as store:
        start = store.live.position()
        store.writer.write([parcel(ramp(1, 2), ramp(1, 3, names=("cpu",), stream=stream, process=stream))])
        assert steps(ask(store, start, "cpu", "loss"), "loss") == [1, 2]
        assert steps(ask(store, start, "cpu", run=side_id("run", SYSTEM)), "cpu") == [1, 2, 3]


def test_a_commit_of_another_process_is_noticed(tmp_path: Path) -> None:
    """Once for each time that something was committed."""
    with made_store(tmp_path) as store:
        watch = store.live.watch()
        try:
            assert watch.has_changed()
            assert not watch.has_changed()
            store.writer.write([parcel(ramp(1, 1))])
            assert watch.has_changed()
            assert not watch.has_changed()
        finally:
            watch.close()


def test_a_cursor_is_of_one_store() -> None:
    """That of another store gives no position, and other texts are refused."""
    position = Position(5, 7, 9)
    assert position_of(position.cursor("a" * 32), "a" * 32) == position
    assert position_of(position.cursor("a" * 32), "b" * 32) is None
    for text in ("x", "a-1-2", "a-1-2-x", "a-1-2-²", f"a-1-2-{'9' * 30}"):
        with pytest.raises(BadArgument):
            position_of(text, "a" * 32)

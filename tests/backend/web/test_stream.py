"""Live updates: what is new comes once, by a cursor, and a stream ends when it may not go on."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from logclient_backend.collector.store.embedded import EmbeddedStore
from logclient_backend.collector.store.interface import Store
from logclient_backend.collector.tokens import READ, Grant
from logclient_backend.collector.web import live, live_runs, stream
from tests.backend.store.samples import described, parcel, ramp
from tests.served import backing, grant_of, made_store, serving

from .streams import PATIENCE_S, Page


class Served:
    """A store, its API, and tokens that can be revoked."""

    def __init__(self, store: Store, url: str, revoked: set[str]) -> None:
        self.store = store
        self.url = url
        self.revoked = revoked

    def page(self, runs: list[str], keys: list[str], *, follows_runs: bool = False) -> Page:
        return Page(self.url, "reads", runs, keys, follows_runs=follows_runs)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    revoked: set[str] = set()

    def check(token: str | None) -> Grant | None:
        if token == "guest" and token not in revoked:
            return Grant("guest", frozenset({READ}))
        return None if token in revoked else grant_of(token)

    with made_store(tmp_path / "data") as store:
        stands_on = backing(store)
        object.__setattr__(stands_on, "check", check)
        with serving(stands_on) as url:
            yield Served(store, url, revoked)


def test_each_point_comes_once_while_others_arrive(served: Served) -> None:
    """Curves, then a stream that is cut again and again while points arrive, late ones too, and upkeep packs them."""
    store = served.store
    assert isinstance(store, EmbeddedStore)
    store.writer.write([parcel(ramp(1, 100)), parcel(ramp(1, 50), run="over")])
    page = served.page(["run", "over"], ["loss", "lr"])
    page.load()
    is_over = threading.Event()

    def feed() -> None:
        first = 101
        while not is_over.is_set() and first < 1000:
            store.writer.write([parcel(ramp(first + 10, 10))])
            store.writer.write([parcel(ramp(first, 10))])  # it was sent later
            first += 20
            if first % 200 == 1:
                store.compact(deadline_s=1.0, now=True)
            is_over.wait(0.002)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        while thread.is_alive():
            before = len(page.events)
            with page.following():
                page.wait(lambda before=before: len(page.events) > before + 3 or not thread.is_alive())
    finally:
        is_over.set()
        thread.join()
    whole = [(step, float(step)) for step in range(1, 1001)]
    with page.following():
        page.wait(lambda: all(len(page.points.get(series, ())) >= 1000 for series in (0, 1)))
    assert sorted(page.points[0]) == whole
    assert sorted(page.points[1]) == whole
    assert page.points[2] == [(step, float(step)) for step in range(1, 51)]


def test_a_stream_from_now_on_has_what_comes_later(served: Served) -> None:
    """Without a cursor: `hello` first, then new points, new keys, a new run of the list and its end."""
    store = served.store
    store.writer.write([parcel(ramp(1, 5)), described(name="first")])
    page = served.page(["run"], ["loss"], follows_runs=True)
    with page.following():
        page.wait(lambda: page.of("hello"))
        store.writer.write([parcel(ramp(6, 2, names=("loss", "later")))])
        store.writer.write([parcel(ramp(1, 1), run="new"), described("new", name="second", tags=("t",))])
        page.wait(lambda: page.of("keys") and page.of("points"))
        page.wait(lambda: any(row["id"] == "new" for each in page.of("runs") for row in each["rows"]))
        (row,) = [row for each in page.of("runs") for row in each["rows"] if row["id"] == "new"][:1]
        assert (row["name"], row["tags"]) == ("second", ["t"])
        store.writer.write([described("new", name="second", state="failed", reason="exit code 1")])
        page.wait(
            lambda: any(row.get("state") == "failed" for each in page.of("runs") for row in each["rows"])
        )
    assert page.points == {0: [(6, 6.0), (7, 7.0)]}
    assert page.of("keys")[0]["keys"] == [[0, "later", False]]
    assert page.events[0][0] == "hello"
    assert not page.reloads


def test_one_who_comes_again_gets_the_rows_that_changed_meanwhile(served: Served) -> None:
    """The list of runs goes on at the id of the last event."""
    served.store.writer.write([described(name="before")])
    page = served.page([], [], follows_runs=True)
    with page.following():
        page.wait(lambda: page.cursor)
    served.store.writer.write([described(name="after"), parcel(ramp(1, 1))])
    with page.following():
        page.wait(lambda: any(row.get("name") == "after" for each in page.of("runs") for row in each["rows"]))
    assert not page.of("reload")


def test_an_edit_is_not_missed_by_one_who_goes_on_at_another_process(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Points came after it, and the first process had not looked at all runs since; the other one has seen it only."""
    store = served.store
    store.writer.write([described(name="before", state="finished"), parcel(ramp(1, 1))])
    monkeypatch.setattr(live_runs, "SCAN_S", 1e9)
    page = served.page(["run"], ["loss"], follows_runs=True)
    with serving(backing(store)) as second:
        with page.following():
            page.wait(lambda: page.of("hello"))
            store.writer.write([described(name="after", state="finished")])
            store.writer.write([parcel(ramp(2, 1))])
            page.wait(lambda: page.of("points"))
        assert not any("name" in row for each in page.of("runs") for row in each["rows"])
        page.url = second
        with page.following():
            page.wait(lambda: any(each["runs"] for each in page.of("reload")))
        assert page.ask("/runs").json()["runs"][0]["name"] == "after"


def test_a_list_that_is_older_than_a_stream_is_known_by_its_position(served: Served) -> None:
    """Changes of a run that come without a record move the position too: a name, the bin, and back."""
    store = served.store
    store.writer.write([described(name="before", state="finished")])
    page = served.page([], [], follows_runs=True)
    positions = [page.ask("/runs").json()["at"]]
    for change in (
        lambda: store.writer.write([described(name="after", state="finished")]),
        lambda: store.writer.delete("run", 1),
        lambda: store.writer.undelete("run"),
    ):
        change()
        positions.append(page.ask("/runs").json()["at"])
    assert positions == sorted(set(positions))
    with page.following():
        page.wait(lambda: page.of("hello"))
    assert page.of("hello")[0]["at"] == positions[-1]


def test_a_state_that_changed_with_the_clock_is_sent_to_one_who_goes_on(served: Served) -> None:
    """No position moves then: rows of runs that are not over come whole."""
    served.store.writer.write([described(name="live", state="running")])
    page = served.page([], [], follows_runs=True)
    page.cursor = served.store.live.position().cursor(served.store.id)
    with page.following():
        page.wait(lambda: any(row["id"] == "run" for each in page.of("runs") for row in each["rows"]))


@pytest.mark.parametrize("cursor", ["00000000-1-1-1", "{}-999999-1-1"])
def test_a_cursor_of_another_store_loads_everything_anew(served: Served, cursor: str) -> None:
    """Also one that is ahead of this store, as after a power cut."""
    served.store.writer.write([parcel(ramp(1, 5))])
    page = served.page(["run"], ["loss", "none"], follows_runs=True)
    page.cursor = cursor.format(served.store.id[:8])
    with page.following():
        page.wait(lambda: page.of("reload"))
    assert {**page.of("reload")[0], "at": 0} == {"at": 0, "series": [0, 1], "runs": True, "keys": [0]}
    assert len(page.points[0]) == 5


def test_a_revoked_token_ends_its_stream(served: Served) -> None:
    """The others go on."""
    served.store.writer.write([parcel(ramp(1, 1))])
    guest = Page(served.url, "guest", ["run"], ["loss"])
    other = served.page(["run"], ["loss"])
    with other.following():
        ended: list[str] = []
        thread = threading.Thread(target=lambda: ended.append(guest.follow(guest.open())))
        thread.start()
        guest.wait(lambda: guest.of("hello"))
        served.revoked.add("guest")
        thread.join(PATIENCE_S)
        assert ended == ["unauthorized"]
        assert guest.open().status_code == 401
        served.store.writer.write([parcel(ramp(2, 1))])
        other.wait(lambda: other.points)


def test_what_is_idle_gets_a_comment_with_the_newest_id(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proxies see that the connection lives, and a reconnect begins at what was seen."""
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.2)
    served.store.writer.write([parcel(ramp(1, 1))])
    page = served.page(["run"], ["none"])
    with page.following():
        page.wait(lambda: page.of("hello"))
        before = page.cursor
        served.store.writer.write([parcel(ramp(2, 1))])
        page.wait(lambda: page.cursor != before)
    assert [name for name, _ in page.events] == ["hello"]


def test_a_reader_that_takes_nothing_is_dropped(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory that waits for it is bounded; its place is free again."""
    monkeypatch.setattr(live, "MAX_WAITING", 20_000)
    monkeypatch.setattr(stream, "SEND_S", 1.0)
    monkeypatch.setattr(live, "MAX_STREAMS", 1)
    store = served.store
    store.writer.write([parcel(ramp(1, 1))])
    where = urlsplit(served.url)
    with socket.create_connection((where.hostname or "", where.port or 0), PATIENCE_S) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(
            b"GET /api/v1/stream?run=run&key=loss&key=lr HTTP/1.1\r\nHost: localhost\r\n"
            b"Authorization: Bearer reads\r\n\r\n"
        )
        deaf.recv(1)
        page = served.page(["run"], ["loss"])
        deadline = time.monotonic() + PATIENCE_S
        first = 2
        assert page.open().status_code == 429
        while (answer := page.open()).status_code == 429:
            answer.close()
            assert time.monotonic() < deadline
            store.writer.write([parcel(ramp(first, 900))])
            first += 900
        assert answer.status_code == 200
        answer.close()


def test_questions_that_make_no_sense_are_refused(served: Served) -> None:
    """With a sentence, before anything streams."""
    served.store.writer.write([parcel(ramp(1, 1))])
    page = served.page([], [])
    for parameters in (
        {},
        {"run": ["run", "run"], "key": "loss"},
        {"run": "run", "key": "loss", "after": "x"},
        {"run": "run", "wrong": "loss"},
    ):
        assert page.ask("/stream", **parameters).status_code == 400, parameters
    assert page.ask("/stream", run="none", key="loss").status_code == 404
    assert Page(served.url, "", ["run"], ["loss"]).open().status_code == 401
    assert Page(served.url, "ships", ["run"], ["loss"]).open().status_code == 403


def test_a_point_takes_few_bytes(served: Served) -> None:
    """20 keys of a run at 5 Hz among 50 runs: at most 64 bytes a new point and 2 KiB an update."""
    keys = tuple(f"train/metric_with_a_long_name_{number}" for number in range(20))
    runs = ["run", *(f"run-{number}-20261130-101112-abcdef" for number in range(49))]
    served.store.writer.write([parcel(ramp(1_000_000, 2, names=keys), run=run) for run in runs])
    page = served.page(runs, list(keys), follows_runs=True)
    page.load()
    assert len(page.points) == 1000
    with page.following():
        page.wait(lambda: page.of("hello"))
        for number in range(5):
            served.store.writer.write([parcel(ramp(2_000_000 + number, 1, names=keys))])
            page.wait(lambda number=number: page.points[0][-1][0] == 2_000_000 + number)
    assert max(page.sizes) <= 2048
    assert sum(page.sizes) <= 64 * 5 * len(keys)

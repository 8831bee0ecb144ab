"""A store whose writers' clocks, or whose own, are set: no data go, and order is what was counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logclient.shm.record import Shape
from logclient_backend.collector.store.embedded.store import EmbeddedStore
from logclient_backend.collector.store.interface import Description, RunDeleted
from logclient_backend.wal.encoded import StreamColumns
from tests.fakes import SetClock

from .samples import NOW_NS, columns, parcel, ramp

S, HOUR = 10**9, 3600 * 10**9
FIRST, SECOND = b"a" * 16, b"b" * 16
LOSS = Shape(("loss",), "d")


class Stored:
    """A store, compacted after each write where `is_tidy`."""

    def __init__(self, folder: Path, *, is_tidy: bool) -> None:
        self.store = EmbeddedStore(str(folder), synchronous="NORMAL")
        self.reader = self.store.reader
        self._is_tidy = is_tidy

    def write(self, *batches: StreamColumns, attempts: dict[str, int] | None = None) -> None:
        told = None if attempts is None else Description(attempts=attempts)
        documents = None if attempts is None else b"{}"
        self.store.writer.write([parcel(*batches, documents=documents, description=told)])
        while self._is_tidy and self.store.compact(deadline_s=60, now=True):
            pass

    def last(self) -> object:
        (key,) = self.reader.keys("run").keys
        found = self.reader.last_values(["run"], ["loss"])["run", "loss"]
        assert key.last == found
        return found.value


@pytest.fixture(params=["as it came", "after upkeep"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stored]:
    made = Stored(tmp_path / "store", is_tidy=request.param == "after upkeep")
    yield made
    made.store.close()


def losses(
    first: int,
    values: list[float],
    *,
    at_s: int,
    step: int | None = None,
    process: bytes = FIRST,
    stream: bytes = b"",
    order: int = 0,
) -> StreamColumns:
    """A second apart, from that second on, by the clock of the process."""
    seqs = range(first, first + len(values))
    made = columns(
        LOSS,
        seqs,
        [[value] for value in values],
        steps=None if step is None else [step for _ in seqs],
        times=[NOW_NS + S * (at_s + number) for number in range(len(values))],
        orders=[seq + order for seq in seqs],
    )
    return StreamColumns(stream or process, process, 0, made)


def test_the_newest_value_is_the_last_one_that_was_logged(stored: Stored) -> None:
    """The clock of the process is set back by an hour; what comes late of before changes nothing."""
    stored.write(losses(1, [1.0, 2.0], at_s=0), losses(5, [5.0], at_s=4))
    stored.write(losses(6, [6.0, 7.0], at_s=-3600))
    assert stored.last() == 7.0
    stored.write(losses(3, [3.0, 4.0], at_s=2))
    assert stored.last() == 7.0


def test_of_several_lanes_of_a_process_the_number_in_the_process_counts(stored: Stored) -> None:
    """Two threads take turns, and the clock is set back between them."""
    stored.write(losses(1, [1.0], at_s=0))
    stored.write(losses(1, [2.0], at_s=-3600, stream=SECOND, order=10))
    assert stored.last() == 2.0


@pytest.mark.parametrize("is_known_before", [True, False])
def test_a_later_attempt_counts_on_a_host_whose_clock_is_behind(
    stored: Stored, is_known_before: bool
) -> None:
    """Whether it is known to be the later one before its records come, or only afterwards."""
    attempts = {FIRST.hex(): 1, SECOND.hex(): 2}
    stored.write(losses(1, [1.0, 2.0], at_s=0), attempts={FIRST.hex(): 1})
    if is_known_before:
        stored.write(attempts=attempts)
    stored.write(losses(1, [8.0, 9.0], at_s=-600, process=SECOND))
    if not is_known_before:
        stored.write(attempts=attempts)
    assert stored.last() == 9.0
    assert stored.reader.buckets("run", "loss", most=1, all_attempts=True).last.tolist() == [9.0]


def test_of_a_step_that_comes_again_the_later_one_is_the_last_of_its_bucket(stored: Stored) -> None:
    """In another batch, and within one."""
    stored.write(losses(1, [1.0, 2.0, 3.0], step=4, at_s=0))
    stored.write(losses(4, [4.0, 5.0], step=4, at_s=-3600))
    for most in (1, 100):
        assert stored.reader.buckets("run", "loss", most=most).last.tolist() == [5.0]
    times = [NOW_NS + S * each for each in (9, 8, 7)]
    falling = columns(LOSS, [6, 7, 8], [[6.0], [7.0], [8.0]], steps=[4, 4, 4], times=times)
    stored.write(StreamColumns(FIRST, FIRST, 0, falling))
    assert stored.reader.buckets("run", "loss", most=1).last.tolist() == [8.0]


def test_the_bin_keeps_a_run_for_as_long_as_the_store_was_open(tmp_path: Path) -> None:
    """A clock that jumps by years deletes nothing, and one that was ahead keeps nothing for ever."""
    clock, week = SetClock(NOW_NS), 7 * 24 * HOUR
    store = EmbeddedStore(str(tmp_path), synchronous="NORMAL", clock=clock)
    store.writer.write([parcel(ramp(1, 3), run=run) for run in ("one", "two")])
    assert store.writer.delete("one", clock.wall_ns())
    clock.set_by_s(20 * 365 * 86400)
    assert store.writer.purge(week) == 0
    assert store.writer.delete("two", clock.wall_ns())
    clock.set_by_s(-21 * 365 * 86400)
    clock.pass_s(4 * 86400)
    assert store.writer.purge(week) == 0
    store.close()
    clock.pass_s(300 * 86400)
    store = EmbeddedStore(str(tmp_path), synchronous="NORMAL", clock=clock)
    try:
        assert store.writer.purge(week) == 0, "nobody could have brought it back meanwhile"
        assert store.writer.undelete("one")
        clock.pass_s(3 * 86400 + 1)
        assert store.writer.purge(week) == 1
        with pytest.raises(RunDeleted):
            store.writer.write([parcel(ramp(4, 3), run="two")])
        assert store.reader.points("one", "loss").step.tolist() == [1, 2, 3]
    finally:
        store.close()

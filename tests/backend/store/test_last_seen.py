"""When runs were heard last, while somebody sets the clock of the collector's machine forth and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logclient_backend.collector.catalog import state_now
from logclient_backend.collector.store.embedded.last_seen import _KEPT, _MOST, SeenRuns
from logclient_backend.collector.store.embedded.store import EmbeddedStore
from logclient_backend.collector.store.interface import Description, Parcel, RunQuery
from tests.backend.runs.build import NOW_NS
from tests.fakes import SetClock

HOUR_S = 3600.0


class Collector:
    """A store that can be closed and opened again, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.clock = SetClock(NOW_NS)
        self._folder = folder
        self.store = self._opened()

    def _opened(self) -> EmbeddedStore:
        return EmbeddedStore(str(self._folder), synchronous="NORMAL", clock=self.clock)

    def restart(self) -> None:
        self.store.close()
        self.store = self._opened()

    def parcel(self, run: str, received_ns: int | None = None) -> None:
        """Something comes from it, by the clock as it is set, or an upload tells when it was alive."""
        when = self.clock.wall_ns() if received_ns is None else received_ns
        told = Description(state="running")
        self.store.writer.write([Parcel(run, "node", when, documents=b"{}", description=told)])

    def alive(self, run: str) -> None:
        """It says that it is there, and has nothing to send."""
        self.store.writer.seen({run: self.clock.wall_ns()})

    def state(self, run: str) -> str:
        found = self.store.reader.run(run)
        assert found is not None
        (listed,) = [each for each in self.store.reader.runs(ALL).runs if each.id == run]
        assert listed.last_seen_ns == found.last_seen_ns
        return state_now(found, self.clock.wall_ns()).name

    def pass_with(self, seconds: float, run: str) -> None:
        """Time passes, and the run says every few seconds that it is there."""
        for _ in range(int(seconds / 5)):
            self.clock.pass_s(5)
            self.alive(run)


ALL = RunQuery()


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    made = Collector(tmp_path / "store")
    yield made
    made.store.close()


@pytest.mark.parametrize("set_by_s", [-10 * HOUR_S, -30.0, 30.0, 10 * HOUR_S])
def test_state_is_that_of_silence_however_the_clock_is_set(collector: Collector, set_by_s: float) -> None:
    """One run dies, another goes on; the clock is set before it is late, then set right again."""
    collector.parcel("dead")
    collector.parcel("alive")
    collector.clock.pass_s(5)
    collector.clock.set_by_s(set_by_s)
    assert (collector.state("dead"), collector.state("alive")) == ("running", "running")
    collector.pass_with(20, "alive")
    assert (collector.state("dead"), collector.state("alive")) == ("late", "running")
    collector.pass_with(60, "alive")
    assert (collector.state("dead"), collector.state("alive")) == ("lost", "running")
    collector.clock.set_by_s(-set_by_s)
    assert (collector.state("dead"), collector.state("alive")) == ("lost", "running")
    found = collector.store.reader.run("dead")
    assert found is not None and abs(found.last_seen_ns - NOW_NS) < 1e9, "as if nothing had been"
    collector.parcel("dead")
    assert collector.state("dead") == "running"


def test_time_in_the_future_that_was_stored_makes_no_dead_run_alive(collector: Collector) -> None:
    """The clock was ahead when the run was heard, and is right when the collector is started again."""
    collector.clock.set_by_s(HOUR_S)
    collector.parcel("dead")
    collector.clock.set_by_s(-HOUR_S)
    collector.restart()
    assert collector.state("dead") == "running", (
        "nobody knows how long it has been silent: it is asked for a minute"
    )
    collector.clock.pass_s(30)
    assert collector.state("dead") == "late"
    collector.clock.pass_s(60)
    assert collector.state("dead") == "lost"
    collector.parcel("dead")
    collector.restart()
    collector.clock.pass_s(61)
    assert collector.state("dead") == "lost"


def test_what_is_stored_heals_with_the_next_contact(collector: Collector) -> None:
    """Lists are sorted by what is stored."""
    collector.clock.set_by_s(HOUR_S)
    collector.parcel("it")
    collector.clock.set_by_s(-HOUR_S)
    collector.parcel("it")
    collector.restart()
    found = collector.store.reader.run("it")
    assert found is not None and found.last_seen_ns == NOW_NS


def test_upload_of_an_old_run_is_as_old_as_it_says(collector: Collector) -> None:
    """Also where the run was heard itself since: the later of both counts."""
    collector.parcel("it", NOW_NS - int(100e9))
    assert collector.state("it") == "lost"
    collector.clock.pass_s(1)
    collector.parcel("it")
    assert collector.state("it") == "running"
    collector.parcel("it", NOW_NS - int(50e9))
    assert collector.state("it") == "running"


def test_memory_is_bounded_and_what_is_let_go_of_was_silent_for_longest() -> None:
    """Of those that are gone it is known that they were not heard since."""
    clock = SetClock(NOW_NS)
    seen = SeenRuns(clock)
    for number in range(_MOST + 1):
        seen.note_seen({str(number): clock.wall_ns()})
        clock.pass_s(0.01)
    assert len(seen._runs) == _KEPT
    last_gone = _MOST - _KEPT
    ahead = clock.wall_ns() + int(HOUR_S * 1e9)
    real = NOW_NS + int(last_gone * 1e7)
    assert abs(seen.last_ns(str(last_gone), ahead) - real) < 1e6
    assert seen.last_ns(str(last_gone), real) == real
    assert seen.last_ns(str(last_gone + 1), ahead) == real + int(1e7)

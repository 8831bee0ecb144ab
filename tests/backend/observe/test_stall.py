"""The state machine of an observer, fed with looks and samples; rhythms; gaps in an observation."""

from __future__ import annotations

import pytest

from logclient_backend.observe.gaps import Gaps
from logclient_backend.observe.motion import Standstill
from logclient_backend.observe.rhythm import GAPS, Limits, Rhythm
from logclient_backend.observe.stall import (
    MAX_SPACING,
    MAX_STALLS,
    OK,
    POLLING_SPACINGS,
    QUIET,
    STALLED,
    Found,
    Stall,
)

SPACING_S = 5.0
STILL = Found(Standstill.YES, "user code", "rank 3 waits", 3, 40)
MOVES = Found(Standstill.NO, "quiet", "rank 3 moves", 3, 40)
HELD = Found(Standstill.HELD, "user code", "rank 3 is in pdb", 3, 40)
POLLS = Found(Standstill.PERHAPS, "user code", "rank 3 wakes up again and again", 3, 40)


class Observer:
    """A machine with a clock: one look a second, and samples when they are due."""

    def __init__(self) -> None:
        self.now = 100.0
        self.stall = Stall(SPACING_S, self.now)
        self.kinds = [OK]
        self.samples: list[float] = []
        self._is_first = True

    def run(self, seconds: float, late: str, found: Found = STILL) -> str:
        """Look for so long; the state after it."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.stall.look(self.now, late)
            if self.stall.standing.kind == OK:
                self._is_first = True
            if self.stall.sample_due <= self.now:
                self.samples.append(self.now)
                self.stall.sample(self.now, None if self._is_first else found)
                self._is_first = False
            if self.kinds[-1] != self.stall.standing.kind:
                self.kinds.append(self.stall.standing.kind)
        return self.stall.standing.kind

    def gap(self) -> None:
        """The machine was suspended."""
        self._is_first = True
        self.stall.restart(self.now)


def test_three_spaced_samples_without_motion_make_a_stall_and_a_record_ends_it() -> None:
    """Two do not; the episode has its begin and its end, and what was found."""
    observer = Observer()
    assert observer.run(60, "") == OK and not observer.samples
    assert observer.run(10, "rank 3 is late") == QUIET
    assert len(observer.samples) == 2
    assert observer.run(2, "rank 3 is late") == STALLED
    assert [late - early for early, late in zip(observer.samples, observer.samples[1:], strict=False)] == [
        5,
        5,
    ]
    standing = observer.stall.standing
    assert (standing.verdict, standing.text, standing.rank, standing.step) == (
        "user code",
        "rank 3 waits",
        3,
        40,
    )
    (stall,) = observer.stall.stalls
    assert stall.end is None and stall.begin == standing.since
    assert observer.run(5, "") == OK
    (stall,) = observer.stall.stalls
    assert stall.end is not None and stall.end > stall.begin
    assert observer.kinds == [OK, QUIET, STALLED, OK]


def test_motion_makes_a_stalled_run_quiet_and_standing_still_again_is_another_stall() -> None:
    """Without a record, too: a sample sees it."""
    observer = Observer()
    observer.run(15, "late")
    assert observer.run(70, "late", MOVES) == QUIET
    assert observer.run(120, "late", STILL) == STALLED
    assert len(observer.stall.stalls) == 2
    assert observer.kinds == [OK, QUIET, STALLED, QUIET, STALLED]


@pytest.mark.parametrize("found", [MOVES, HELD], ids=["it moves", "a person has it"])
def test_late_run_that_moves_or_is_held_stays_quiet_and_costs_ever_less(found: Found) -> None:
    """A quarter of an hour: never stalled, and after a while a sample a minute."""
    observer = Observer()
    assert observer.run(900, "late", found) == QUIET
    assert not observer.stall.stalls and observer.kinds == [OK, QUIET]
    assert observer.samples[-1] - observer.samples[-2] == SPACING_S * MAX_SPACING
    assert len(observer.samples) < 25


def test_one_sample_with_motion_between_two_without_is_no_stall() -> None:
    """They are counted in a row."""
    observer = Observer()
    for _ in range(20):
        assert observer.run(6, "late", STILL) == QUIET
        assert observer.run(6, "late", MOVES) == QUIET
    assert observer.kinds == [OK, QUIET]


def test_rank_that_polls_is_stalled_after_a_longer_time() -> None:
    """A slow download wakes up as often."""
    observer = Observer()
    assert observer.run(POLLING_SPACINGS * SPACING_S - 5, "late", POLLS) == QUIET
    assert observer.run(3 * SPACING_S, "late", POLLS) == STALLED


def test_gap_begins_the_observation_anew() -> None:
    """A quiet run is ok again, and samples before the gap do not count; a stalled one is stalled until it moves."""
    observer = Observer()
    observer.run(8, "late")
    observer.gap()
    assert observer.stall.standing.kind == OK
    assert observer.run(9, "late") == QUIET
    assert observer.run(9, "late") == STALLED
    observer.gap()
    assert observer.run(3, "late") == STALLED and len(observer.stall.stalls) == 1
    assert observer.run(3, "") == OK


def test_next_observer_goes_on_from_a_stall() -> None:
    """It is neither ended nor begun again; what ended while nobody looked ends with the state that is found."""
    before = Observer()
    before.run(15, "late")
    after = Observer()
    after.now = before.now
    after.stall.adopt(before.stall.standing, list(before.stall.stalls))
    assert after.run(30, "late") == STALLED
    assert after.stall.stalls == before.stall.stalls
    assert after.run(1, "") == OK
    assert after.stall.stalls[-1].end is not None


def test_number_of_stalls_that_are_kept_is_bounded() -> None:
    """The newest."""
    observer = Observer()
    for _ in range(MAX_STALLS + 5):
        observer.run(15, "late")
        observer.run(5, "")
    assert len(observer.stall.stalls) == MAX_STALLS
    assert all(stall.end is not None for stall in observer.stall.stalls)


def test_limit_is_learned_from_gaps_that_were_seen() -> None:
    """Five times the longest of the last ones; at least the floor; with fewer than two the process has none."""
    rhythm = Rhythm(Limits(), 0.0)
    assert not rhythm.is_own and rhythm.limit_s == 50.0
    for number, now in enumerate([10.0, 16.0, 22.0], 1):
        assert rhythm.saw(number, now)
    assert rhythm.is_own and rhythm.limit_s == 30.0
    assert not rhythm.is_late(52.0) and rhythm.is_late(52.1)
    for number in range(GAPS + 1):
        rhythm.saw(10 + number, 22.0 + number)
    assert rhythm.limit_s == 10.0
    assert not rhythm.is_late(22.0 + GAPS + 10.0) and rhythm.is_late(22.0 + GAPS + 10.1)


def test_steps_that_are_four_times_slower_are_not_late() -> None:
    """From one step to the next, whatever the step took before."""
    for step_s in (0.5, 2.0, 30.0):
        rhythm, now = Rhythm(Limits(), 0.0), 0.0
        for number in range(1, 50):
            now += step_s
            rhythm.saw(number, now)
        assert not rhythm.is_late(now + 4 * step_s)


def test_gaps_by_a_clock_that_was_set_are_no_longer_than_the_process_lives() -> None:
    """An hour forth, an hour back."""
    rhythm = Rhythm(Limits(), 100.0)
    rhythm.learn([1.0, 3600.0, -3600.0], within_s=4.0)
    assert rhythm.limit_s == 20.0


def test_time_in_which_nothing_could_be_seen_is_a_gap() -> None:
    """The machine was suspended, or a look comes long after its time; a look a bit late is none."""
    gaps = Gaps(0.0)
    gaps.plan(2.0)
    assert not gaps.is_after_one(2.5, 0.0)
    gaps.plan(4.5)
    assert gaps.is_after_one(60.0, 0.0)
    gaps.plan(62.0)
    assert gaps.is_after_one(62.0, 8 * 3600.0)
    gaps.plan(64.0)
    assert not gaps.is_after_one(64.0, 8 * 3600.0)

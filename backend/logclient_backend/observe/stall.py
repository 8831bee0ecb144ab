"""The state machine of an observer: a run is *ok*, *quiet* or *stalled*.

Pure: fed with looks and samples, each with the time of a clock that nobody sets and that stops while the machine is
suspended. A *look* is cheap and says who is late (`rhythm.py`); a *sample* is taken only while somebody is, and says
whether those who are late stand still (`motion.py`).

::

                    somebody is late                 MIN_SAMPLES samples in a row, spaced by
                                                     `spacing_s`, in which all of them stand still
        ok ─────────────────────────────> quiet ─────────────────────────────────────> stalled
         ^                                │  ^                                             │
         └── nobody is late any more ─────┘  └──── a sample shows that one of them moves ──┤
         └──────────────────────────────── records come: nobody is late any more ──────────┘

*Moving* is the name of the way out of stalled: `stalls` then has one episode more that is over.

- Quiet is shown, and nobody is alerted; stalled is kept in `stalls`, the newest MAX_STALLS.
- Where a rank that is to blame polls, the samples have to cover POLLING_SPACINGS spacings: a slow download looks alike.
- The spacing doubles up to MAX_SPACING times as long as the samples show nothing new, so that a run that is at rest, or
  computes for an hour, costs nearly nothing; one sample without motion makes it short again.
- `restart` begins the observation anew: the machine was suspended, or the observer itself did not run. A run that was
  stalled stays so until it moves.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

from .motion import Standstill

OK, QUIET, STALLED = "ok", "quiet", "stalled"
MIN_SAMPLES = 3
POLLING_SPACINGS = 60
MAX_SPACING = 12
MAX_STALLS = 20


@dataclass(frozen=True, slots=True)
class Standing:
    """The state, and what was found: empty while it is ok."""

    kind: str = OK
    verdict: str = ""  # a kind of `verdict.py`; empty: not known yet
    text: str = ""
    since: float = 0.0
    rank: int | None = None  # of the first that is to blame
    step: int | None = None  # its last one


@dataclass(frozen=True, slots=True)
class Found:
    """The findings of one sample."""

    standstill: Standstill
    verdict: str
    text: str
    rank: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class StallEpisode:
    """One time that the run was stalled; `end` None: it is."""

    begin: float
    verdict: str
    text: str
    rank: int | None = None
    step: int | None = None
    end: float | None = None


class Stall:
    """One per observer."""

    def __init__(self, spacing_s: float, now: float) -> None:
        self.standing = Standing(since=now)
        self.stalls: deque[StallEpisode] = deque(maxlen=MAX_STALLS)
        self._spacing_s = spacing_s
        self._wait = 1  # spacings until the next sample
        self._next = math.inf
        self._still = 0  # samples in a row without motion
        self._still_since = 0.0

    def adopt(self, standing: Standing, stalls: list[StallEpisode]) -> None:
        """Go on from what an earlier observer knew."""
        self.stalls.extend(stalls)
        if standing.kind != OK:
            self.standing = standing
            self._sample_soon(standing.since)
        elif self.stalls:
            self._end(standing.since)

    @property
    def sample_due(self) -> float:
        """The time of the next sample; infinite while nobody is late."""
        return self._next

    def look(self, now: float, late: str) -> None:
        """`late`: a sentence about those who are late; empty: nobody is."""
        if not late:
            if self.standing.kind != OK:
                self._end(now)
                self.standing = Standing(since=now)
                self._next = math.inf
        elif self.standing.kind == OK:
            self.standing = Standing(QUIET, text=late, since=now)
            self._sample_soon(now)

    def sample(self, now: float, found: Found | None) -> None:
        """Take what a sample found; None: it was the first one, with which the next will be compared."""
        if self.standing.kind == OK:
            return
        standstill = Standstill.NO if found is None else found.standstill
        if standstill in (Standstill.NO, Standstill.HELD):
            is_new, self._still, self._still_since = self._still > 0 or found is None, 0, now
        else:
            is_new, self._still = self._still < MIN_SAMPLES, self._still + 1
        self._wait = 1 if is_new or self.is_in_doubt else min(MAX_SPACING, 2 * self._wait)
        self._next = now + self._wait * self._spacing_s
        if found is not None:
            self._take(now, found)

    @property
    def is_in_doubt(self) -> bool:
        """Have samples shown no motion, and too few of them to call it stalled?"""
        return self._still > 0 and self.standing.kind != STALLED

    def restart(self, now: float) -> None:
        """Forget what was observed but not concluded."""
        if self.standing.kind == QUIET:
            self.standing = Standing(since=now)
            self._next = math.inf
        elif self.standing.kind == STALLED:
            self._sample_soon(now)

    def close(self, now: float) -> None:
        """There is nobody left to observe."""
        self._end(now)
        self.standing = Standing(since=now)

    # ---- inside -------------------------------------------------------------------------------------------

    def _take(self, now: float, found: Found) -> None:
        before = self.standing
        if found.standstill not in (Standstill.YES, Standstill.PERHAPS):
            is_stalled = False
        elif before.kind == STALLED:
            is_stalled = True  # until it moves
        elif found.standstill is Standstill.PERHAPS:
            is_stalled = now - self._still_since >= POLLING_SPACINGS * self._spacing_s
        else:
            is_stalled = self._still >= MIN_SAMPLES - 1
        kind = STALLED if is_stalled else QUIET
        facts = Standing(kind, found.verdict, found.text, now, found.rank, found.step)
        if kind == before.kind:
            is_news = (found.verdict, found.rank) != (before.verdict, before.rank)
            self.standing = replace(facts, since=before.since) if is_news else before
            return
        self.standing = facts
        if kind == STALLED:
            self.stalls.append(StallEpisode(now, found.verdict, found.text, found.rank, found.step))
        else:
            self._end(now)

    def _end(self, now: float) -> None:
        if self.stalls and self.stalls[-1].end is None:
            self.stalls[-1] = replace(self.stalls[-1], end=now)

    def _sample_soon(self, now: float) -> None:
        self._next, self._wait, self._still, self._still_since = now, 1, 0, now

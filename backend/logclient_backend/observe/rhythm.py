"""The rhythm of records, as an observer sees it by its own clock: when is a process, or a run, late?

Pure. Records carry the wall clock, which may be set at any time; so ages and gaps are counted from when the observer
itself saw the number of records grow, by the monotonic clock. A gap is thus wrong by a pause between two looks at most.

The limit from which on silence is long is `factor` times the longest of the last gaps, and at least `floor_s`. Before
the first gap is known, it is taken as `floor_s`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

GAPS = 200  # of looks that found new records; more would remember a slow start for hours
_OWN = 2  # gaps from which on a process has a rhythm of its own


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings."""

    floor_s: float = 10.0
    factor: float = 5.0


class Rhythm:
    """The rhythm of one process, or of all processes of a run together."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.count = 0  # of records, as they were seen last
        self.since = now  # when that count was seen first
        self._limits = limits
        self._gaps: deque[float] = deque(maxlen=GAPS)

    def saw(self, count: int, now: float) -> bool:
        """Note how many records there are; True if there are more."""
        if count == self.count:
            return False
        if self.count:
            self._gaps.append(now - self.since)
        self.count, self.since = count, now
        return True

    def learn(self, gaps: Iterable[float], *, within_s: float) -> None:
        """Take over gaps from before the first look, by clocks that may have been set; none was longer than that."""
        self._gaps.extend(min(max(0.0, gap), within_s) for gap in gaps)

    def restart(self, now: float) -> None:
        """Begin to wait anew: time has passed in which no record could come, or none was to be expected."""
        self.since = now

    @property
    def is_own(self) -> bool:
        """Are there gaps enough to know a rhythm?"""
        return len(self._gaps) >= _OWN

    def age_s(self, now: float) -> float:
        """Seconds since the newest record was seen."""
        return now - self.since

    @property
    def limit_s(self) -> float:
        """Seconds of silence from which on it is late."""
        floor_s, factor = self._limits.floor_s, self._limits.factor
        return max(floor_s, factor * max(self._gaps, default=floor_s))

    def is_late(self, now: float) -> bool:
        """Has no record come for longer than the limit?"""
        age_s = now - self.since
        return age_s > self._limits.floor_s and age_s > self.limit_s

"""Gaps in an observation: the machine was suspended, or the observer itself did not run.

Pure. What was to happen in such a time could not happen or not be seen, so nobody is late for it.
"""

from __future__ import annotations

import time

_LATE_S = 3.0  # a look so much later than planned: nobody ran, or this process did not
_SUSPENDED_S = 0.5  # two clocks that are read one after the other differ by less


class Gaps:
    """Asked once with each look."""

    def __init__(self, suspended_s: float) -> None:
        self._suspended_s = suspended_s
        self._planned: float | None = None

    def plan(self, at: float) -> None:
        """Note when the next look is due at the latest, by the monotonic clock."""
        self._planned = at

    def is_after_one(self, now: float, suspended_s: float) -> bool:
        """Was there a gap before this look? `suspended_s`: as `suspended_s()` counts it."""
        before, self._suspended_s = self._suspended_s, suspended_s
        is_late = self._planned is not None and now - self._planned > _LATE_S
        return is_late or suspended_s - before > _SUSPENDED_S


def suspended_s() -> float:
    """Return for how long the machine was suspended since its boot, which one of two clocks counts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)

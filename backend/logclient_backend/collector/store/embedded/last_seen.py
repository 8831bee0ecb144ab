"""Time of the last arrival from each run, also after the wall's clock was set; any thread.

A time that is stored may lie in the future: the clock was ahead when it was written. A run that was seen since this
store was opened is known by the steady clock; of all others it is known that nothing came since then.

Kept are the runs that were seen last; of those that were let go of it is known that they were not seen later.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from heapq import nlargest
from typing import NamedTuple

from ..clock import Clock

_MOST = 20_000
_KEPT = 10_000
_SET_NS = 1_000_000_000  # by less a clock is not set but corrected, and what was stored is returned as it is


class _Seen(NamedTuple):
    steady_ns: int
    wall_ns: int  # as it was read then


def _is_later(steady_ns: int, wall_ns: int, known: _Seen) -> bool:
    """Is this moment later, where the two clocks are not read at once and small differences mean nothing?"""
    if abs(steady_ns - known.steady_ns) < _SET_NS:
        return wall_ns > known.wall_ns
    return steady_ns > known.steady_ns


class SeenRuns:
    """One per open store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[str, _Seen] = {}
        self._since = self._clock.steady_ns()  # a run that is not in `_runs` was not seen later

    def note_seen(self, runs: Mapping[str, int]) -> dict[str, int]:
        """Note runs and the wall's times at which they were seen; return those of which that is news."""
        wall, steady = self._clock.wall_ns(), self._clock.steady_ns()
        news = {}
        with self._lock:
            for run, seen_ns in runs.items():
                at = steady - max(0, wall - seen_ns)
                known = self._runs.get(run)
                if known is None or _is_later(at, seen_ns, known):
                    self._runs[run] = _Seen(at, seen_ns)
                    news[run] = seen_ns
            if len(self._runs) > _MOST:
                self._let_go()
        return news

    def _let_go(self) -> None:
        first, *kept = nlargest(_KEPT + 1, self._runs.items(), key=lambda pair: pair[1].steady_ns)[::-1]
        self._since = max(self._since, first[1].steady_ns)  # before they go: readers take no lock
        self._runs = dict(kept)

    def last_ns(self, run: str, stored_ns: int) -> int:
        """Return the time of the last arrival by the wall's clock as it is set now; `stored_ns`: that of the store."""
        wall, steady = self._clock.wall_ns(), self._clock.steady_ns()
        since_ns = wall - (steady - self._since)
        known_ns = since_ns if stored_ns > since_ns + _SET_NS else stored_ns
        seen = self._runs.get(run)
        if seen is None:
            return known_ns
        real_ns = wall - (steady - seen.steady_ns)
        if abs(real_ns - seen.wall_ns) < _SET_NS:
            real_ns = seen.wall_ns
        return real_ns if seen.steady_ns > self._since else max(known_ns, real_ns)

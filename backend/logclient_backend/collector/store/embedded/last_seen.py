"""Time of the last arrival from each run, also after the wall's clock was set; any thread.

A time that is stored may lie in the future: the clock was ahead when it was written. A run that was seen since this
store was opened is known by the steady clock; of all others it is known that nothing came since then.

Kept are the runs that were seen last; of those that were let go of it is known that they were not seen later.

A process that reads the store has a `SeenRuns` of its own, which is fed by that of the writing one (`SeenFeed`): both
have the same steady clock.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from heapq import nlargest
from typing import Any, NamedTuple

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


class SeenFeed:
    """News for one other process; for one thread."""

    def __init__(self, seen: SeenRuns) -> None:
        self.runs: dict[str, None] = {}  # that were seen since it was taken from last
        self._seen = seen

    def take(self) -> dict[str, Any]:
        """Return what is new."""
        return self._seen.take_feed(self)

    def end(self) -> None:
        """No more is kept for it."""
        self._seen.end_feed(self)


class SeenRuns:
    """One per open store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[str, _Seen] = {}
        self._since = self._clock.steady_ns()  # a run that is not in `_runs` was not seen later
        self._feeds: list[SeenFeed] = []

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
            for feed in self._feeds:
                feed.runs.update(dict.fromkeys(news))
            if len(self._runs) > _MOST:
                self._let_go()
        return news

    def _let_go(self) -> None:
        first, *kept = nlargest(_KEPT + 1, self._runs.items(), key=lambda pair: pair[1].steady_ns)[::-1]
        self._since = max(self._since, first[1].steady_ns)  # before they go: readers take no lock
        self._runs = dict(kept)

    def feed(self) -> SeenFeed:
        """Return what another process is fed from; it begins with all that is known."""
        with self._lock:
            made = SeenFeed(self)
            made.runs.update(dict.fromkeys(self._runs))
            self._feeds.append(made)
        return made

    def take_feed(self, feed: SeenFeed) -> dict[str, Any]:
        """Return what is new in a feed, for `take_news`, as JSON has it."""
        with self._lock:
            runs, feed.runs = feed.runs, {}
            return {"since": self._since, "runs": {run: self._runs[run] for run in runs if run in self._runs}}

    def end_feed(self, feed: SeenFeed) -> None:
        with self._lock:
            self._feeds.remove(feed)

    def take_news(self, news: Mapping[str, Any]) -> None:
        """Take over what the writing process knows."""
        with self._lock:
            self._runs.update((run, _Seen(*seen)) for run, seen in news["runs"].items())
            self._since = int(news["since"])
            if len(self._runs) > _MOST:
                self._let_go()

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

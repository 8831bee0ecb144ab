"""Memory that writer, upkeep and readers of one open store share; any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from ..clock import Clock
from .buckets import Summaries, TailBits
from .key_tables import ReaderTables
from .last_seen import SeenRuns

SAVE_SEEN_S = 10.0


class Tail:
    """Records that wait to be compacted, and since when."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.points = 0
        self.rows = 0
        self.since = 0.0  # monotonic; of the oldest, about

    def add(self, points: int, rows: int) -> None:
        if rows:
            with self._lock:
                if self.rows <= 0:
                    self.since = time.monotonic()
                self.points += points
                self.rows += rows

    def set(self, points: int, rows: int, since: float) -> None:
        """Counted anew."""
        with self._lock:
            self.points, self.rows, self.since = points, rows, since

    def take(self, points: int, rows: int) -> None:
        with self._lock:
            self.points -= points
            self.rows -= rows

    def age_s(self) -> float:
        return time.monotonic() - self.since if self.rows > 0 else 0.0


class Shared:
    """One per open store."""

    def __init__(self, clock: Clock | None = None, open_ns: int = 0) -> None:
        """`open_ns`: for how long the store was open before, all in all."""
        self.tail = Tail()
        self.tables = ReaderTables()
        self.summaries = Summaries()
        self.tail_bits = TailBits()
        self._lock = threading.Lock()
        self.clock = clock or Clock()
        self.seen = SeenRuns(self.clock)
        self._opened_ns = self.clock.steady_ns() - open_ns
        self._unsaved: dict[str, int] = {}
        self._saved_at = time.monotonic()

    def open_ns(self) -> int:
        """For how long the store has been open, all in all: a clock that nobody sets."""
        return self.clock.steady_ns() - self._opened_ns

    def note_seen(self, runs: Mapping[str, int]) -> None:
        """At these times; stored with what is written next."""
        news = self.seen.note_seen(runs)
        with self._lock:
            self._unsaved.update(news)

    def put_back(self, seen: Mapping[str, int]) -> None:
        """Put back what was taken and could not be stored."""
        with self._lock:
            self._unsaved = {**seen, **self._unsaved}

    def take_seen(self, *, now: bool = False) -> Mapping[str, int]:
        """Return what is to be stored, every few seconds."""
        if not self._unsaved or not (now or time.monotonic() - self._saved_at > SAVE_SEEN_S):
            return {}
        with self._lock:
            taken, self._unsaved = self._unsaved, {}
            self._saved_at = time.monotonic()
        return taken

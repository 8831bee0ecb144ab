"""The worker's pause: until the fullest lane could be a quarter full, and not longer than somebody waits.

Runs in the worker's main thread; reads shared memory only. `log` wakes nobody, so the pause follows what has come:

- at most the time in which the smallest lane in use fills by a quarter at the fastest rate this run has shown;
- very short for `_FIRST_S` after a newcomer, as long as no rate is known: its first records may come as fast as any;
- short for `BUSY_S` after a record or a newcomer, and while a lane file of the least size is in use;
- at most `CONFINED_S` where shared memory ends with the trainer, so that little is outside the run folder then;
- else `REST_S`, or `REST_SHARE` of the stall time where that is less: a worker at rest must not look stuck.
"""

from __future__ import annotations

from collections.abc import Iterable

from logclient.shm import layout
from logclient.shm.shm_dir import LANES_FLOOR

from ..host.pauses import REST_S, REST_SHARE
from ..settings import Settings
from .producer import Producer

BUSY_S = 30.0
CONFINED_S = 0.25
_QUARTER = 0.25
_FIRST_S = 1.0
_FIRST_PAUSE_S = 0.02  # a loop of 1.5 us a record fills a quarter of a lane of 3 MiB in that time
_MIN_WINDOW_S = 0.01  # a rate is not measured over less


class WorkerPause:
    """The pause of one worker, computed from what its looks found."""

    def __init__(self, settings: Settings, now: float) -> None:
        self._short_s = 2 * settings.poll_s
        self._rest_s = min(REST_S, REST_SHARE * settings.stall_s)
        if settings.is_confined:
            self._rest_s = min(self._rest_s, CONFINED_S)
        self._looked_at = now
        self._busy_at = self._joined_at = now
        self._fastest = 0.0  # bytes a second in one lane
        self._least_bytes = 0  # of the smallest lane in use; 0: none is
        self._has_small = False
        self.is_filling = False  # a lane is a quarter full
        self.is_asked = False  # somebody flushes, wrote documents, was refused or finished
        self.has_records = False  # a lane holds what is not staged

    def look(self, producers: Iterable[Producer], now: float) -> None:
        """Take in how full the lanes are."""
        window_s = max(_MIN_WINDOW_S, now - self._looked_at)
        self._looked_at = now
        self.is_filling = self.has_records = self.is_asked = self._has_small = False
        least = 0
        for producer in producers:
            if producer.has_moved():
                self._measure(producer, window_s, now)
            self.is_asked = self.is_asked or producer.is_asking
            if producer.fill:
                self.has_records = True
                self.is_filling = self.is_filling or producer.fill >= _QUARTER
            if producer.least_used:
                least = min(least or producer.least_used, producer.least_used)
                self._has_small = self._has_small or len(producer.mem) <= LANES_FLOOR
        self._least_bytes = least

    def _measure(self, producer: Producer, window_s: float, now: float) -> None:
        fill = 0.0
        for lane in producer.lanes:
            reader = lane.reader
            tail = reader.words[layout.TAIL]
            if tail != lane.tail_seen:
                self._fastest = max(self._fastest, (tail - lane.tail_seen) / window_s)
                self._busy_at = now
                lane.tail_seen = tail
                producer.least_used = min(producer.least_used or reader.size, reader.size)
            if tail > reader.position:
                fill = max(fill, (tail - reader.position) / reader.size)
        producer.fill = fill

    def drained(self, producer: Producer) -> None:
        """Take in what is left in the lanes of a producer that were just drained."""
        producer.fill = max(max(0, lane.reader.pending) / lane.reader.size for lane in producer.lanes)

    def note_newcomer(self, now: float) -> None:
        """A process joined: its first records are likely to follow."""
        self._busy_at = self._joined_at = now

    def is_at_rest(self, now: float) -> bool:
        """Has no record come for `BUSY_S`?"""
        return now - self._busy_at >= BUSY_S

    def pause_s(self, now: float, *, may_be_long: bool) -> float:
        """The longest pause that loses nothing."""
        pause_s = self._rest_s
        if not may_be_long or self._has_small or not self.is_at_rest(now):
            pause_s = min(pause_s, self._short_s)
        if self._fastest and self._least_bytes:
            pause_s = min(pause_s, _QUARTER * self._least_bytes / self._fastest)
        elif now - self._joined_at < _FIRST_S:
            pause_s = min(pause_s, _FIRST_PAUSE_S)
        return pause_s

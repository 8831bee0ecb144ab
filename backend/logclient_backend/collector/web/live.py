"""Streams of all pages that follow runs: one thread looks at the store, and each `Follower` gets its events.

`Live` belongs to one application. Its thread runs while there are followers: it asks SQLite every `LOOK_S` whether
anything was committed, and reads then once for all of them. A run that is over costs nothing.

Invariants:

- each new point of a series is in one event, or its series is in an event `reload`;
- what waits for a slow reader is bounded: one that has more than `MAX_WAITING` waiting is ended;
- the id of an event stands for all that was seen: a stream that begins with it misses nothing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from ..store.interface import ReadableStore, StoreError
from ..store.news import Position, Question
from . import events
from .events import Series, joined
from .live_runs import RunChanges

LOOK_S = 0.1
RUNS_S = 1.0  # between looks at the list of runs
LINGER_S = 30.0  # without followers: one that comes again finds what it missed of the list of runs
MAX_STREAMS = 64  # of one process
MAX_WAITING = 1 << 20  # bytes of events for one reader
SLOW, STOPPING = "slow", "stopping"  # why a stream ends

_AFTER_ERROR_S = 1.0
_LOG = logging.getLogger(__name__)


class TooMany(Exception):
    """There are as many streams as there may be."""


class Follower:
    """One stream: what it follows, how far it is, and what waits to be sent. Made in the event loop of its answer."""

    def __init__(
        self, after: Position | None, series: Series, *, wants_runs: bool, has_missed: bool = False
    ) -> None:
        """`after`: None is from now on. `has_missed`: nothing is known of what was before: all is loaded anew."""
        self.position = after
        self.series = series
        self.wants_runs = wants_runs
        self.has_missed = has_missed
        self.end = ""  # why it ends; empty: it goes on
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._bytes = 0

    def put(self, made: Sequence[bytes], position: Position) -> None:
        """Queue events up to that position; any thread."""
        with self._lock:
            self.position = position
            if not made or self.end:
                return
            self._waiting += made
            self._bytes += sum(map(len, made))
            if self._bytes > MAX_WAITING:
                self.end = SLOW
                self._waiting.clear()
        self._wake()

    def stop(self, why: str) -> None:
        """End it; any thread."""
        with self._lock:
            self.end = self.end or why
        self._wake()

    async def take(self, timeout_s: float) -> tuple[list[bytes], Position | None]:
        """Return what waits, perhaps nothing, and how far it reaches."""
        try:
            await asyncio.wait_for(self._ready.wait(), timeout_s)
        except TimeoutError:
            pass
        self._ready.clear()
        with self._lock:
            taken, self._waiting = self._waiting, []
            self._bytes = 0
            return taken, self.position

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:
            pass  # the loop has ended, and its streams with it


class Live:
    """All streams of an application."""

    def __init__(self, store: ReadableStore, runs: RunChanges) -> None:
        self._store = store
        self._runs = runs
        self._runs_seen = 0  # row up to which each follower of the list of runs has what changed
        self._changed = threading.Condition()
        self._followers: list[Follower] = []
        self._left_at = 0.0  # when the last follower left
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def add(self, follower: Follower) -> None:
        """From now on it gets events, `hello` first. `TooMany` where there is no room."""
        with self._changed:
            if self._is_stopping or len(self._followers) >= MAX_STREAMS:
                raise TooMany
            self._followers.append(follower)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="live", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def remove(self, follower: Follower) -> None:
        """It gets no more events."""
        with self._changed:
            if follower in self._followers:
                self._followers.remove(follower)
                self._left_at = time.monotonic()

    def stop(self) -> None:
        """End all streams; no more are taken."""
        with self._changed:
            self._is_stopping = True
            for each in self._followers:
                each.stop(STOPPING)
            self._changed.notify_all()

    def cursor(self, follower: Follower, position: Position) -> str:
        """Return the id of an event: a position, or an earlier one as far as the list of runs is behind.

        That is looked at less often; points that come twice then are known by their `at`.
        """
        if follower.wants_runs and self._runs_seen < position.row:
            position = replace(position, row=self._runs_seen)
        return position.cursor(self._store.id)

    # ---- the thread -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        self._runs.reset()
        while not self._is_over():
            try:
                self._follow()
            except StoreError as error:
                _LOG.warning("streams wait for the store: %s", error)
            except Exception:  # noqa: BLE001  # the next look may work
                _LOG.exception("a fault while looking for news")
            with self._changed:
                self._changed.wait(_AFTER_ERROR_S)

    def _is_over(self) -> bool:
        with self._changed:
            lingers = self._followers or time.monotonic() - self._left_at < LINGER_S
            if lingers and not self._is_stopping:
                return False
            self._thread = None
            return True

    def _follow(self) -> None:
        """Look until nobody follows any more."""
        watch = self._store.live.watch()
        known: list[Follower] = []  # those that have had their `hello`
        looked_at = 0.0  # at the list of runs
        try:
            while True:
                with self._changed:
                    if self._followers == known and not self._is_stopping:
                        self._changed.wait(LOOK_S)
                    followers = list(self._followers)
                    is_idle = not followers and time.monotonic() - self._left_at >= LINGER_S
                if is_idle or self._is_stopping:
                    return
                fresh = [each for each in followers if each not in known]
                if watch.has_changed() or fresh:
                    self._runs.has_changed = True
                    self._look(followers, fresh)
                is_due = time.monotonic() - looked_at > RUNS_S
                if is_due and any(each.wants_runs for each in followers):
                    looked_at = time.monotonic()
                    self._look_at_runs(followers)
                known = followers
        finally:
            watch.close()

    def _look(self, followers: Sequence[Follower], fresh: Sequence[Follower]) -> None:
        """Give each follower what is new since its position: followers of one position share one question."""
        if any(each.wants_runs for each in fresh):
            self._look_at_runs([each for each in followers if each not in fresh])
        groups: dict[Position | None, list[Follower]] = {}
        for each in followers:
            groups.setdefault(each.position, []).append(each)
        questions = [
            Question(after, joined([each.series for each in group])) for after, group in groups.items()
        ]
        answers = self._store.live.news(questions)
        for group, news in zip(groups.values(), answers, strict=True):
            for each in group:
                made = self._greeting(each, news.position) if each in fresh else []
                made += events.of_news(each.series, news)
                each.put(events.packed(made, self.cursor(each, news.position)), news.position)

    def _greeting(self, follower: Follower, position: Position) -> list[events.Event]:
        """Return `hello`, and what a stream that begins again has missed besides points."""
        began = follower.position
        made = [events.hello(follower.series, (began or position).row)]
        changed = None
        if began is not None and follower.wants_runs:
            changed = self._runs.since(began.row)
            made += events.of_runs(position.row, *changed) if changed and any(changed) else []
        misses_runs = follower.wants_runs and changed is None and (began is not None or follower.has_missed)
        if follower.has_missed or misses_runs:
            series, runs = follower.series.all, follower.series.run_numbers
            if not follower.has_missed:
                series, runs = [], []
            made.append(events.reload(position.row, series, runs=misses_runs, keys=runs))
            follower.has_missed = False
        return made

    def _look_at_runs(self, followers: Sequence[Follower]) -> None:
        rows, gone = self._runs.look(lambda: self._store.live.position().row)
        if rows or gone:
            for each in followers:
                if each.wants_runs and each.position is not None:
                    made = events.of_runs(each.position.row, rows, gone)
                    each.put(events.packed(made, self.cursor(each, each.position)), each.position)
        self._runs_seen = self._runs.seen

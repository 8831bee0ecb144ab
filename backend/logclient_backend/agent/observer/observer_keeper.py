"""Keeps the observer running: forks it, replaces it when it died or hangs, for as long as there is an agent.

Runs in the supervisor, with each of its looks; waits for nothing. What the process does is in `observer_process.py`.

Invariants:

- logging depends in nothing on it: however often it dies, another one is forked, with growing pauses;
- an observer loads its code itself, so a run that is over within `_START_AFTER_S` costs none of it, and a supervisor
  does not hang with the disk that the code is on. Once an observer of its own gets on, the supervisor loads that code,
  too: the next one can be forked with every disk frozen;
- it ends before its supervisor does; one whose supervisor died is taken over by the next one.
"""

from __future__ import annotations

import contextlib
import math
import time

from logclient.shm import layout

from ..host.kept_process import KeptProcess
from ..host.pauses import Pipes
from ..host.process_handle import Watch
from ..host.shm_dir_handle import ShmDirHandle
from ..host.status import StatusPage
from ..settings import Settings

_START_AFTER_S = 1.0
_LOAD_AFTER_S = 1.0  # after the first observer
_STALLS = 6  # stall times: a sample has parts that take seconds
_SAMPLE_S = 5.0  # which it may be in the middle of when it is to leave
_LONG_LIFE_S = 60.0
_MAX_BACKOFF_S = 30.0


class ObserverKeeper:
    """One per supervisor."""

    def __init__(
        self,
        handle: ShmDirHandle,
        status: StatusPage,
        settings: Settings,
        pipes: Pipes,
        *,
        sends_alerts: bool,
    ) -> None:
        """`sends_alerts`: there is a file of targets."""
        self._handle = handle
        self._status = status
        self._settings = settings
        self._pipes = pipes
        self._process = KeptProcess(status, layout.AGENT_OBSERVER, layout.AGENT_OBSERVER_TICKS)
        self._sends_alerts = sends_alerts
        self._is_wanted = settings.observes or settings.system_s > 0
        # alerts of a run that is over at once are sent, too
        self._not_before = 0.0 if sends_alerts else time.monotonic() + _START_AFTER_S
        self._is_loaded = False
        self._load_at = math.inf
        self._first_beat = 0
        self._deaths = 0
        if not self._process.is_there:
            status.words[layout.AGENT_OBSERVED] = 0

    def watches(self) -> list[Watch]:
        """Handles of the observer, whose end is to be seen at once."""
        return self._process.watches()

    def due_in_s(self, now: float) -> float:
        """Seconds until another one is to be started, or its code to be loaded; infinite: neither is."""
        if not self._is_wanted:
            return math.inf
        return max(0.0, (self._load_at if self._process.is_there else self._not_before) - now)

    def look(self) -> bool:
        """Is there an observer, and does it get on? True where its code was loaded in this process just now."""
        self._process.reap()
        if not self._is_wanted:
            return False
        if not self._process.is_there:
            if time.monotonic() >= self._not_before:
                self._start()
        elif self._process.has_ended():
            self._has_ended()
        elif self._is_stuck():
            self._process.kill()
            self._has_ended()
        elif time.monotonic() >= self._load_at:
            return self._load_once_it_beats()
        return False

    def _load_once_it_beats(self) -> bool:
        """Load its code here, too; False where the observer has not beaten yet."""
        if self._status.words[layout.AGENT_OBSERVER_BEAT] == self._first_beat:
            self._load_at = time.monotonic() + _LOAD_AFTER_S  # it still loads: its disk may hang
            return False
        self._load_at = math.inf
        self._is_loaded = True
        with contextlib.suppress(Exception):  # then observers load it themselves, or say why they cannot
            self._load()
        return True

    def _load(self) -> None:
        """Load what an observer opens."""
        from ...alerts import node_alerts
        from ...observe import gpu, stacks
        from . import observer_process  # noqa: F401

        gpu.prepare()
        if self._settings.observes:
            stacks.keep_sampler()
        if self._sends_alerts:
            node_alerts.prepare()

    def end(self) -> None:
        """Let it leave, for a moment; then it is killed. One that sends its last alerts does so by itself."""
        words = self._status.words
        words[layout.AGENT_OBSERVER_STOP] = layout.OBSERVER_SHALL_LEAVE
        self._pipes.observer.ring()

        def has_let_go() -> bool:
            return bool(words[layout.AGENT_OBSERVER_STOP] == layout.OBSERVER_HAS_LET_GO)

        self._process.wait_ended(has_let_go, _SAMPLE_S)
        if not has_let_go():
            self._process.kill()
        self._process.let_go()

    def _start(self) -> None:
        self._status.words[layout.AGENT_OBSERVER_STOP] = 0
        self._status.beat(layout.AGENT_OBSERVER_BEAT)
        self._first_beat = self._status.words[layout.AGENT_OBSERVER_BEAT]
        if not self._process.start(self._observe):  # no process is left for this user
            self._not_before = time.monotonic() + _MAX_BACKOFF_S
        elif not self._is_loaded:
            self._load_at = time.monotonic() + _LOAD_AFTER_S

    def _observe(self) -> int:
        """In the child; its exit code."""
        if not self._is_loaded:
            self._load()
        from . import observer_process

        return observer_process.run(self._handle, self._status, self._settings, self._pipes)

    def _is_stuck(self) -> bool:
        # one that was taken over, from a supervisor that was stopped together with it, beats first
        silent_s = min(
            self._status.age_s(layout.AGENT_OBSERVER_BEAT), time.monotonic() - self._process.started
        )
        return silent_s > _STALLS * max(1.0, self._settings.stall_s, self._settings.observe_s)

    def _has_ended(self) -> None:
        if time.monotonic() - self._process.started > _LONG_LIFE_S:
            self._deaths = 0
        self._deaths += 1
        pause_s = min(_MAX_BACKOFF_S, 0.25 * 2 ** min(self._deaths - 2, 10)) if self._deaths > 1 else 0.0
        self._not_before = time.monotonic() + pause_s
        self._process.let_go()
        self._status.words[layout.AGENT_OBSERVER_RESTARTS] += 1
        self._status.words[layout.AGENT_OBSERVED] = 0  # what was found is not known to be true any more

"""Keeps the media process running: forks it once there is a media file, replaces it when it died.

Runs in the supervisor, with each of its looks; waits for nothing. What the process does is in `media_process.py`.

Invariants:

- no scalar depends on it: it may hang with a disk, and a run without media values never has one;
- it loads its code itself, with the libraries that it encodes with: the supervisor needs none of them;
- it is not replaced while it hangs: the next one would hang with the same disk, and two must not work at a time;
- it ends before its supervisor does; one whose supervisor died ends by itself.
"""

from __future__ import annotations

import math
import time

from logclient.shm import layout
from logclient.shm.side_stream import MEDIA

from ..host.kept_process import KeptProcess
from ..host.pauses import Pipes
from ..host.process_handle import Watch
from ..host.shm_dir_handle import ShmDirHandle, side_of_file
from ..host.status import StatusPage
from ..settings import Settings

_LONG_LIFE_S = 60.0
_MAX_BACKOFF_S = 10.0
_LEAVES_S = 0.5


class MediaKeeper:
    """One per supervisor."""

    def __init__(self, handle: ShmDirHandle, status: StatusPage, settings: Settings, pipes: Pipes) -> None:
        self._handle = handle
        self._status = status
        self._settings = settings
        self._pipes = pipes
        self._process = KeptProcess(status, layout.AGENT_MEDIA, layout.AGENT_MEDIA_TICKS)
        self._not_before = 0.0
        self._deaths = self._stored = 0

    def watches(self) -> list[Watch]:
        """Handles of the process, whose end is to be seen at once."""
        return self._process.watches()

    def due_in_s(self, now: float) -> float:
        """Seconds until another one is to be started; infinite: none is."""
        if self._process.is_there or not self._is_wanted():
            return math.inf
        return max(0.0, self._not_before - now)

    def _is_wanted(self) -> bool:
        return any(side_of_file(kept.name) == MEDIA for kept in self._handle.kept())

    def look(self) -> None:
        """Is there a process where one is wanted?"""
        self._process.reap()
        if self._process.is_there and self._process.has_ended():
            self._has_ended()
        if not self._process.is_there and self._is_wanted() and time.monotonic() >= self._not_before:
            self._start()

    def end(self) -> None:
        """Let it leave, for a moment; then it is killed."""
        if self._process.is_there:
            self._status.words[layout.AGENT_MEDIA_STOP] = 1
            self._pipes.media.ring()
            self._process.wait_ended(timeout_s=_LEAVES_S)
            self._process.kill()
        self._process.let_go()

    def _start(self) -> None:
        self._status.words[layout.AGENT_MEDIA_STOP] = 0
        self._status.beat(layout.AGENT_MEDIA_BEAT)
        if not self._process.start(self._work):  # no process is left for this user
            self._not_before = time.monotonic() + _MAX_BACKOFF_S

    def _work(self) -> int:
        """In the child; its exit code."""
        from . import media_process

        return media_process.run(self._handle, self._status, self._settings, self._pipes)

    def _has_ended(self) -> None:
        stored = self._status.words[layout.AGENT_MEDIA_STORED]
        if stored != self._stored or time.monotonic() - self._process.started > _LONG_LIFE_S:
            self._deaths = 0
        self._stored = stored
        self._deaths += 1
        pause_s = min(_MAX_BACKOFF_S, 0.1 * 2 ** min(self._deaths - 2, 10)) if self._deaths > 1 else 0.0
        self._not_before = time.monotonic() + pause_s
        self._process.let_go()
        self._status.words[layout.AGENT_MEDIA_RESTARTS] += 1

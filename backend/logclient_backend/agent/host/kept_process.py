"""A process that a supervisor keeps running beside the worker: forked, named on the status page, killed and reaped.

Runs in the supervisor; waits for an end for a moment at most.

Invariants:

- the status page names the process only while the supervisor counts on it;
- a process whose supervisor died is taken over by the next one, which is not its parent;
- a process that SIGKILL does not reach (state D) is left behind, and reaped once it has ended; _MAX_LEFT at most.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from .process_handle import Cause, Watch
from .status import StatusPage

_MAX_LEFT = 3  # that were killed and have not ended; with more, none is started
_END_S = 1.0
_NAP_S = 0.005


class KeptProcess:
    """One kind of process; at most one of it is there."""

    def __init__(self, status: StatusPage, pid: int, ticks: int) -> None:
        """`pid` and `ticks`: words of the status page that name the process."""
        self.started = 0.0  # or taken over; monotonic
        self._words = status.words
        self._pid, self._ticks = pid, ticks
        self._watch: Watch | None = None
        self._ended: list[Watch] = []  # not yet reaped
        if self._words[ticks]:
            watch = Watch(self._words[pid], self._words[ticks])
            if not watch.has_ended():
                self._watch, self.started = watch, time.monotonic()

    @property
    def is_there(self) -> bool:
        """Has one been started, and not been let go since?"""
        return self._watch is not None

    def watches(self) -> list[Watch]:
        """Handles of the process, whose end is to be seen at once."""
        return [] if self._watch is None else [self._watch]

    def start(self, task: Callable[[], int]) -> bool:
        """Fork it; it ends with the exit code that `task` returns.

        False where no process is left for this user, or too many that cannot be killed are left behind.
        """
        if len(self._ended) >= _MAX_LEFT:
            return False
        try:
            pid = os.fork()
        except OSError:
            return False
        if pid == 0:
            code = 1
            try:
                code = task()
            finally:
                os._exit(code)
        self.started = time.monotonic()
        self._watch = Watch(pid)
        self._words[self._ticks] = 0
        self._words[self._pid] = pid
        self._words[self._ticks] = self._watch.ticks
        return True

    def has_ended(self) -> bool:
        """True once the one that is there has ended."""
        return self._watch is not None and self._watch.has_ended()

    def cause(self) -> Cause | None:
        """Why it ended; None where nobody can tell."""
        return None if self._watch is None else self._watch.cause()

    def kill(self) -> None:
        """SIGKILL."""
        if self._watch is not None:
            self._watch.kill()
            self.wait_ended()

    def wait_ended(self, is_enough: Callable[[], bool] = lambda: False, timeout_s: float = _END_S) -> None:
        """Wait for its end, or for what is enough, for a moment at most."""
        deadline = time.monotonic() + timeout_s
        while self._watch is not None and not self._watch.has_ended() and time.monotonic() < deadline:
            if is_enough():
                return
            time.sleep(_NAP_S)

    def let_go(self) -> None:
        """Nobody counts on it any more."""
        if self._watch is not None:
            self._ended.append(self._watch)
            self._watch.close()
            self._watch = None
        self.reap()
        self._words[self._ticks] = 0

    def reap(self) -> None:
        """Reap those that were our children and have ended."""
        self._ended = [watch for watch in self._ended if not watch.reap()]

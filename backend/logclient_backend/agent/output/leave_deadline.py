"""The deadline of an agent whose disk takes nothing, where it would hold a scheduler step or container open.

Runs in the worker's main thread; looks at numbers only.

Invariant: while a process of the run lives, or anything gets done, nobody leaves.
"""

from __future__ import annotations

import time

from logclient.shm import layout

from ..drain.producers import Roster
from .copier import Copier
from .stage import Stage


class LeaveDeadline:
    """Deadline of a worker: `leave_s` after its last progress, infinite where a shm directory outlives the trainer."""

    def __init__(
        self, roster: Roster, stage: Stage, copier: Copier, status: memoryview, leave_s: float
    ) -> None:
        self._roster = roster
        self._stage = stage
        self._copier = copier
        self._status = status
        self._leave_s = leave_s
        self._done: tuple[int, ...] = ()
        self._since = time.monotonic()
        self._was_needed = False

    def has_ended(self) -> bool:
        """Everybody is gone, and nothing could be stored for so long."""
        now = time.monotonic()
        words = self._status
        written, shipped = words[layout.AGENT_WRITTEN], words[layout.AGENT_SHIPPED]
        done = (written, shipped, self._copier.document_done, len(self._stage.segments))
        is_needed = any(not producer.is_gone for producer in self._roster.producers.values())
        if is_needed or self._was_needed or done != self._done:  # looks may lie a while apart
            self._done, self._since = done, now
        self._was_needed = is_needed
        return now - self._since > self._leave_s

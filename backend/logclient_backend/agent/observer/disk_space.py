"""Room on the disk of the run folder, asked by a child now and then, since that disk may hang.

Runs in the observer; waits for nothing. While nothing is written to the folder nobody asks.
"""

from __future__ import annotations

import os
from typing import Any

from logclient.shm import layout

from ...alerts.attempt import Attempt
from ..host.shm_dir_handle import ShmDirHandle

_EVERY_S = 60.0
_LIMIT_S = 5.0


class DiskSpace:
    """The newest answer; None: not known."""

    def __init__(self, handle: ShmDirHandle, status: memoryview) -> None:
        self.free: float | None = None  # share
        self.free_bytes: int | None = None
        self._handle = handle
        self._status = status
        self._child: Attempt | None = None
        self._asked_at = -_EVERY_S
        self._written = 0  # bytes, when it was asked

    def look(self, now: float) -> None:
        """Take an answer; ask where it is time."""
        if self._child is not None:
            answer = self._child.poll()
            if answer is None or not self._child.reap():
                return
            self._child = None
            self._take(answer)
        written = self._status[layout.AGENT_WRITTEN]
        if now - self._asked_at < _EVERY_S or written == self._written:
            return
        folder = str(
            self._handle.shm_dir.folder_answer().get("dir") or self._handle.shm_dir.facts.get("dir") or ""
        )
        self._asked_at, self._written = now, written
        if folder:
            try:
                self._child = Attempt(lambda: _ask(folder), _LIMIT_S)
            except OSError:
                return  # no process is left for this user

    def _take(self, answer: dict[str, Any]) -> None:
        free, total = answer.get("free"), answer.get("total")
        if isinstance(free, int) and isinstance(total, int) and total > 0:
            self.free, self.free_bytes = free / total, free


def _ask(folder: str) -> dict[str, Any]:
    found = os.statvfs(folder)
    return {
        "code": "asked",
        "free": found.f_bavail * found.f_frsize,
        "total": found.f_blocks * found.f_frsize,
    }

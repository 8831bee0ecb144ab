"""The disk that a run may take on a node: when sealed segments go, and which.

Used by the copier, in its thread; what is acked comes from the worker's main thread.

Invariants:

- what no collector has goes only where the node takes more than `disk_bytes`;
- what a collector has goes, too, where that alone takes more than `keep_bytes`;
- the oldest go first, and a note says which records (`wal/trim.py`).
"""

from __future__ import annotations

import os
import time

from logclient.shm.regular import MAX_FILE_BYTES

from ...wal.coverage import Spans
from ...wal.reader import SEALED
from ...wal.seqs import SeqSet
from ...wal.trim import trim

_TRIM_EVERY_S = 5.0
_SHARE = 50  # to look for what is acked takes at most 1/50 of the time: it reads the footers of all segments
_SPARE = 16  # when it does, a sixteenth of the room is made free


class DiskBudget:
    """The disk budget of one node's folder."""

    def __init__(self, disk_bytes: int, keep_bytes: int) -> None:
        self.acked: dict[bytes, SeqSet] = {}  # what a collector has, by stream; replaced as a whole
        self._disk_bytes = disk_bytes
        self._keep_bytes = keep_bytes
        self._sealed_bytes = -1  # of sealed segments in the folder; -1: not known
        self.used_bytes = 0  # of sealed segments, when they were counted last
        self._is_kept = True
        self._trimmed_at = -_TRIM_EVERY_S
        self._look_at = 0.0  # not before
        self._looked_for: dict[bytes, SeqSet] = self.acked

    @property
    def is_kept(self) -> bool:
        """Nothing was sealed since `keep` looked last?"""
        return self._is_kept

    @property
    def is_settled(self) -> bool:
        """Would another call of `keep` change nothing?"""
        return self._is_kept and (self.acked is self._looked_for or self._sealed_bytes <= self._keep_bytes)

    def sealed(self, path: str) -> None:
        """Another segment is there."""
        self._is_kept = False
        if self._sealed_bytes >= 0:
            self._sealed_bytes += os.stat(path).st_size
            self.used_bytes = self._sealed_bytes

    def gone(self) -> None:
        """The folder was removed for good."""
        self._is_kept, self._looked_for = True, self.acked

    def keep(self, folder: str, open_bytes: int, *, is_last: bool) -> None:
        """Make room where that is due: not with every seal, but always before the last rest."""
        self._keep_acked(folder)
        if self._is_kept or (not is_last and time.monotonic() - self._trimmed_at < _TRIM_EVERY_S):
            return
        if self._measure(folder) + open_bytes > self._disk_bytes:
            self._trimmed_at = time.monotonic()
            trim(folder, self._disk_bytes)
            self._sealed_bytes = -1
        self._is_kept = True

    def _measure(self, folder: str) -> int:
        if self._sealed_bytes < 0:
            with os.scandir(folder) as entries:
                self._sealed_bytes = sum(
                    size
                    for entry in entries
                    if entry.name.endswith(SEALED) and entry.is_file(follow_symlinks=False)
                    if (size := entry.stat().st_size) <= MAX_FILE_BYTES
                )
            self.used_bytes = self._sealed_bytes
        return self._sealed_bytes

    def _keep_acked(self, folder: str) -> None:
        acked, begun = self.acked, time.monotonic()
        if acked is self._looked_for or begun < self._look_at or self._measure(folder) <= self._keep_bytes:
            return
        self._looked_for = acked

        def may_go(spans: Spans) -> bool:
            nothing = SeqSet()
            return all(acked.get(stream, nothing).includes(span.stored) for stream, span in spans.items())

        try:
            if trim(folder, self._keep_bytes - self._keep_bytes // _SPARE, may_go=may_go).removed:
                self._sealed_bytes = -1
        finally:
            now = time.monotonic()
            self._look_at = now + max(_TRIM_EVERY_S, _SHARE * (now - begun))

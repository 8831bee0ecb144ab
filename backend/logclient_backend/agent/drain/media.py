"""Files with media values as the worker sees them: lanes of references, which the media process writes.

Runs in the worker's main thread.

Invariants:

- they keep the agent, once nobody logs any more, until all their values have references or are given up;
- values are given up where the media process stores none for long although the disk takes all else: their seqs are a
  gap then, counted as forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from logclient.shm import layout
from logclient.shm.media_ring import RAW_HEADER
from logclient.shm.side_stream import MEDIA

from ..host.crash_report import Handover
from ..host.shm_dir_handle import ShmDirHandle
from . import drain
from .node_document import Ledger
from .producer import Producer
from .producers import SideRoster

_EVERY_S = 0.2  # between two looks at references, whose blobs were written with an fsync each
_AWAITED_S = 10.0  # since somebody flushed: values that were logged before may be encoded only now
_PATIENCE_S = 120.0  # for a media process that stores nothing, once nobody logs any more


class Media(SideRoster):
    """The media files of a shm directory."""

    def __init__(
        self, handle: ShmDirHandle, handover: Handover, ledger: Ledger, log: Callable[[str], None]
    ) -> None:
        super().__init__(MEDIA, handle, handover, ledger, log)
        self._looked_at = self._asked_at = 0.0
        self._moved: tuple[int, float] = (-1, 0.0)  # how far references had come, and since when (monotonic)
        self._blobs: tuple[tuple[int, ...], float] = ((), 0.0)  # the same of blobs at a collector

    @property
    def has_some(self) -> bool:
        """Is there a reference that was not staged?"""
        return any(lane.reader.pending > 0 for each in self.producers.values() for lane in each.lanes)

    def is_due(self, now: float) -> bool:
        """Is it time to stage some?"""
        return self.has_some and now - self._looked_at >= _EVERY_S

    def due_in_s(self, now: float) -> float:
        """Return the seconds until it is."""
        return max(0.0, self._looked_at + _EVERY_S - now)

    def note_look(self, now: float, *, at_once: bool) -> None:
        """Note that some are staged now; `at_once`: somebody waits."""
        self._looked_at = now
        self._asked_at = now if at_once else self._asked_at

    def is_awaited(self, now: float) -> bool:
        """Did somebody wait a moment ago, and so for what was encoded since?"""
        return now - self._asked_at < _AWAITED_S

    def gone(self, *, at_once: bool = False) -> list[Producer]:
        """Return the files with which the media process has finished: its own process says nothing of that."""
        return [producer for producer in self.producers.values() if producer.has_finished]

    def is_stuck(self) -> bool:
        """Has no value been stored for long, although some are there?"""
        sums = sum(lane.reader.words[layout.SEQ] for each in self.producers.values() for lane in each.lanes)
        if sums != self._moved[0]:
            self._moved = sums, time.monotonic()
        return time.monotonic() - self._moved[1] > _PATIENCE_S

    def given_up(self, words: memoryview) -> Iterator[tuple[str, Producer, drain.Harvest]]:
        """Give up what nobody stores: yields a line for the log, and what is to be staged of a file.

        `words`: of the status page. Nothing is given up while the disk takes nothing else either.
        """
        if words[layout.AGENT_WRITE_STALLED_NS] or words[layout.AGENT_WRITE_ERROR]:
            return
        for producer in self.each(which=lambda each: not each.has_finished):
            lane = producer.lanes[0]
            first, last = lane.staged_seq + 1, producer.words[layout.lane_header(RAW_HEADER) + layout.SEQ]
            producer.words[layout.STATE] = layout.STATE_FINISHED
            if last >= first:
                found = drain.nothing(lane)
                found.forgotten.append((first, last))
                found.last_seq = last
                yield f"media values {first} to {last} of {producer.name} were given up", producer, found

    def are_shipped(self, words: memoryview, leave_s: float) -> bool:
        """Has a collector all that media values refer to, or has it taken none of that for long?"""
        stored = words[layout.AGENT_MEDIA_STORED]
        if not stored or words[layout.AGENT_SHIP_STATE] == layout.SHIP_OFF:
            return True
        state = stored, words[layout.AGENT_BLOBS_SEEN], words[layout.AGENT_BLOBS_WAITING]
        if state != self._blobs[0]:
            self._blobs = state, time.monotonic()
        is_stuck = time.monotonic() - self._blobs[1] > leave_s
        return is_stuck or (state[1] == stored and not state[2])

"""A staged segment, and what the lanes whose records it holds count once it is durable.

Runs in the worker's main thread; the copier reads `Staged` and reports back through it.

Invariants:

- a lane's counts move in the order of its records: a watermark is published when the segment is durable up to it, and
  never one that takes a count back;
- what is missing of a lane in all segments together is damaged, and damaged records are counted once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from logclient.shm.ring import write_counts

from ...wal.seqs import SeqSet
from ...wal.writer import OpenSegment
from ..drain.producer import Lane
from .spooler import SpooledSegment


class Watermark:
    """Counts of a lane that hold once the segment is durable up to `end`."""

    __slots__ = ("damaged", "durable", "end", "lane", "stored")

    def __init__(self, end: int, lane: Lane, durable: int, stored: int, damaged: int) -> None:
        self.end = end
        self.lane = lane
        self.durable = durable
        self.stored = stored
        self.damaged = damaged


class Staged:
    """One segment, on tmpfs or in the spool. The copier writes `synced`, `is_sealed` and `gone`, the main thread the
    rest.
    """

    __slots__ = (
        "end",
        "gone",
        "has_users",
        "is_complete",
        "is_sealed",
        "segment",
        "started",
        "synced",
        "watermarks",
    )

    def __init__(self, segment: OpenSegment | SpooledSegment, *, is_complete: bool) -> None:
        self.segment = segment
        self.end = segment.end  # committed; the copier copies no further
        self.is_complete = is_complete
        self.has_users = False  # records of the user's
        self.synced = 0
        self.is_sealed = False
        self.gone: dict[bytes, SeqSet] = {}  # by stream: it went from the spool before it was sealed
        self.watermarks: list[Watermark] = []
        self.started = time.monotonic()

    @property
    def open_segment(self) -> OpenSegment:
        """The segment, where it is the current one: that is in memory."""
        assert isinstance(self.segment, OpenSegment)
        return self.segment

    @property
    def memory_bytes(self) -> int:
        """Shared memory that the segment takes; 0 in the spool."""
        segment = self.segment
        return 0 if isinstance(segment, SpooledSegment) else max(segment.capacity_bytes, segment.end)

    def publish(self, synced: int) -> None:
        """Let the lanes count what is durable up to `synced`."""
        waiting = self.watermarks
        done = 0
        while done < len(waiting) and waiting[done].end <= synced:
            done += 1
        latest = {id(mark.lane): mark for mark in waiting[:done]}
        del waiting[:done]
        for mark in latest.values():
            lane = mark.lane
            if mark.durable >= lane.durable and mark.damaged >= lane.least_damaged:
                lane.durable, lane.stored, lane.damaged = mark.durable, mark.stored, mark.damaged
                write_counts(lane.reader.words, mark.durable, mark.stored, mark.damaged)


def resume(segments: Sequence[Staged], lane: Lane) -> None:
    """Continue a lane where the staged segments end, and count what they hold once it is durable.

    Damaged is what all of them together lack: what one does not hold may lie in any other.
    """
    stored, damaged, highest = lane.stored, lane.damaged, lane.durable
    spans = [(staged, staged.segment.summary.get(lane.stream)) for staged in segments]
    whole, there = SeqSet([(1, highest)]) if highest else SeqSet(), SeqSet()
    counted = whole.copy()
    for _, span in spans:
        if span is not None:
            there.update(span.stored)
            for seqs in (span.stored, *span.gaps.values()):
                whole.update(seqs)
    for staged, span in spans:
        if span is None:
            continue
        known = span.stored.copy()
        for seqs in span.gaps.values():
            known.update(seqs)
        if not known:
            continue
        last = max(highest, known.last)
        holes = SeqSet([(highest + 1, last)]).minus(whole) if last > highest else SeqSet()
        stored += len(span.stored.minus(counted))
        damaged += len(span.damaged.minus(counted).minus(there)) + len(holes)
        counted.update(known)
        highest = last
        staged.watermarks.append(Watermark(staged.end, lane, highest, stored, damaged))
    lane.take_over(highest, stored, damaged)


def write_off(segments: Sequence[Staged], staged: Staged) -> None:
    """Count records that went with a segment as damaged, with the next look at their lanes.

    Until that is on disk their lanes are not durable: whoever waits would hear of fewer records than there were.
    """
    gone, staged.gone = staged.gone, {}
    for lane in {id(mark.lane): mark.lane for mark in staged.watermarks}.values():
        seqs = gone.get(lane.stream, SeqSet())
        lane.staged_stored -= len(seqs)
        if seqs:
            lane.lost = lane.lost + seqs.ranges()
            owed = sum(last - first + 1 for first, last in lane.lost)
            lane.least_damaged = lane.staged_damaged + owed
        for later in segments[segments.index(staged) :]:
            for mark in later.watermarks:
                mark.stored -= len(seqs) if mark.lane is lane else 0

"""Staged segments: the open end of the WAL, on tmpfs, where appending never waits for a disk.

Runs in the worker's main thread; the copier reads `Staged` and reports back through it.

Invariants:

- a lane is released only up to what is committed here (or already in the run folder): nothing lives in heap memory
  alone, and a worker may be killed at any instruction;
- one look at one lane is staged all or not at all: `AGENT_STAGE_COMMIT` moves after the bytes are written, and a
  successor cuts off what lies beyond;
- all staged segments together stay within a budget; beyond it the lanes are left to forget their oldest, counted;
- a staged segment is removed when its sealed copy is in the run folder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from logclient import layout
from logclient.ring import release_block, write_counts

from .. import failpoint
from ..wal.files import REAL
from ..wal.segment import parse_name
from ..wal.seqs import SeqSet
from ..wal.writer import OpenSegment
from .attach import Lane, Producer
from .drain import Harvest

_END_BITS = 40
_LEAST_BYTES = 64 << 10


class Mark:
    """When the segment is durable up to `end`, these are the counts of that lane."""

    __slots__ = ("damaged", "durable", "end", "lane", "stored")

    def __init__(self, end: int, lane: Lane, durable: int, stored: int, damaged: int) -> None:
        self.end = end
        self.lane = lane
        self.durable = durable
        self.stored = stored
        self.damaged = damaged


class Staged:
    """One segment on tmpfs. Main thread writes `end` and `is_complete`; the copier `synced` and `is_sealed`."""

    __slots__ = ("end", "is_complete", "is_sealed", "marks", "segment", "started", "synced")

    def __init__(self, segment: OpenSegment, *, is_complete: bool) -> None:
        self.segment = segment
        self.end = segment.end  # committed; the copier copies no further
        self.is_complete = is_complete
        self.synced = 0
        self.is_sealed = False
        self.marks: list[Mark] = []
        self.started = time.monotonic()


class Stage:
    """The staged segments of this worker and of the dead ones before it."""

    def __init__(
        self, folder: str, status: memoryview, *, segment_bytes: int, spill_bytes: int, seal_s: float
    ) -> None:
        self.folder = folder
        self.segments: list[Staged] = []
        self._status = status
        self._spill_bytes = max(spill_bytes, 4 * _LEAST_BYTES)
        self._segment_bytes = max(_LEAST_BYTES, min(segment_bytes, self._spill_bytes // 4))
        self._seal_s = seal_s
        self.writer = new_writer()
        self._number = 0
        self._current: Staged | None = None
        self.is_short = False  # the last record found no room

    # ---- taking over -----------------------------------------------------------------------------------

    def adopt(self) -> Iterator[str]:
        """Take over the segments of dead workers; yields what went wrong, in words."""
        last_writer = self._status[layout.AGENT_STAGE_WRITER].to_bytes(8, "little")
        commit = self._status[layout.AGENT_STAGE_COMMIT]
        for name in sorted(os.listdir(self.folder)):
            parsed = parse_name(name)
            if parsed is None or parsed.is_sealed:
                continue
            path = os.path.join(self.folder, name)
            try:
                if parsed.writer == last_writer and not _cut_uncommitted(path, parsed.number, commit):
                    continue
                segment = OpenSegment.adopt(REAL, path)
            except Exception as error:  # noqa: BLE001 - one bad file must not keep the others from being stored
                yield f"{name} on tmpfs cannot be taken over and stays there: {error}"
                continue
            self.segments.append(Staged(segment, is_complete=True))
        self.segments.sort(key=lambda staged: staged.segment.created_ns)
        self._status[layout.AGENT_STAGE_WRITER] = int.from_bytes(self.writer, "little")  # this order: see layout
        self._status[layout.AGENT_STAGE_COMMIT] = 0

    def resume(self, lane: Lane) -> None:
        """Continue a lane where the staged segments end, and count what they hold once it is durable."""
        stored, damaged, highest = lane.stored, lane.damaged, lane.staged_seq
        already = SeqSet([(1, lane.durable)]) if lane.durable else SeqSet()
        for staged in self.segments:
            span = staged.segment.summary.get(lane.stream)
            if span is None:
                continue
            fresh = span.stored.minus(already)
            broken = span.damaged.minus(already)
            stored += len(fresh)
            damaged += len(broken)
            known = span.stored.copy()
            for gap in span.gaps.values():
                known.update(gap)
            already.update(known)
            if known:
                highest = max(highest, known.last)
            staged.marks.append(Mark(staged.end, lane, highest, stored, damaged))
        lane.staged_seq, lane.staged_stored, lane.staged_damaged = highest, stored, damaged
        lane.reader.seq = highest

    # ---- adding ----------------------------------------------------------------------------------------

    def add(self, producer: Producer, lane: Lane, harvest: Harvest) -> bool:
        """Stage what was taken from a lane and release it; False, with nothing changed, where there is no room."""
        staged = self._room_for()
        if staged is None:
            lane.reader.position = lane.reader.words[layout.RELEASED]
            return False
        segment, process = staged.segment, producer.process
        try:
            for first, last in harvest.damaged:
                segment.append_gap(lane.stream, process, lane.index, first, last, "damaged")
            for first, last in harvest.forgotten:
                segment.append_gap(lane.stream, process, lane.index, first, last, "forgotten")
            for columns in harvest.parts:
                segment.append(lane.stream, process, lane.index, columns)
        except OSError:  # tmpfs is full: what was written of this look is cut off by the next commit
            self._undo(staged)
            self.is_short = True
            lane.reader.position = lane.reader.words[layout.RELEASED]
            return False
        self.is_short = False
        failpoint.hit("stage.appended")
        lane.staged_stored += harvest.stored
        lane.staged_damaged += sum(last - first + 1 for first, last in harvest.damaged)
        lane.staged_seq = lane.reader.seq = harvest.last_seq
        self._commit(staged)
        for reference in harvest.blocks:
            release_block(producer.mem, reference)
        lane.reader.words[layout.STAGED_SEQ] = harvest.last_seq
        lane.reader.words[layout.RELEASED] = harvest.position
        failpoint.hit("stage.released")
        staged.marks.append(Mark(staged.end, lane, harvest.last_seq, lane.staged_stored, lane.staged_damaged))
        return True

    def _commit(self, staged: Staged) -> None:
        self._status[layout.AGENT_STAGE_COMMIT] = staged.segment.number << _END_BITS | staged.segment.end
        self._status[layout.AGENT_DRAINED] += staged.segment.end - staged.end
        staged.end = staged.segment.end

    def _undo(self, staged: Staged) -> None:
        """The segment ends at its last commit and takes nothing more: rather a short one than half a look."""
        staged.is_complete = True
        self._current = None

    def has_room(self) -> bool:
        """Can a look at a lane be staged now?"""
        self.is_short = self._room_for() is None
        return not self.is_short

    def _room_for(self) -> Staged | None:
        staged = self._current
        if staged is not None:
            if not staged.segment.is_full:
                return staged
            self.close_current()
        if self.taken_bytes() + self._segment_bytes > self._spill_bytes:
            return None
        try:
            segment = OpenSegment.create(
                REAL, self.folder, self.writer, self._number + 1, time.time_ns(), self._segment_bytes
            )
        except OSError:
            return None
        self._number += 1
        staged = Staged(segment, is_complete=False)
        self.segments.append(staged)
        self._current = staged
        self._status[layout.AGENT_STAGE_COMMIT] = segment.number << _END_BITS | segment.end
        return staged

    def close_current(self) -> None:
        """Nothing more goes into the current segment: it may be sealed."""
        if self._current is not None:
            self._current.is_complete = True
            self._current = None

    def close_old(self) -> None:
        """The same, if it is old enough."""
        if self._current is not None and time.monotonic() - self._current.started >= self._seal_s:
            self.close_current()

    # ---- what the copier got done ------------------------------------------------------------------------

    def settle(self) -> None:
        """Publish what has become durable, and remove what is sealed."""
        for staged in tuple(self.segments):
            synced = staged.synced
            marks = staged.marks
            done = 0
            while done < len(marks) and marks[done].end <= synced:
                done += 1
            if done:
                latest: dict[int, Mark] = {id(mark.lane): mark for mark in marks[:done]}
                del marks[:done]
                for mark in latest.values():
                    lane = mark.lane
                    if mark.durable >= lane.durable:
                        lane.durable, lane.stored, lane.damaged = mark.durable, mark.stored, mark.damaged
                        write_counts(lane.reader.words, mark.durable, mark.stored, mark.damaged)
            if staged.is_sealed and not marks:
                self.segments.remove(staged)
                try:
                    staged.segment.unlink()
                except OSError:
                    staged.segment.close()  # the folder was cleared by somebody else
        self._status[layout.AGENT_SPILL_BYTES] = self.taken_bytes()
        self._status[layout.AGENT_WRITE_PENDING] = sum(staged.end - staged.synced for staged in self.segments)

    def taken_bytes(self) -> int:
        """Shared memory that staged segments take."""
        return sum(max(staged.segment.capacity_bytes, staged.segment.end) for staged in self.segments)

    @property
    def is_settled(self) -> bool:
        """Everything staged is past an fsync in the run folder."""
        return all(staged.synced >= staged.end for staged in self.segments)


def new_writer() -> bytes:
    """Id of a worker incarnation: names of later segments sort behind those of earlier ones."""
    return (time.time_ns() >> 16).to_bytes(6, "big") + os.urandom(2)


def _cut_uncommitted(path: str, number: int, commit: int) -> bool:
    """Zero what the last worker had not committed; False where that is the whole file, which is removed."""
    committed_number, end = commit >> _END_BITS, commit & (1 << _END_BITS) - 1
    if number < committed_number:
        return True
    if number > committed_number:
        os.unlink(path)
        return False
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        beyond = os.fstat(fd).st_size - end
        if beyond > 0:
            os.pwrite(fd, bytes(beyond), end)
    finally:
        os.close(fd)
    return True

"""Staged segments: the open end of the WAL, on tmpfs, where appending never waits for a disk.

Runs in the worker's main thread; the copier reads `Staged` and reports back through it. The accounting of lanes over
segments is in `staged.py`.

Invariants:

- a lane is released only up to what is committed here (or already in the run folder): nothing lives in heap memory
  alone, and a worker may be killed at any instruction;
- one look at one lane is staged all or not at all: `AGENT_STAGE_COMMIT` moves after the bytes are written, and a
  successor cuts off what lies beyond;
- only the worker named in `AGENT_STAGE_WRITER` stages: one that finds another name there has been replaced;
- all staged segments together stay within a budget; beyond it the lanes are left to forget their oldest, counted;
- a worker's id is greater than that of every worker before it: its segments are the newest, whatever the clock says;
- a staged segment is given back when its sealed copy is in the run folder, or when it lies in the spool.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable

from logclient.shm import layout
from logclient.shm.ring import release_block
from logclient.shm.side_stream import side_of

from ... import failpoint
from ...wal.segment import ORDER_BYTES, order_of, parse_name
from ...wal.writer import OpenSegment
from ..drain.drain import Harvest
from ..drain.producer import Lane, Producer
from ..host.shm_dir_handle import LANES, ShmDirHandle
from .segment_pool import Memory
from .spooler import SpooledSegment, Spooler
from .staged import Staged, Watermark, resume, write_off

_MAX_TAKEN = 1 << 20
_SYSTEM_SEALS = 30  # seal times for a segment that holds host and device metrics alone: few and full ones
_HIGHEST = b"\xff" * ORDER_BYTES


class Replaced(Exception):
    """Another worker is at work in this directory."""


class Stage:
    """The staged segments of this worker and of the dead ones before it."""

    def __init__(
        self,
        handle: ShmDirHandle,
        status: memoryview,
        segment_bytes: int,
        spill_bytes: int,
        seal_s: float,
        spooler: Spooler,
    ) -> None:
        self.segments: list[Staged] = []
        self._handle = handle
        self._spooler = spooler
        self._status = status
        self._memory = Memory(handle, segment_bytes)
        last_writer = status[layout.AGENT_STAGE_WRITER].to_bytes(8, "little")
        self.writer = next_writer([last_writer, *self._memory.writers()])
        self._segment_bytes = segment_bytes
        self._spill_bytes = spill_bytes
        self._seal_s = seal_s
        self._number = 0
        self._current: Staged | None = None
        self.most_taken = min(_MAX_TAKEN, self._segment_bytes // 4)  # of a lane at once
        self.lacks_room = False  # until a segment is copied and sealed

    # ---- taking over -----------------------------------------------------------------------------------

    def adopt(self, beat: Callable[[], None]) -> list[str]:
        """Take over the segments of dead workers; what went wrong, in words."""
        troubles = []
        last_writer = self._status[layout.AGENT_STAGE_WRITER].to_bytes(8, "little")
        commit = self._status[layout.AGENT_STAGE_COMMIT]
        for name in self._memory.adopt():
            beat()
            path = self._handle.file(name)
            try:
                if _cut_uncommitted(self._memory, path, last_writer, commit):
                    segment = OpenSegment.adopt(self._memory, path)
                    self._memory.trim(segment)
                    self.segments.append(Staged(segment, is_complete=True))
            except Exception as error:  # noqa: BLE001 - one bad file must not keep the others from being stored
                troubles.append(f"{name} in shared memory cannot be taken over and stays there: {error}")
        troubles += self._adopt_spooled()
        for staged in self.segments:
            if isinstance(staged.segment, OpenSegment):
                # what was not committed is cut off by now: a tail that is torn is damage as well
                damage = [*staged.segment.damage, *staged.segment.torn]
                troubles += [f"in shared memory: {piece}" for piece in damage]
        self.segments.sort(key=lambda staged: order_of(staged.segment.name))
        self._take_over()
        return troubles

    def stay_above(self, writer: bytes) -> None:
        """Go on under a greater writer's id where `writer`, found in the run folder, is not below this worker's."""
        if writer[:ORDER_BYTES] < self.writer[:ORDER_BYTES] or self.writer.startswith(_HIGHEST):
            return
        self.check()
        self.close_current()
        self.writer = next_writer([writer])
        self._take_over()

    def _take_over(self) -> None:
        # in this order: see layout
        self._status[layout.AGENT_STAGE_WRITER] = int.from_bytes(self.writer, "little")
        self._status[layout.AGENT_STAGE_COMMIT] = 0

    def _adopt_spooled(self) -> list[str]:
        troubles = []
        here = {staged.segment.name for staged in self.segments}
        for name, note in self._memory.notes().items():
            try:
                segment = SpooledSegment.from_note(name, note)
            except (ValueError, KeyError, TypeError) as error:
                troubles.append(f"the note of {name} in the spool cannot be read: {error}")
                continue
            if name in here:  # its worker died before the memory was given back
                self._memory.drop_note(name)
                self._spooler.remove(segment.path)
            else:
                self.segments.append(Staged(segment, is_complete=True))
        return troubles

    def resume(self, lane: Lane) -> None:
        """Continue a lane where the staged segments end, and count what they hold once it is durable."""
        resume(self.segments, lane)

    # ---- adding ----------------------------------------------------------------------------------------

    def add(self, producer: Producer, lane: Lane, harvest: Harvest) -> bool:
        """Stage what was taken from a lane and release it; False, with nothing changed, where there is no room."""
        staged = self._room_for()
        if staged is None:
            lane.take_back()
            return False
        segment, process = staged.open_segment, producer.process
        damaged = lane.lost + harvest.damaged
        try:
            for first, last in damaged:
                segment.append_gap(lane.stream, process, lane.index, first, last, "damaged")
            for first, last in harvest.forgotten:
                segment.append_gap(lane.stream, process, lane.index, first, last, "forgotten")
            for columns in harvest.parts:
                segment.append(lane.stream, process, lane.index, columns)
        except OSError:  # tmpfs is full
            self._undo(staged)
            lane.take_back()
            return False
        staged.has_users |= not side_of(lane.stream)
        failpoint.hit("stage.appended")
        self._commit(staged)
        for reference in harvest.blocks:
            release_block(producer.mem, reference)
        for cell, taken in harvest.cells:
            producer.cells.free(cell, taken)
        if harvest.left_out:
            producer.words[layout.LEFT_OUT] += (
                harvest.left_out
            )  # its own process, which counts there, is dead
        count = sum(last - first + 1 for first, last in damaged)
        lane.release(harvest.position, harvest.last_seq, harvest.stored, count)
        failpoint.hit("stage.released")
        staged.watermarks.append(
            Watermark(staged.end, lane, lane.staged_seq, lane.staged_stored, lane.staged_damaged)
        )
        return True

    def check(self) -> None:
        """Raises `Replaced` where another worker is at work: by now the segments are that one's."""
        if self._status[layout.AGENT_STAGE_WRITER].to_bytes(8, "little") != self.writer:
            raise Replaced

    def _commit(self, staged: Staged) -> None:
        self.check()
        self._status[layout.AGENT_STAGE_COMMIT] = (
            staged.segment.number << layout.STAGE_END_BITS | staged.segment.end
        )
        self._status[layout.AGENT_DRAINED] += staged.segment.end - staged.end
        staged.end = staged.segment.end

    def _undo(self, staged: Staged) -> None:
        """The segment ends at its last commit and takes nothing more: rather a short one than half a look."""
        self._memory.pwrite(staged.segment.fd, bytes(staged.segment.end - staged.end), staged.end)
        self.close_current()

    def has_room(self) -> bool:
        """Can a look at a lane be staged now?"""
        self.lacks_room = self._room_for() is None
        return not self.lacks_room

    def _room_for(self) -> Staged | None:
        staged = self._current
        if staged is not None:
            if staged.open_segment.has_room(self.most_taken):
                return staged
            self.close_current()
        spare_bytes = self._memory.spare_bytes
        if not spare_bytes and self.taken_bytes() + self._segment_bytes > self._limit_bytes():
            return None
        try:
            segment = OpenSegment.create(
                self._memory,
                self._handle.path,
                self.writer,
                self._number + 1,
                time.time_ns(),
                self._segment_bytes,
            )
        except OSError:
            return None
        self._number += 1
        staged = Staged(segment, is_complete=False)
        self.segments.append(staged)
        self._current = staged
        self._commit(staged)
        return staged

    def _limit_bytes(self) -> int:
        """The lanes of many processes leave less of the run's share; two segments are had in any case."""
        shm_dir = self._handle.shm_dir
        left = int(shm_dir.facts.get("budget_bytes", 1 << 40)) - shm_dir.taken_bytes(LANES)
        return min(self._spill_bytes, max(2 * self._segment_bytes, left))

    def close_current(self) -> None:
        """Nothing more goes into the current segment: it may be sealed."""
        if self._current is not None:
            self._current.is_complete = True
            self._current = None

    def close_old(self) -> None:
        """Close the current segment, if it is old enough."""
        if time.monotonic() >= self.seal_at:
            self.close_current()

    @property
    def seal_at(self) -> float:
        """The time at which the current segment will be old enough (monotonic); infinite where there is none."""
        if self._current is None:
            return math.inf
        seals = 1 if self._current.has_users else _SYSTEM_SEALS
        return self._current.started + seals * self._seal_s

    # ---- what the copier got done ------------------------------------------------------------------------

    def settle(self) -> None:
        """Publish what has become durable, and give back what is sealed or in the spool."""
        self._collect_spooled()
        for staged in tuple(self.segments):
            synced = staged.synced  # read first: what is gone is told before it counts as synced
            if staged.gone:
                write_off(self.segments, staged)
            staged.publish(synced)
            if staged.is_sealed and not staged.watermarks:
                self.segments.remove(staged)
                self._give_back(staged.segment)
        self._status[layout.AGENT_SPILL_BYTES] = self.taken_bytes()
        self._status[layout.AGENT_WRITE_PENDING] = sum(staged.end - staged.synced for staged in self.segments)

    def _give_back(self, segment: OpenSegment | SpooledSegment) -> None:
        if isinstance(segment, SpooledSegment):
            self._memory.drop_note(segment.name)
            segment.close()
            self._spooler.remove(segment.path)
        elif self._spooler.moving is segment:  # which reads it, so it must not be wiped
            segment.close()
            self._memory.give_back(segment.path)
        else:
            segment.unlink()

    # ---- the spool -----------------------------------------------------------------------------------------

    def spool(self) -> None:
        """The run folder takes nothing: let the oldest complete segment be moved, if it is time for that."""
        if not (self._spooler.is_ready and self.is_half_full) or self._handle.is_removed:
            return
        for staged in self.segments:
            segment = staged.segment
            if staged.is_complete and not staged.is_sealed and isinstance(segment, OpenSegment):
                self._spooler.move(segment)
                return

    def _collect_spooled(self) -> None:
        moved, segment = self._spooler.moved, self._spooler.moving
        if moved is None or not isinstance(segment, OpenSegment):
            return
        self._spooler.moved = self._spooler.moving = None
        path, fd = moved
        staged = next((staged for staged in self.segments if staged.segment is segment), None)
        if staged is not None:
            spooled = SpooledSegment(
                segment.name, path, segment.end, segment.created_ns, segment.summary, segment.fd
            )
            try:
                self._memory.note(segment.name, spooled.note())
            except OSError:
                staged = None  # no room even for that: it stays where it is
                self._spooler.rest()
        if staged is None:
            os.close(fd)
            self._spooler.remove(path)
            return
        os.dup2(fd, segment.fd, inheritable=False)  # the copier may be reading it: it goes on in the spool
        os.close(fd)
        staged.segment = spooled
        self._memory.give_back(segment.path)

    def taken_bytes(self) -> int:
        """Shared memory that staged segments take, and the spare one."""
        return self._held_bytes() + self._memory.spare_bytes

    def _held_bytes(self) -> int:
        return sum(staged.memory_bytes for staged in self.segments)

    @property
    def is_half_full(self) -> bool:
        """Is it time to copy what is staged, whoever waits for it or not?"""
        return len(self.segments) > 1 and 2 * self._held_bytes() >= self._spill_bytes

    @property
    def is_settled(self) -> bool:
        """Everything staged is past an fsync in the run folder."""
        return all(staged.synced >= staged.end for staged in self.segments)


def next_writer(earlier: Iterable[bytes]) -> bytes:
    """Return the id of a new worker incarnation: names of its segments sort behind those of all `earlier` writers.

    The first bytes count the incarnations, and no clock is asked. An older version put a time there: the count goes
    on from that.
    """
    highest = max((int.from_bytes(writer[:ORDER_BYTES], "big") for writer in earlier), default=0)
    count = min(highest + 1, int.from_bytes(_HIGHEST, "big"))
    return count.to_bytes(ORDER_BYTES, "big") + os.urandom(8 - ORDER_BYTES)


def _cut_uncommitted(memory: Memory, path: str, last_writer: bytes, commit: int) -> bool:
    """Cut off what the last worker had not committed; False where that is the whole file, which is given back."""
    name = parse_name(os.path.basename(path))
    committed_number, end = commit >> layout.STAGE_END_BITS, commit & (1 << layout.STAGE_END_BITS) - 1
    if name is None or name.writer != last_writer or name.number < committed_number:
        return True
    if name.number > committed_number:
        memory.unlink(path)
        return False
    fd = memory.open(path, os.O_RDWR)
    try:
        memory.truncate(fd, max(1, min(end, memory.size(fd))))
    finally:
        memory.close(fd)
    return True

"""Staged segments and their memory: taken over from dead workers, used again, given back; what is gone is named."""

from __future__ import annotations

import os
import random
from array import array
from pathlib import Path
from typing import Any

import pytest

from logclient.shm import layout
from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient.shm.side_stream import MARKS
from logclient_backend.agent.drain import drain
from logclient_backend.agent.host.shm_dir_handle import ShmDirHandle
from logclient_backend.agent.output.segment_pool import Memory
from logclient_backend.agent.output.spooler import Spooler
from logclient_backend.agent.output.stage import Replaced, Stage, next_writer
from logclient_backend.agent.settings import Settings
from logclient_backend.wal.writer import OpenSegment

SEGMENT, SPILL = 64 << 10, 1 << 20
PROCESS, STREAM = b"p" * 16, b"s" * 16
SHAPE = Shape(tuple(f"m{i}" for i in range(10)), "d" * 10)


class FakeReader:
    """Words of a lane's header, and where its reader stands."""

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self.position = words[layout.RELEASED]
        self.seq = words[layout.STAGED_SEQ]


class FakeProducer:
    """What the stage wants of one."""

    mem = memoryview(b"")
    process = PROCESS


PRODUCER: Any = FakeProducer()


def spooler_of(handle: ShmDirHandle) -> Spooler:
    return Spooler(handle.shm_dir, handle.public, Settings({}))


def stage_of(handle: ShmDirHandle, status: memoryview) -> Stage:
    """A worker's, after it took over what is there."""
    made = Stage(handle, status, SEGMENT, SPILL, 60.0, spooler_of(handle))
    assert made.adopt(lambda: None) == []
    return made


def lane_of(header: memoryview, stage: Stage, stream: bytes = STREAM):
    from logclient_backend.agent.drain.producer import Lane

    lane = Lane(FakeReader(header), 0, stream)  # type: ignore[arg-type]
    stage.resume(lane)
    return lane


def look(lane, count: int) -> drain.Harvest:
    """Records as they come out of a lane."""
    first = lane.staged_seq + 1
    seqs = array("Q", range(first, first + count))
    found = drain.Harvest(lane.reader.position + 128 * count, seqs[-1])
    noise = random.Random(first)
    cells: list[array[int] | list[bytes]] = [
        array("Q", (noise.getrandbits(64) for _ in seqs)) for _ in range(10)
    ]
    steps = array("q", seqs)
    found.parts.append(Columns(SHAPE, None, seqs, seqs, steps, steps, cells))
    found.stored = count
    return found


@pytest.fixture
def header() -> memoryview:
    return memoryview(bytearray(8 * layout.LANE_HEADER_WORDS)).cast("Q")


def stored(stage: Stage) -> int:
    return sum(len(span.stored) for staged in stage.segments for span in staged.segment.summary.values())


def test_successor_continues_behind_what_is_committed(handle, status, header) -> None:
    """What a dead worker committed is taken over; the bytes behind the commit word are cut off."""
    first = stage_of(handle, status)
    lane = lane_of(header, first)
    for _ in range(3):
        assert first.add(PRODUCER, lane, look(lane, 10))
    current = first.segments[-1].segment
    assert isinstance(current, OpenSegment)
    current.append(STREAM, PROCESS, 0, look(lane, 10).parts[0])  # and here it dies, before the commit
    second = stage_of(handle, status)
    assert stored(second) == 30
    again = lane_of(header, second)
    assert (again.staged_seq, again.staged_stored, again.lost) == (30, 30, [])
    assert second.add(PRODUCER, again, look(again, 10))
    assert again.staged_seq == header[layout.STAGED_SEQ] == 40


def test_segment_of_measurements_alone_is_sealed_late(handle, status, header) -> None:
    """A run that logs nothing makes two files an hour of them, and none a minute; what was logged is sealed in time."""
    stage = stage_of(handle, status)
    ours = lane_of(header, stage, MARKS["system"] + b"stream.0")
    assert stage.add(PRODUCER, ours, look(ours, 3))
    started = stage.segments[-1].started
    assert stage.seal_at == started + 30 * 60.0
    lane = lane_of(memoryview(bytearray(8 * layout.LANE_HEADER_WORDS)).cast("Q"), stage)
    assert stage.add(PRODUCER, lane, look(lane, 3))
    assert stage.seal_at == started + 60.0


def test_worker_that_dies_before_it_releases_repeats_nothing(handle, status, header) -> None:
    """Committed, and the lane not yet released: the successor knows the records by their seqs."""
    first = stage_of(handle, status)
    lane = lane_of(header, first)
    assert first.add(PRODUCER, lane, look(lane, 10))
    released = header[layout.RELEASED]
    assert first.add(PRODUCER, lane, look(lane, 5))
    header[layout.RELEASED], header[layout.STAGED_SEQ] = released, 10  # as if it had died in between
    again = lane_of(header, stage_of(handle, status))
    assert (again.staged_seq, again.reader.position) == (15, released)


def test_what_was_released_and_is_staged_nowhere_is_told_as_damaged(handle, status, header) -> None:
    """Somebody removed or broke a staged segment: the hole is named, once, with the next look."""
    first = stage_of(handle, status)
    lane = lane_of(header, first)
    assert first.add(PRODUCER, lane, look(lane, 10))
    for kept in handle.kept():
        if kept.name.endswith(".wal"):
            os.pwrite(kept.fd, b"\xff" * 300, 200)
    second = Stage(handle, status, SEGMENT, SPILL, 60.0, spooler_of(handle))
    second.adopt(lambda: None)
    again = lane_of(header, second)
    assert again.lost == [(1, 10)]
    assert second.add(PRODUCER, again, drain.nothing(again))
    assert (again.lost, again.staged_seq, again.staged_stored, again.staged_damaged) == ([], 10, 0, 10)
    third = stage_of(handle, status)
    once_more = lane_of(header, third)
    assert (once_more.lost, once_more.staged_seq, once_more.staged_damaged) == ([], 10, 10)


def test_every_worker_s_segments_sort_behind_all_earlier_ones(handle, status, header) -> None:
    """Also where an earlier build put a time there, and where the run folder shows a greater one than shared memory."""
    assert next_writer([]) < next_writer([next_writer([])])
    of_a_time = bytes.fromhex("18b3a01c2d4e5b69")
    assert next_writer([b"\0\0\0\x07abcd", of_a_time])[:4] > of_a_time[:4]
    stages = [stage_of(handle, status) for _ in range(3)]
    assert stages[0].writer[:4] < stages[1].writer[:4] < stages[2].writer[:4]
    last = stages[-1]
    lane = lane_of(header, last)
    assert last.add(PRODUCER, lane, look(lane, 10))
    last.stay_above(of_a_time)
    assert last.add(PRODUCER, lane, look(lane, 10))
    names = [staged.segment.name for staged in last.segments]
    assert names == sorted(names)
    assert names[-1] > of_a_time.hex()
    last.stay_above(of_a_time)
    assert len(last.segments) == 2
    taken_over = stage_of(handle, status)
    assert stored(taken_over) == 20
    assert taken_over.writer > last.writer


def test_damage_is_what_all_staged_segments_lack(handle, status, header) -> None:
    """A segment that is taken for an older one than it is makes no record of the others damaged."""
    first = stage_of(handle, status)
    lane = lane_of(header, first)
    for _ in range(3):
        assert first.add(PRODUCER, lane, look(lane, 10))
        first.close_current()
    assert len(first.segments) == 3
    first.segments.reverse()
    for staged in first.segments:
        staged.watermarks.clear()
    header[layout.RELEASED] = header[layout.STAGED_SEQ] = 0
    again = lane_of(header, first)
    assert (again.staged_seq, again.staged_stored, again.staged_damaged, again.lost) == (30, 30, 0, [])


def test_replaced_worker_stages_nothing_more(handle, status, header) -> None:
    """Another worker's name in the status page: this one must not touch the lanes again."""
    first = stage_of(handle, status)
    lane = lane_of(header, first)
    assert first.add(PRODUCER, lane, look(lane, 10))
    before = header.tolist()
    stage_of(handle, status)
    with pytest.raises(Replaced):
        first.add(PRODUCER, lane, look(lane, 10))
    assert header.tolist() == before


def test_beyond_the_spill_budget_lanes_are_left_alone(handle, status, header) -> None:
    """No room: nothing is released; when a segment is sealed there is room again."""
    stage = stage_of(handle, status)
    lane = lane_of(header, stage)
    while stage.has_room():
        assert stage.add(PRODUCER, lane, look(lane, 100))
    assert SPILL - 2 * SEGMENT <= stage.taken_bytes() <= SPILL
    before = header.tolist()
    assert not stage.add(PRODUCER, lane, look(lane, 100))
    assert header.tolist() == before
    for staged in stage.segments[:2]:
        staged.synced, staged.is_sealed = staged.end, True
    stage.settle()
    assert stage.has_room()
    assert header[layout.STAGED_SEQ] == lane.staged_seq
    assert lane.durable > 0


def test_sealed_segment_is_used_again(handle, status, header, monkeypatch) -> None:
    """C6-2: the mount is full: memory goes round between segments, wiped, and nothing is asked for."""
    Memory(handle, SEGMENT).prepare()
    stage = stage_of(handle, status)
    monkeypatch.setattr(os, "posix_fallocate", lambda fd, at, size: _full_mount(fd, size))
    lane = lane_of(header, stage)
    inodes = set()
    for _ in range(60):
        assert stage.add(PRODUCER, lane, look(lane, 100))
        for staged in stage.segments:
            inodes.add(os.fstat(staged.segment.fd).st_ino)
            if staged.is_complete:
                staged.synced, staged.is_sealed = staged.end, True
        stage.settle()
    assert len(inodes) == 2
    assert sorted(name.rpartition(".")[2] for name in os.listdir(handle.path)) == ["spare", "wal"]
    (spare,) = (kept for kept in handle.kept() if kept.name.endswith(".spare"))
    assert not any(os.pread(spare.fd, SEGMENT, 0))
    assert lane.durable + stored(stage) == 6_000


def test_look_that_found_no_room_is_staged_all_or_not_at_all(handle, status, header, monkeypatch) -> None:
    """C6-2: tmpfs is full in the middle of a look: nothing of it stays, not for a successor either; later all goes."""
    Memory(handle, SEGMENT).prepare()
    stage = stage_of(handle, status)
    lane = lane_of(header, stage)
    assert stage.add(PRODUCER, lane, look(lane, 10))
    before = header.tolist()
    large = look(lane, 200)
    large.parts += [look(lane, 4_000).parts[0]]  # the first part fits, the second does not
    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", lambda fd, at, size: _full_mount(fd, size))
        assert not stage.add(PRODUCER, lane, large)
    assert header.tolist() == before
    assert lane.staged_seq == 10
    assert stage.add(PRODUCER, lane, look(lane, 5))  # into another segment
    successor = stage_of(handle, status)
    again = lane_of(header, successor)
    assert (again.staged_seq, again.staged_stored, again.lost) == (15, 15, [])
    assert stored(successor) == 15
    assert successor.add(PRODUCER, again, look(again, 4_000))
    assert header[layout.STAGED_SEQ] == 4_015


def _full_mount(fd: int, size: int) -> None:
    if os.fstat(fd).st_size < size:
        raise OSError(28, "No space left on device")


def test_spare_memory_is_limited_and_the_rest_given_back(handle, status, header) -> None:
    """After a hang many segments are sealed at once: one spare is kept, the others give their memory back."""
    stage = stage_of(handle, status)
    lane = lane_of(header, stage)
    while stage.has_room():
        assert stage.add(PRODUCER, lane, look(lane, 100))
    stage.close_current()
    for staged in stage.segments:
        staged.synced, staged.is_sealed = staged.end, True
    stage.settle()
    assert stage.taken_bytes() == SEGMENT
    assert [name.rpartition(".")[2] for name in os.listdir(handle.path)] == ["spare"]
    assert len(list(handle.kept())) == 1


def test_removed_folder_keeps_its_memory_in_use(handle, status, header) -> None:
    """The folder is gone: segments are found and used again by descriptor, in this worker and in its successor."""
    Memory(handle, SEGMENT).prepare()
    stage = stage_of(handle, status)
    lane = lane_of(header, stage)
    assert stage.add(PRODUCER, lane, look(lane, 100))
    for name in os.listdir(handle.path):
        os.unlink(handle.file(name))
    os.rmdir(handle.public)
    handle.look()
    assert handle.is_removed
    for _ in range(3):
        for _ in range(30):
            assert stage.add(PRODUCER, lane, look(lane, 100))
            for staged in stage.segments:
                if staged.is_complete:
                    staged.synced, staged.is_sealed = staged.end, True
            stage.settle()
        left = stored(stage)
        stage = stage_of(handle, status)
        lane = lane_of(header, stage)
        assert stored(stage) == left
    assert lane.staged_seq == 9_100


def test_foreign_files_are_not_taken_over(handle, status) -> None:
    """Garbage, empty files, folders and links under names of segments stay out of the way of the others."""
    base = Path(handle.public)
    (base / "0123456789abcdef-000001.wal").write_bytes(random.Random(1).randbytes(5000))
    (base / "0123456789abcdef-000002.wal").write_bytes(b"")
    (base / "0123456789abcdef-000003.wal").symlink_to("/etc/passwd")
    (base / "0123456789abcdef-000004.wal").mkdir()
    (base / "0123456789abcdef-000005.wal").write_bytes(bytes(5000))
    (base / "x.spare").write_bytes(b"")
    stage = Stage(handle, status, SEGMENT, SPILL, 60.0, spooler_of(handle))
    troubles = stage.adopt(lambda: None)  # of its header, and of what follows
    assert troubles and all("0123456789abcdef-000001.wal" in trouble for trouble in troubles)
    assert stage.has_room()

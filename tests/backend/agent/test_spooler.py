"""The spool: memory is given back only for what is on the disk, and whoever comes next finds it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from logclient.shm import layout
from logclient.shm import shm_dir as shm_dirs
from logclient_backend.agent.host.shm_dir_handle import ShmDirHandle
from logclient_backend.agent.output import mounts, spool
from logclient_backend.agent.output.probe import SPOOL
from logclient_backend.agent.output.segment_pool import Memory
from logclient_backend.agent.output.spooler import SpooledSegment, Spooler
from logclient_backend.agent.output.stage import Stage
from logclient_backend.agent.settings import Settings
from logclient_backend.wal.reader import WalReader
from tests.listing import listed

from .test_stage import PRODUCER, SEGMENT, SPILL, STREAM, lane_of, look

SLOW_S = 20.0


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that a spool may lie in."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not mounts.is_disk(str(folder)):
        pytest.skip("the temporary folder is on no disk")
    monkeypatch.setattr(spool, "temporary_folders", list)
    return folder


@pytest.fixture
def header() -> memoryview:
    return memoryview(bytearray(8 * layout.LANE_HEADER_WORDS)).cast("Q")


def stage_of(handle: ShmDirHandle, status: memoryview, disk: Path, **settings: Any) -> tuple[Stage, Spooler]:
    """A worker's, whose run folder takes nothing."""
    facts = {"settings": {"spool_dir": str(disk), **settings}}
    spooler = Spooler(handle.shm_dir, handle.public, Settings(facts))
    spooler.folder = str(disk / "home" / "0123")
    made = Stage(handle, status, SEGMENT, SPILL, 60.0, spooler)
    assert made.adopt(lambda: None) == []
    return made, spooler


def until(condition: Any) -> None:
    deadline = time.monotonic() + SLOW_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def fill(stage: Stage, lane: Any, records: int) -> None:
    while lane.staged_seq < records:
        assert stage.add(PRODUCER, lane, look(lane, 100))


def spool_one(stage: Stage, spooler: Spooler) -> None:
    stage.spool()
    until(lambda: spooler.moved or spooler.moving is None)
    stage.settle()


def on_disk(stage: Stage) -> int:
    return sum(isinstance(staged.segment, SpooledSegment) for staged in stage.segments)


def files(disk: Path) -> list[Path]:
    return listed(disk, "logclient-spool-*/*/*.wal")


def test_moved_segments_give_their_memory_back_and_a_successor_knows_them(
    handle, status, header, disk
) -> None:
    """Half full: the oldest go to the disk, whole; a successor counts them, and who reads them meanwhile goes on."""
    stage, spooler = stage_of(handle, status, disk)
    lane = lane_of(header, stage)
    fill(stage, lane, 6_000)
    assert stage.is_half_full
    first = stage.segments[0]
    fd, whole = first.segment.fd, os.pread(first.segment.fd, first.end, 0)
    before = stage.taken_bytes()
    spool_one(stage, spooler)
    assert stage.taken_bytes() < before
    assert os.pread(fd, first.end, 0) == whole  # the copier's number leads to the disk now
    while stage.is_half_full:
        spool_one(stage, spooler)
    assert not stage.spool()
    assert len(files(disk)) == on_disk(stage) > 1
    other, _ = stage_of(handle, status, disk)
    again = lane_of(header, other)
    assert (again.staged_seq, again.staged_stored, again.lost) == (lane.staged_seq, lane.staged_stored, [])
    assert on_disk(other) == on_disk(stage)
    assert all(path.parent.stat().st_mode & 0o777 == 0o700 for path in files(disk))


def test_worker_that_dies_before_memory_is_given_back_repeats_nothing(handle, status, header, disk) -> None:
    """The note is written, the segment is still on tmpfs: that counts, and the copy on the disk is removed."""
    stage, spooler = stage_of(handle, status, disk)
    lane = lane_of(header, stage)
    fill(stage, lane, 6_000)
    stage.spool()
    until(lambda: spooler.moved)
    assert spooler.moved is not None
    staged = stage.segments[0].segment
    note = SpooledSegment(staged.name, spooler.moved[0], staged.end, 1, staged.summary).note()
    Memory(handle, SEGMENT).note(staged.name, note)  # and here it dies
    other, later = stage_of(handle, status, disk)
    assert lane_of(header, other).staged_stored == lane.staged_stored
    assert on_disk(other) == 0
    until(lambda: not files(disk))
    until(lambda: later.is_done)
    assert not any(name.endswith(".spooled") for name in os.listdir(handle.public))


def test_move_that_was_cut_off_is_made_again(handle, status, header, disk) -> None:
    """A file that a killed worker had begun to write is in nobody's way, and goes with the spool."""
    made = spool.make(handle.shm_dir, handle.public, str(disk / "home"), "", str(disk))
    begun = Path(made.path, f"{'0' * 16}-1.wal.new")
    begun.write_bytes(b"half")
    path = made.add(begun.name.removesuffix(".new"), b"whole")
    assert Path(path).read_bytes() == b"whole"
    os.unlink(path)
    made.leave()
    made.close()
    assert not os.path.exists(made.path)


def test_sealed_while_it_is_moved_leaves_nothing(handle, status, header, disk) -> None:
    """The run folder works again in this moment: what was written to the disk meanwhile goes."""
    stage, spooler = stage_of(handle, status, disk)
    lane = lane_of(header, stage)
    fill(stage, lane, 6_000)
    stage.spool()
    first = stage.segments[0]
    first.synced, first.is_sealed = first.end, True
    stage.settle()
    until(lambda: spooler.moved or spooler.moving is None)
    stage.settle()
    until(lambda: not files(disk))
    assert first not in stage.segments
    assert lane.stored > 0


def test_budget_no_disk_and_a_removed_shm_dir_keep_segments_in_memory(handle, status, header, disk) -> None:
    """Nothing is spooled beyond `spool_bytes`, on tmpfs, or where no note can be left."""
    stage, spooler = stage_of(handle, status, disk, spool_bytes=70_000)
    lane = lane_of(header, stage)
    fill(stage, lane, 6_000)
    for _ in range(3):
        spool_one(stage, spooler)
    assert on_disk(stage) == 1
    assert not spooler.is_ready  # for a while
    assert list(spool.folders("/dev/shm")) == []
    with pytest.raises(FileNotFoundError):
        spool.make(handle.shm_dir, handle.public, "/nowhere", "nfs", "/dev/shm")
    other, off = stage_of(handle, status, disk, spool_bytes=0)
    assert not off.is_ready
    assert lane_of(header, other).staged_stored == lane.staged_stored


def test_what_nobody_serves_comes_home_once_and_a_stranger_stays(
    handle, status, header, disk, tmp_path
) -> None:
    """No agent and no shm directory: sealed into the run folder; a folder that others may write to is not ours."""
    stage, spooler = stage_of(handle, status, disk)
    lane = lane_of(header, stage)
    fill(stage, lane, 6_000)
    spool_one(stage, spooler)
    spool_one(stage, spooler)
    (base,) = shm_dirs.bases_in(str(disk), SPOOL)
    squatter = Path(base).with_name(f"{SPOOL}-{os.getuid()}-x")
    squatter.mkdir()
    squatter.chmod(0o777)
    (one,) = spool.left(str(disk))  # a lock does not keep its own process out
    assert one.facts["folder"] == str(disk / "home" / "0123")
    assert spool.Spool(one.path).bring_home() == 2
    assert spool.left(str(disk)) == []
    assert os.listdir(squatter) == []
    assert not Path(base).exists()
    home = disk / "home" / "0123"
    spans = WalReader(str(home)).spans()
    expected = sum(len(each.segment.summary[STREAM].stored) for each in stage.segments[:2])
    assert spans[STREAM].records == expected


def test_folder_that_goes_while_it_is_listed_holds_nothing(disk, monkeypatch) -> None:
    """An agent that brought the last one home removes the folder right then: `logclient recover` goes on."""
    monkeypatch.setattr(shm_dirs, "bases_in", lambda *_: [str(disk / "gone")])
    assert spool.left(str(disk)) == []

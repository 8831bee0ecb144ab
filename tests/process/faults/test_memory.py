"""Shared memory that is small, full or mounted without the right to execute never ends a trainer (field case C6-2)."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tools.faults import tmpfs
from tools.faults.crash import account, training

from ..disturbed import Trainer, wait_until

pytestmark = pytest.mark.slow

GONE_S = 60.0
SHARE = 8  # a run takes at most 1/8 of what is free


@pytest.fixture
def set_shm(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    """Says which folder stands for /dev/shm."""
    return lambda path: monkeypatch.setenv("LOGCLIENT_SHM_DIR", str(path))


@contextmanager
def small(mib: float, set_shm, *, noexec: bool = False) -> Iterator[tmpfs.SmallTmpfs]:
    if reason := tmpfs.why_not():
        pytest.skip(reason)
    with tmpfs.SmallTmpfs(mib, noexec=noexec) as shm:
        set_shm(shm.path)
        yield shm


def lanes_bytes(trainer: Trainer) -> int:
    return sum(path.stat().st_blocks * 512 for path in Path(trainer.shm_dir).glob("*.lanes"))


def with_sizes(status: dict[str, Any]) -> list[str]:
    """Notices that say how much memory there is and how much was wanted."""
    return [
        line
        for line in status["notices"]
        if len(re.findall(r"\b\d[\d,.]*(?= (?:bytes|KiB|MiB)|\b)", line)) >= 2
    ]


@pytest.mark.root
@pytest.mark.timeout(60)
@pytest.mark.parametrize("noexec", [False, True])
def test_lanes_take_their_share_of_a_small_mount_and_no_more(run_dir, tmp_path, set_shm, noexec):
    """64 MiB of shared memory, a container's default, and lanes of 256 MiB wanted; also mounted noexec."""
    wanted = {"LOGCLIENT_LANES_BYTES": str(256 << 20)}
    with (
        small(64, set_shm, noexec=noexec) as shm,
        training(tmp_path, wanted, rate=5_000, records=10_000) as trainer,
    ):
        assert Path(trainer.shm_dir).is_relative_to(shm.path)
        assert 0 < lanes_bytes(trainer) <= (64 << 20) // SHARE
        status = trainer.end()
        trainer.wait_gone(GONE_S)
    found = account(run_dir, 10_000)
    assert not found.problems
    assert (found.stored, status["refused"]) == (10_000, 0)


@pytest.mark.root
@pytest.mark.timeout(60)
@pytest.mark.parametrize("left", [6 << 20, 1 << 20, 0])
def test_a_mount_filled_by_someone_else_before_init_gives_smaller_lanes_or_other_memory(
    run_dir, tmp_path, set_shm, left
):
    """C6-2 (a): with one notice that gives the sizes; never a SIGBUS, and the run is whole or counted."""
    wanted = {"LOGCLIENT_LANES_BYTES": str(32 << 20)}
    with small(64, set_shm) as shm:
        shm.fill(leave_bytes=left)
        with training(tmp_path, wanted, rate=2_000, records=4_000) as trainer:
            assert lanes_bytes(trainer) > 0
            if Path(trainer.shm_dir).is_relative_to(shm.path):
                assert lanes_bytes(trainer) <= left // SHARE
            else:
                assert left < 6 << 20, "there was room for smaller lanes"
            status = trainer.end()
            trainer.wait_gone(GONE_S)
    found = account(run_dir, 4_000)
    assert not found.problems
    assert found.stored + found.forgotten == 4_000
    assert len(with_sizes(status)) == 1, status["notices"]


@pytest.mark.root
@pytest.mark.timeout(60)
def test_a_mount_filled_after_init_does_no_harm(run_dir, tmp_path, set_shm, pace):
    """C6-2 (b): what is reserved is reserved; what spills no more is counted."""
    records = pace.count(600_000, least=30_000)
    with (
        small(32, set_shm) as shm,
        training(tmp_path, rate=10_000, records=records, finish_timeout_s=10.0) as trainer,
    ):
        wait_until(lambda: trainer.logged > 1_000, 20, "the trainer logs")
        shm.fill()
        status = trainer.end()
        shm.free()
        trainer.wait_gone(GONE_S)
    found = account(run_dir, records)
    assert not found.problems
    assert found.stored + found.forgotten == records
    assert status["refused"] == found.damaged == 0
    assert found.newest > 0, "the last record is not there"


@pytest.mark.timeout(60)
def test_a_mount_that_is_not_there_is_said_once_and_another_one_taken(run_dir, tmp_path, set_shm):
    """C6-2: not there."""
    set_shm(tmp_path / "nowhere")
    with training(tmp_path, rate=2_000, records=2_000) as trainer:
        status = trainer.end()
        trainer.wait_gone(GONE_S)
    assert not account(run_dir, 2_000).problems
    assert len([line for line in status["notices"] if str(tmp_path / "nowhere") in line]) == 1


@pytest.mark.root
@pytest.mark.timeout(60)
def test_a_mount_that_nobody_may_write_is_said_once_and_another_one_taken(run_dir, tmp_path, set_shm):
    """C6-2: not writable, for root neither."""
    set_shm("/proc")
    with pytest.raises(OSError) as told:
        os.mkdir("/proc/logclient-0")
    assert told.value.errno in (errno.ENOENT, errno.EACCES, errno.EPERM)
    with training(tmp_path, rate=2_000, records=2_000) as trainer:
        status = trainer.end()
        trainer.wait_gone(GONE_S)
    assert not account(run_dir, 2_000).problems
    assert len([line for line in status["notices"] if "/proc" in line]) == 1

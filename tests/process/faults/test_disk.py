"""A disk that hangs, is full, slow or broken delays records, and costs some only beyond the spill budget, counted.

The disk is frozen for 60 s, and the worker SIGKILLed three times meanwhile. Field case C2-2.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from logclient.shm import layout
from tools.faults import processes
from tools.faults.crash import account, kill_agents, recover, training

from ..disturbed import ROOMY, Trainer, stored, wait_until

pytestmark = [pytest.mark.root, pytest.mark.slow]

GONE_S = 60.0
SMALL = {
    "LOGCLIENT_LANES_BYTES": str(512 << 10),
    "LOGCLIENT_SEGMENT_BYTES": str(128 << 10),
    "LOGCLIENT_SPILL_BYTES": str(1 << 20),
}
FRAME_BYTES = 128  # header and ten floats


def run_folder() -> Path:
    return Path(os.environ["LOGCLIENT_DIR"])


def wait_durable(trainer: Trainer) -> None:
    """The disk works: something is past an fsync."""
    page = trainer.status_page()
    wait_until(lambda: page.words[layout.AGENT_WRITTEN] > 0, 30, "something is durable")


def wait_in_d(trainer: Trainer, deadline_s: float = 30.0) -> int:
    """The PID of the worker, as soon as one of its threads is in uninterruptible sleep, and stays there."""
    page = trainer.status_page()

    def hangs() -> int:
        pid = int(page.words[layout.AGENT_WORKER])
        for _ in range(5):
            if "D" not in processes.states_of_threads(pid).values():
                return 0
            time.sleep(0.02)
        return pid

    return int(wait_until(hangs, deadline_s, "the worker waits in state D"))


def wait_error(trainer: Trainer, number: int) -> None:
    page = trainer.status_page()
    wait_until(
        lambda: page.words[layout.AGENT_WRITE_ERROR] == number,
        30,
        f"writing fails with {os.strerror(number)}",
    )


def check_late_and_whole(trainer: Trainer) -> None:
    """After the fault: everything is stored, nothing was forgotten."""
    status = trainer.tell_to_end()
    trainer.wait_gone(GONE_S)
    found = account(run_folder(), trainer.logged)
    assert not found.problems
    assert (found.stored, found.forgotten, found.damaged) == (trainer.logged, 0, 0)
    assert status["refused"] == 0


@pytest.mark.timeout(180)
def test_a_frozen_disk_and_three_killed_workers_lose_nothing(disk, tmp_path, pace):
    """Frozen 60 s, then thawed: 0 lost within lane and spill budget."""
    stall_s = max(1.0, pace.seconds(5))
    seconds = max(pace.seconds(60), 8 * stall_s)
    with training(
        tmp_path, ROOMY | {"LOGCLIENT_STALL_S": str(stall_s)}, rate=2_000, until_told=True
    ) as trainer:
        wait_durable(trainer)
        page = trainer.status_page()
        with disk.frozen():
            begin = time.monotonic()
            for _ in range(3):
                worker = wait_in_d(trainer)
                assert processes.send(worker, signal.SIGKILL)
                assert "D" in processes.states_of_threads(worker).values(), (
                    "SIGKILL reached it: no real D state"
                )
                wait_until(lambda: page.words[layout.AGENT_WORKER] != worker, 30, "another worker starts")  # noqa: B023
            drained = page.words[layout.AGENT_DRAINED]
            wait_until(lambda: page.words[layout.AGENT_DRAINED] > drained, 30, "the last worker drains")
            assert page.words[layout.AGENT_WRITE_PENDING] > 0
            time.sleep(max(0.0, begin + seconds - time.monotonic()))
        check_late_and_whole(trainer)


@pytest.mark.timeout(120)
def test_beyond_the_spill_budget_the_gap_is_exact_and_the_newest_are_kept(disk, tmp_path, pace):
    """Frozen until after the trainer's end, with more records than spill and lanes can hold."""
    records = pace.count(1_000_000, least=50_000)
    with training(tmp_path, SMALL, records=records, rate=20_000, finish_timeout_s=1.0) as trainer:
        wait_durable(trainer)
        page = trainer.status_page()
        (lanes,) = Path(trainer.shm_dir).glob("*.lanes")
        words = memoryview(lanes.read_bytes()[: layout.KEYS_OFFSET]).cast("Q")
        room = words[layout.LANE_HEADERS + layout.LANE_BYTES] // FRAME_BYTES
        with disk.frozen():
            wait_in_d(trainer)
            status = trainer.end()
            assert status["durable"] < records
            spilled = page.words[layout.AGENT_SPILL_BYTES]
        trainer.wait_gone(GONE_S)
    assert spilled <= int(SMALL["LOGCLIENT_SPILL_BYTES"])
    found = account(run_folder(), records)
    assert not found.problems
    assert found.forgotten > 0, "the budget was never used up: the test shows nothing"
    assert found.damaged == 0
    assert found.newest >= room * 15 // 16


@pytest.mark.timeout(120)
def test_a_full_disk_that_gets_room_again_loses_nothing(disk, tmp_path, pace):
    """ENOSPC for a while: late, never lost."""
    with training(tmp_path, ROOMY, rate=2_000, until_told=True) as trainer:
        wait_durable(trainer)
        disk.fill()
        try:
            wait_error(trainer, errno.ENOSPC)
            time.sleep(pace.seconds(40))
        finally:
            disk.free()
        check_late_and_whole(trainer)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("call", ["write", "fsync", "create"])
def test_a_disk_that_fails_for_a_while_loses_nothing(mount, tmp_path, pace, call):
    """EIO: late, never lost. New files are made all the time: segments are small."""
    settings = ROOMY | {"LOGCLIENT_SEGMENT_BYTES": str(128 << 10)}
    with training(tmp_path, settings, rate=2_000, until_told=True) as trainer:
        wait_durable(trainer)
        mount.fail(call, errno.EIO, times=-1)
        try:
            wait_error(trainer, errno.EIO)
            time.sleep(pace.seconds(40))
        finally:
            mount.fail(call, errno.EIO, times=0)
        check_late_and_whole(trainer)


@pytest.mark.timeout(120)
def test_a_used_up_quota_that_is_raised_loses_nothing(mount, tmp_path, pace):
    """EDQUOT in the middle of a write, to the byte."""
    with training(tmp_path, ROOMY, rate=2_000, until_told=True) as trainer:
        wait_durable(trainer)
        mount.limit(10_001, errno.EDQUOT)
        try:
            wait_error(trainer, errno.EDQUOT)
            time.sleep(pace.seconds(40))
        finally:
            mount.limit(None)
        check_late_and_whole(trainer)


@pytest.mark.timeout(120)
def test_a_disk_gone_read_only_keeps_the_records_in_memory_until_it_is_mended(disk, tmp_path, pace):
    """As after a disk error: EROFS also on open files. The trainer ends in time; power off and on; `recover`."""
    records = pace.count(100_000, least=6_000)
    with training(tmp_path, records=records, rate=2_000, finish_timeout_s=1.0) as trainer:
        wait_durable(trainer)
        disk.remount_ro(force=True)
        wait_error(trainer, errno.EROFS)
        status = trainer.end()
        assert status["accepted"] == records
        assert status["durable"] < records
        kill_agents()
        disk.power_cut()
        durable = stored(run_folder()).records
        assert durable >= status["durable"], "what was called durable is gone"
        recover(trainer.shm_dir)
        trainer.wait_gone(GONE_S)
    found = account(run_folder(), records)
    assert not found.problems
    assert (found.stored, found.forgotten, found.damaged) == (records, 0, 0)


ROWS = """
import os, time, logclient
def mark(name):
    try:
        os.stat(f"/nowhere/{name}")
    except OSError:
        pass
run = logclient.init("rows", quiet=True)
mark("rows")
for step in range(861):
    run.log(step, {"a": step / 2, "b": step / 4, "c": 1.0})
    time.sleep(0.001)
mark("finish")
run.finish(60)
mark("end")
assert run.status()["durable"] == 861, run.status()
"""
OPENING = {"open", "openat", "creat"}
WRITING = {"write", "pwrite64", "writev", "pwritev", "fsync", "fdatasync", "sync"}
TALKING = {"socket", "connect", "sendto", "sendmsg"}
FILE_CALLS = OPENING | WRITING | TALKING


@pytest.mark.timeout(120)
def test_slow_fsyncs_are_few_and_none_is_the_trainers(mount, tmp_path, pace):
    """Field case C2-2: 861 rows of 3 metrics, fsync takes 80 ms."""
    trace = tmp_path / "trace"
    mount.delay("fsync", 0.08)
    tracing = ["strace", "-qq", "-o", str(trace)]  # not -f: the process alone; it has one thread
    subprocess.run([*tracing, sys.executable, "-c", ROWS], check=True, timeout=90)
    wait_until(lambda: not any(Path(os.environ["LOGCLIENT_SHM_DIR"]).iterdir()), GONE_S, "the agent leaves")
    fsyncs = mount.counts()["fsync"]
    called = {name: set() for name in ("init", "rows", "finish", "end")}
    part, pipes = "init", set()
    for line in trace.read_text().splitlines():
        if "/nowhere/" in line:
            part = line.partition("/nowhere/")[2].partition('"')[0]
        elif '.wake", ' in line and "O_NONBLOCK" in line:
            pipes.add(line.rpartition(" ")[2])  # the descriptor of a pipe that wakes the agent
        elif line.startswith("write(") and line[6:].partition(",")[0] in pipes:
            assert ', "\\0", 1)' in line, line
        else:
            called[part].add(line.partition("(")[0])
    assert part == "end"
    assert not called["rows"] & FILE_CALLS
    assert not called["finish"] & FILE_CALLS
    assert 0 < fsyncs < 861 / 10

"""An ext4 that freezes, is full, fails or loses power, and is gone afterwards whatever happened."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.traces import ROOT, line_of, python, traces_of, wait_until_state
from tools.faults import frozen, full, processes
from tools.faults.fault import GuardLost, LeftBehind
from tools.faults.frozen import LoopExt4

WHY_NOT = frozen.why_not()
pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(60),
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
]

MIB = 32  # mkfs.ext4 makes a journal from about 8 MiB on
APPEND = "import sys; open(sys.argv[1], 'ab').write(b'x')"
HOLD = "import sys, time; f = open(sys.argv[1], 'wb', 0); print(flush=True); time.sleep(60)"


def raised(call: Callable[[], object]) -> int | None:
    """The errno of the OSError that the call ends in."""
    with pytest.raises(OSError) as caught:
        call()
    return caught.value.errno


def nothing_left(name: str) -> bool:
    return not traces_of(name, Path(tempfile.gettempdir()))


def test_writer_hangs_in_d_where_sigkill_does_not_reach_it() -> None:
    """A write to the frozen disk is in D at once; SIGKILL waits there; after the thaw the writer dies of it."""
    with LoopExt4(MIB) as disk, disk.frozen(at_most_s=30), python(APPEND, disk.path / "file") as writer:
        wait_until_state(writer, "D")
        assert writer.pid in processes.children_in_state_d()
        assert not processes.is_doomed(writer.pid)
        writer.kill()
        processes.wait_until(lambda: processes.is_doomed(writer.pid), 5)
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(0.3)
        assert processes.state_of(writer.pid) == "D"
        assert disk.thaw()
        assert writer.wait(10) == -signal.SIGKILL
    assert nothing_left(disk.name)


def test_hung_writer_goes_on_after_the_thaw() -> None:
    """What was waiting to be written while frozen is written."""
    with LoopExt4(MIB) as disk:
        with disk.frozen(at_most_s=30):
            writer = subprocess.Popen([sys.executable, "-c", APPEND, disk.path / "file"])
            wait_until_state(writer, "D")
        assert writer.wait(10) == 0
        assert (disk.path / "file").read_bytes() == b"x"


def test_frozen_disk_can_be_read() -> None:
    """Reading, listing and opening what is there go on while frozen."""
    with LoopExt4(MIB) as disk:
        (disk.path / "file").write_text("text")
        with disk.frozen(at_most_s=30):
            assert (disk.path / "file").read_text() == "text"
            assert "file" in os.listdir(disk.path)


def test_freeze_ends_at_its_time_limit() -> None:
    """Nobody thaws: the guard does, at the limit, and thaw() says that it was thawed before."""
    with LoopExt4(MIB) as disk:
        disk.freeze(at_most_s=0.5)
        with python(APPEND, disk.path / "file") as writer:
            wait_until_state(writer, "D")
            assert writer.wait(10) == 0
        assert not disk.thaw()
    assert nothing_left(disk.name)


def test_guard_does_not_touch_what_it_froze() -> None:
    """What would hang the guard is refused, and the guard still thaws."""
    with LoopExt4(MIB) as disk:
        disk.freeze(at_most_s=30)
        for call in (disk.fill, disk.free, disk.shutdown, disk.power_cut, disk.remount_ro, disk.remount_rw):
            with pytest.raises(RuntimeError, match="thaw it first"):
                call()
        assert disk.thaw()


def test_full_disk_refuses_the_next_block() -> None:
    """Full to the last block: a new block gets ENOSPC; with bytes left about those can be had."""
    with LoopExt4(MIB) as disk:
        disk.fill()
        assert full.free_bytes(disk.path) == 0
        assert raised(lambda: (disk.path / "file").write_bytes(b"x" * full.ROUND)) == errno.ENOSPC
        disk.free()
        (disk.path / "file").write_bytes(b"x" * full.ROUND)
        disk.fill(leave_bytes=100 * full.ROUND)
        assert 95 * full.ROUND <= full.free_bytes(disk.path) <= 105 * full.ROUND
    assert nothing_left(disk.name)


def test_shut_down_disk_gives_eio() -> None:
    """Write, fsync, create and read get EIO."""
    with LoopExt4(MIB) as disk, open(disk.path / "file", "wb", 0) as file:
        disk.shutdown()
        assert raised(lambda: file.write(b"x")) == errno.EIO
        assert raised(lambda: os.fsync(file.fileno())) == errno.EIO
        assert raised(lambda: (disk.path / "new").touch()) == errno.EIO
        assert raised((disk.path / "file").read_bytes) == errno.EIO
        file.close()
    assert nothing_left(disk.name)


def test_power_cut_loses_what_was_not_synced() -> None:
    """What fsync returned for is there afterwards, what was only written is not."""
    with LoopExt4(MIB) as disk:
        with open(disk.path / "file", "wb", 0) as file:
            file.write(b"synced")
            os.fsync(file.fileno())
            file.write(b" and lost")
            assert raised(disk.power_cut) == errno.EBUSY
        disk.power_cut()
        assert (disk.path / "file").read_bytes() == b"synced"
        (disk.path / "file").write_bytes(b"works again")
    assert nothing_left(disk.name)


def test_read_only_disk_gives_erofs() -> None:
    """Not while a file is open for writing, unless forced; forced, the open file gets EROFS too."""
    with LoopExt4(MIB) as disk:
        disk.remount_ro()
        assert raised(lambda: (disk.path / "file").touch()) == errno.EROFS
        disk.remount_rw()
        with open(disk.path / "file", "wb", 0) as file:
            assert raised(disk.remount_ro) == errno.EBUSY
            file.write(b"x")
            disk.remount_ro(force=True)
            assert raised(lambda: file.write(b"x")) == errno.EROFS
        disk.power_cut()
        (disk.path / "file").write_bytes(b"works again")
    assert nothing_left(disk.name)


def test_busy_disk_kills_whom_it_may() -> None:
    """A user of the mount that was named dies with it."""
    with LoopExt4(MIB) as disk, python(HOLD, disk.path / "file") as user:
        line_of(user)
        disk.kill_if_busy(user.pid)
        disk.__exit__(None, None, None)
        assert user.wait(5) == -signal.SIGKILL
    assert nothing_left(disk.name)


def test_busy_disk_spares_others_and_tells() -> None:
    """A user of the mount that was not named lives on, is told about, and what is left goes with it."""
    with LoopExt4(MIB) as disk, python(HOLD, disk.path / "file") as user:
        line_of(user)
        with pytest.raises(LeftBehind, match=rf"used by \[{user.pid}\]"):
            disk.__exit__(None, None, None)
        assert processes.is_alive(user.pid)
    processes.wait_until(lambda: nothing_left(disk.name), 10)


OWNER = """
import os, sys, time
from tools.faults.frozen import LoopExt4

with LoopExt4(32) as disk:
    disk.freeze(at_most_s=50)
    print(disk.name, disk.guard_pid, flush=True)
    {then}
    time.sleep(60)
"""
THENS = {
    "asleep": "pass",
    "hung itself": "open(disk.path / 'file', 'w')",
    "with a hung child that holds its pipes": "os.fork() or (open(disk.path / 'file', 'w'), os._exit(0))",
    "with a hung thread": "import threading; threading.Thread(target=open, args=(disk.path / 'x', 'w')).start()",
}


def hung_family(pid: int) -> list[int]:
    """The process and its descendants, if at least one of them hangs."""
    family = [pid, *processes.children_of(pid)]
    return family if any("D" in processes.states_of_threads(member).values() for member in family) else []


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("then", THENS.values(), ids=THENS.keys())
def test_killed_owner_leaves_nothing(then: str, signum: signal.Signals) -> None:
    """Killed in mid-freeze, the owner dies at once, and disk, loop device, guard and folder go with it."""
    with python(OWNER.format(then=then)) as owner:
        name = line_of(owner).split()[0]
        family = [owner.pid]
        if then != "pass":
            family = processes.wait_until(lambda: hung_family(owner.pid), 10)
        owner.send_signal(signum)
        assert owner.wait(10) == -signum  # the freeze's own limit is 50 s
        processes.wait_until(lambda: nothing_left(name), 15)
        processes.wait_until(lambda: not any(map(processes.is_alive, family)), 15)


def test_killed_guard_is_made_up_for() -> None:
    """The guard dies in mid-freeze: the next request says so, and thaws and removes what it held."""
    with LoopExt4(MIB) as disk:
        disk.freeze(at_most_s=50)
        with python(APPEND, disk.path / "file") as writer:
            wait_until_state(writer, "D")
            os.kill(disk.guard_pid, signal.SIGKILL)
            with pytest.raises(GuardLost):
                disk.thaw()
            assert writer.wait(10) == 0
    assert nothing_left(disk.name)


def test_sweep_removes_what_dead_guards_held() -> None:
    """Owner and guard die both: the frozen disk stays until `sweep`, which leaves living faults alone."""
    with LoopExt4(MIB) as alive, python(OWNER.format(then="pass")) as owner:
        name, guard = line_of(owner).split()
        os.kill(int(guard), signal.SIGKILL)
        owner.kill()
        owner.wait()
        assert not nothing_left(name)
        done = subprocess.run([sys.executable, "-m", "tools.faults.sweep"], cwd=ROOT, timeout=40, check=False)
        assert done.returncode == 0
        assert nothing_left(name)
        (alive.path / "file").write_bytes(b"untouched")


def test_disk_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    """An error while the fault is made is raised, and what was made so far is removed."""
    disk = LoopExt4(MIB, folder=tmp_path / "nobody makes it")
    with pytest.raises(FileNotFoundError), disk:
        pass
    assert nothing_left(disk.name)


SCRIPT = """
import sys, time
with open(sys.argv[1] + "/file", "wb", 0) as file:
    for _ in range(80):
        file.write(b"x")
        time.sleep(0.01)
"""


def test_command_line_freezes_while_the_command_runs() -> None:
    """From a shell: the command hangs for as long as it was asked for, then ends well."""
    tool = [sys.executable, "-m", "tools.faults.frozen", "--size", str(MIB), "--seconds", "0.5", "--"]
    command = [*tool, sys.executable, "-c", SCRIPT, "{}"]
    begun = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begun >= 0.5 + 80 * 0.01
    assert nothing_left(Path(done.stderr.splitlines()[0]).parent.name)

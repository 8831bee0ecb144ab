"""A small tmpfs that can be full."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.tools.traces import ROOT, traces_of
from tools.faults import tmpfs
from tools.faults.tmpfs import SmallTmpfs

WHY_NOT = tmpfs.why_not()
pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(60),
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
]

PAGE = 4096


def reserve(path: Path, size: int) -> None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(handle, 0, size)
    finally:
        os.close(handle)


def test_full_tmpfs_refuses_a_reservation() -> None:
    """With the last page taken posix_fallocate gets ENOSPC; with pages left exactly those can be had."""
    with SmallTmpfs(2) as shm:
        reserve(shm.path / "early", 64 * PAGE)
        shm.fill()
        with pytest.raises(OSError) as caught:
            reserve(shm.path / "late", PAGE)
        assert caught.value.errno == errno.ENOSPC
        (shm.path / "early").write_bytes(b"x" * 64 * PAGE)  # reserved before, so still there to be written
        shm.free()
        reserve(shm.path / "late", PAGE)
        shm.fill(leave_bytes=3 * PAGE)
        reserve(shm.path / "last", 3 * PAGE)
        with pytest.raises(OSError):
            reserve(shm.path / "one too many", PAGE)
    assert traces_of(shm.name, shm.base.parent) == []


def test_noexec_tmpfs_executes_nothing() -> None:
    """A program on it cannot be run, nor mapped for execution, when asked for noexec; else it can."""
    for noexec in (True, False):
        with SmallTmpfs(1, noexec=noexec) as shm:
            program = shm.path / "program"
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
            if noexec:
                with pytest.raises(PermissionError):
                    subprocess.run([program], check=True)
            else:
                subprocess.run([program], check=True)


SCRIPT = """
import errno, os, sys, time

def is_full():
    return os.statvfs(sys.argv[1]).f_bavail == 0

assert sys.argv[1] == os.environ["FAULT_DIR"]
while not is_full():
    time.sleep(0.01)
try:
    open(sys.argv[1] + "/file", "wb", 0).write(b"x")
except OSError as error:
    assert error.errno == errno.ENOSPC
else:
    sys.exit("not full")
while is_full():
    time.sleep(0.01)
sys.exit(7)
"""


def test_command_line_fills_while_the_command_runs() -> None:
    """From a shell: the command sees it full, then free again, and its exit code is passed on."""
    tool = [sys.executable, "-m", "tools.faults.tmpfs", "--size", "1", "--seconds", "2", "--"]
    command = [*tool, sys.executable, "-c", SCRIPT, "{}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 7, done.stderr
    base = Path(done.stderr.splitlines()[0]).parent
    assert traces_of(base.name, Path(tempfile.gettempdir())) == []

"""The fixtures that all tests lean on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Pace, kill_all_with

FORKS_AND_STOPS = "import os, signal; os.fork(); print(flush=True); os.kill(os.getpid(), signal.SIGSTOP)"


def test_leftovers_of_a_run_are_killed(run_dir: Path) -> None:
    """A process started with the meeting place, and one it forked, die even when stopped; others live."""
    setting = f"LOGCLIENT_SHM_DIR={os.environ['LOGCLIENT_SHM_DIR']}"
    elsewhere = {**os.environ, "LOGCLIENT_SHM_DIR": "/dev/shm/another"}
    with (
        subprocess.Popen([sys.executable, "-c", FORKS_AND_STOPS], stdout=subprocess.PIPE) as ours,
        subprocess.Popen(["sleep", "60"], env=elsewhere) as foreign,
    ):
        try:
            assert ours.stdout is not None
            assert [ours.stdout.readline() for _ in range(2)] == [b"\n", b"\n"]
            kill_all_with(setting)
            assert ours.stdout.read() == b""  # the end of the pipe: both writers are gone
            assert ours.wait() == -9
            assert foreign.poll() is None
        finally:
            foreign.kill()


def test_run_dir_is_the_tests_own(run_dir: Path) -> None:
    """Client code finds folder and meeting place through its settings."""
    assert os.environ["LOGCLIENT_DIR"] == str(run_dir)
    assert Path(os.environ["LOGCLIENT_SHM_DIR"]).parent == Path("/dev/shm")


def test_pace_scales_waits_and_counts() -> None:
    """Counts never fall below what the test still needs."""
    assert Pace(20).seconds(60) == 3
    assert Pace(1).count(1_000) == 1_000
    assert Pace(20).count(1_000) == 50
    assert Pace(20).count(10, least=5) == 5


@pytest.mark.root
def test_root_tests_run_as_root_only() -> None:
    """The marker alone is enough."""
    assert os.getuid() == 0

"""The fixtures that all tests lean on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Pace, kill_all_with

ROOT = Path(__file__).resolve().parents[2]
FORKS_AND_STOPS = "import os, signal; os.fork(); print(flush=True); os.kill(os.getpid(), signal.SIGSTOP)"


def test_leftovers_of_a_run_are_killed(run_dir: Path) -> None:
    """A process started with the shm directory, and one it forked, die even when stopped; others live."""
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
    """Client code finds folder and shm directory through its settings."""
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


@pytest.mark.first_is_quick
@pytest.mark.parametrize("case", ["first", "second", "third"])
def test_all_cases_but_the_first_are_slow(case: str, request: pytest.FixtureRequest) -> None:
    """Of a test that is marked so, and of no other."""
    name = request.node.nodeid.partition("[")[0]
    first = next(item for item in request.session.items if item.nodeid.startswith(f"{name}["))
    assert (request.node.get_closest_marker("slow") is None) is (request.node is first)


GROUPED = """
import os, pytest

@pytest.mark.root
@pytest.mark.parametrize("number", range(12))
def test_one_of_many(number):
    with open(os.environ["WHERE"], "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


@pytest.mark.slow
def test_a_group_of_tests_is_one_workers_business(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests marked `root` must not run beside each other. With some releases of pytest, xdist ignores groups."""
    (tmp_path / "test_grouped.py").write_text(GROUPED)
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import pytest_addoption, pytest_collection_modifyitems\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 60\nmarkers = root\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("WHERE", str(tmp_path / "workers"))
    words = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    subprocess.run([*words, "."], cwd=tmp_path, check=True, timeout=120, stdout=subprocess.PIPE)
    workers = (tmp_path / "workers").read_text().split()
    assert len(workers) == 12 and len(set(workers)) == 1

"""The state of a run at a collector, from its first second to its last, by the collector's clock."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.listing import contents
from tools.collector import Collector
from tools.faults.processes import stopped

from ..agents import SUPERVISOR, WORKER
from ..disturbed import Trainer, wait_until
from ..shipped import PATIENCE_S, SHIPPER


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Collector]:
    """It loses patience soon."""
    made = Collector(tmp_path / "data", "--late", "3", "--lost", "10", roles=())
    try:
        made.start()
        yield made
    finally:
        made.kill()


def state_at(server: Collector, run: str) -> str:
    answer = server.get(f"/api/v1/run?run={quote(run, safe='')}")
    return str(answer.json()["state"]) if answer.status_code == 200 else ""


def trainer_of(server: Collector, folder: Path) -> Trainer:
    env = {
        "LOGCLIENT_SERVER": server.address,
        "LOGCLIENT_TOKEN": server.token,
        "LOGCLIENT_STALL_S": "60",
    }
    return Trainer(folder, env, rate=50, until_told=True)


@pytest.mark.slow
def test_silence_is_late_then_lost_until_something_comes_again(
    server: Collector, run_dir: Path, tmp_path: Path
) -> None:
    """Its host may be gone, or the cable: nothing is said that is not known, and nothing stays said."""
    trainer = trainer_of(server, tmp_path)

    def becomes(state: str) -> None:
        wait_until(lambda: state_at(server, trainer.run_id) == state, PATIENCE_S, f"it is {state}")

    trainer.wait_shipped(10)
    becomes("running")
    pids = [trainer.agent_pid(which) for which in (SUPERVISOR, WORKER, SHIPPER)]
    with stopped(pids[0]), stopped(pids[1]), stopped(pids[2]):
        becomes("late")
        becomes("lost")
    becomes("running")
    trainer.kill(signal.SIGUSR1)
    trainer.end()
    becomes("finished")
    row = server.get(f"/api/v1/run?run={quote(trainer.run_id, safe='')}").json()
    assert row["records"] == row["counts"]["accepted"] == trainer.logged
    assert row["ended_ns"] >= row["created_ns"] > 0


@pytest.mark.slow
def test_run_that_was_heard_by_a_clock_that_was_ahead_is_lost_all_the_same(
    server: Collector, run_dir: Path, tmp_path: Path
) -> None:
    """What a collector with a wrong clock stored lies in the future; the clock is set right, and it is restarted."""
    trainer = trainer_of(server, tmp_path)
    trainer.wait_shipped(10)
    pids = [trainer.agent_pid(which) for which in (SUPERVISOR, WORKER, SHIPPER)]
    with stopped(pids[0]), stopped(pids[1]), stopped(pids[2]):
        server.stop()
        with sqlite3.connect(server.data / "store" / "store.db") as store:
            store.execute("UPDATE runs SET last_seen_ns=last_seen_ns+?", (3600 * 10**9,))
        server.start()
        wait_until(lambda: state_at(server, trainer.run_id) == "lost", PATIENCE_S, "it is lost")
    wait_until(lambda: state_at(server, trainer.run_id) == "running", PATIENCE_S, "it is running")
    trainer.kill(signal.SIGUSR1)
    trainer.end()


def test_trainer_that_is_killed_is_told_as_killed(server: Collector, run_dir: Path, tmp_path: Path) -> None:
    """By its agent, which outlives it."""
    trainer = trainer_of(server, tmp_path)
    trainer.wait_shipped(10)
    trainer.end_by(signal.SIGKILL)
    wait_until(lambda: state_at(server, trainer.run_id) == "killed", PATIENCE_S, "it is killed")


def test_token_is_in_no_file_of_the_run_and_no_command_line(
    server: Collector, run_dir: Path, tmp_path: Path
) -> None:
    """Neither on disk, nor in shared memory, nor where `ps` shows it."""
    trainer = trainer_of(server, tmp_path)
    trainer.wait_shipped(10)
    token = server.token.encode()
    for which in (SUPERVISOR, WORKER, SHIPPER):
        pid = trainer.agent_pid(which)
        assert token not in Path(f"/proc/{pid}/cmdline").read_bytes()
    for base in (run_dir, Path(trainer.shm_dir)):
        for path, content in contents(base):
            assert token not in content, path
    trainer.kill(signal.SIGUSR1)
    trainer.end()

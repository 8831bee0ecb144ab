"""Crashes of the agent at named points and at random lose nothing, store nothing twice, and keep the account exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from logclient.shm import layout
from logclient_backend.failpoint import POINTS
from tools.faults import crash, processes

from ..disturbed import wait_until
from ..scripts import agents

ROOT = Path(__file__).parents[3]
VISITS = {"worker.leave": 1, "copy.seal": 2, "copy.sealed": 2}  # of the others the third


@pytest.mark.slow
@pytest.mark.timeout(90)
@pytest.mark.parametrize("point", [point for point in POINTS if not point.startswith("media.")])
def test_a_worker_that_dies_at_this_point_loses_and_repeats_nothing(run_dir, tmp_path, pace, point):
    """Every worker is SIGKILLed when it gets there; at last a sound agent stores what is left."""
    settings = {f"LOGCLIENT_{name}": value for name, value in crash.SETTINGS.items()}
    settings["LOGCLIENT_FAILPOINTS"] = f"{point}=kill:{VISITS.get(point, 3)}"
    seconds = pace.seconds(20)
    with crash.training(tmp_path, settings, rate=5_000, seconds=seconds, finish_timeout_s=0.5) as trainer:
        page = trainer.status_page()
        trainer.end()
        wait_until(
            lambda: page.words[layout.AGENT_RESTARTS] or not os.path.exists(trainer.shm_dir),
            30,
            "a worker dies there, or all is done",
        )
        assert page.words[layout.AGENT_RESTARTS] > 0, f"no worker got to {point}"
        crash.kill_agents()
        crash.recover(trainer.shm_dir)
        trainer.wait_gone(60)
        wait_until(lambda: not any(map(processes.is_alive, agents())), 10, "no process is left")
        logged = trainer.logged
    found = crash.account(run_dir, logged)
    assert not found.problems
    assert (found.stored, found.forgotten, found.damaged) == (logged, 0, 0)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [1, 2])
def test_random_crashes_keep_the_account_exact(seed, pace):
    """`tools/faults/crash.py`, the command that `make soak` runs with more seeds."""
    words = [sys.executable, "tools/faults/crash.py", "--seed", str(seed), "--seconds", str(pace.seconds(80))]
    done = subprocess.run(
        words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=110 * 20 / pace
    )
    result = json.loads(done.stdout)
    assert result["problems"] == []
    assert done.returncode == 0
    assert result["killed"] > 0
    assert result["accepted"] == result["stored"] + result["forgotten"] + result["damaged"] > 0


def test_an_account_that_does_not_hold_is_told(run_dir, tmp_path):
    """The check itself: one record more logged than stored, and there is a problem."""
    with crash.training(tmp_path, records=100) as trainer:
        trainer.end()
        trainer.wait_gone()
    assert crash.account(run_dir, 100).problems == []
    assert crash.account(run_dir, 101).problems == ["101 records logged, 100 accounted for"]

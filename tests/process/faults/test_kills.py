"""Killing or stopping the agent costs no record that the lanes have room for, and never an uncounted one.

The worker is SIGKILLed 100 times, both processes are killed for good, and either is stopped.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from logclient.shm import layout
from tools.faults import processes
from tools.faults.crash import account, kill_agents, recover, training

from ..disturbed import ROOMY, Trainer, wait_until

pytestmark = pytest.mark.slow

FRAME_BYTES = 128  # header and ten floats
SMALL_LANES = str(512 << 10)
GONE_S = 60.0


def kill_worker_at_random(trainer: Trainer, times: int, seconds: float) -> None:
    """SIGKILL whoever is the worker so often, at random moments of that time."""
    rng = random.Random(times)
    page = trainer.status_page()
    begin = time.monotonic()
    moments = sorted(rng.uniform(0, seconds) for _ in range(times))
    for moment in moments:
        time.sleep(max(0.0, begin + moment - time.monotonic()))
        wait_until(
            lambda: processes.send(int(page.words[layout.AGENT_WORKER]), signal.SIGKILL), 20, "a worker lives"
        )


def lane_records(trainer: Trainer) -> int:
    """How many records the trainer's first lane can hold."""
    (path,) = Path(trainer.shm_dir).glob("*.lanes")
    words = memoryview(path.read_bytes()[: layout.KEYS_OFFSET]).cast("Q")
    return int(words[layout.LANE_HEADERS + layout.LANE_BYTES]) // FRAME_BYTES


@pytest.mark.timeout(120)
def test_a_worker_killed_a_hundred_times_loses_nothing_and_stores_nothing_twice(run_dir, tmp_path, pace):
    """1,000,000 records at 20,000 a second."""
    records = pace.count(1_000_000, least=40_000)
    kills = pace.count(100, least=5)
    with training(tmp_path, ROOMY, records=records, rate=20_000) as trainer:
        trainer.agent_pid()
        kill_worker_at_random(trainer, kills, 0.9 * records / 20_000)
        status = trainer.end()
        trainer.wait_gone(GONE_S)
    found = account(run_dir, records)
    assert not found.problems
    assert (found.stored, found.forgotten, found.damaged) == (records, 0, 0)
    assert status["refused"] == 0


@pytest.mark.timeout(240)
def test_flat_out_with_a_worker_killed_all_that_was_logged_is_stored_or_counted(run_dir, tmp_path, pace):
    """Logged = stored + forgotten, exact, per stream. Four kills a second: ever faster ones end the restarts."""
    kills = pace.count(100, least=5)
    with training(tmp_path, {"LOGCLIENT_LANES_BYTES": SMALL_LANES}, until_told=True) as trainer:
        room = lane_records(trainer)
        with processes.stopped(trainer.agent_pid()):
            wanted = trainer.logged + 2 * room
            wait_until(lambda: trainer.logged > wanted, 60, "the lanes overflow")
        kill_worker_at_random(trainer, kills, kills / 4)
        wait_until(lambda: trainer.logged >= pace.count(1_000_000), 120, "that many are logged")
        status = trainer.tell_to_end()
        trainer.wait_gone(GONE_S)
        records = trainer.logged
    found = account(run_dir, records)
    assert not found.problems
    assert found.stored + found.forgotten == records
    assert found.forgotten > 0
    assert found.damaged == 0
    assert (status["accepted"], status["forgotten"]) == (records, found.forgotten)


def run_without_agent(trainer: Trainer, records: int) -> int:
    """Kill both processes in mid-run, let the trainer log so many, and end alone; how many records a lane holds."""
    trainer.agent_pid()
    room = lane_records(trainer)
    wait_until(lambda: trainer.logged > 1_000, 20, "the trainer logs")
    kill_agents()
    wanted = max(records, trainer.logged + 2 * room)
    wait_until(lambda: trainer.logged >= wanted, 60, "the lanes overflow")
    assert not any(map(processes.is_alive, (trainer.status_page().words[i] for i in (0, 1))))
    trainer.tell_to_end()  # its `finish` brings an agent
    return room


@pytest.mark.timeout(180)
def test_without_an_agent_training_goes_on_and_recover_stores_the_newest_lane_full(run_dir, tmp_path, pace):
    """Both agent processes killed for good in mid-run; the gap is exact."""
    records = pace.count(200_000, least=20_000)
    plan = {"until_told": True, "rate": 20_000, "finish_timeout_s": 0.5}
    with training(tmp_path, {"LOGCLIENT_LANES_BYTES": SMALL_LANES}, **plan) as trainer:
        room = run_without_agent(trainer, records)
        recover(trainer.shm_dir)
        trainer.wait_gone(GONE_S)
    found = account(run_dir, trainer.logged)
    assert not found.problems
    assert found.damaged == 0
    assert found.forgotten > 0
    assert found.newest >= room * 15 // 16


ATTACH = """
import sys, logclient
run = logclient.init("disturbed", id=sys.argv[1], quiet=True)
run.finish(60)
"""


@pytest.mark.timeout(180)
def test_the_next_process_of_the_run_brings_an_agent_back(run_dir, tmp_path, pace):
    """The newest lane-full recovered by the next process of the run, which logs nothing itself."""
    records = pace.count(200_000, least=20_000)
    plan = {"until_told": True, "rate": 20_000, "finish_timeout_s": 0.5}
    with training(tmp_path, {"LOGCLIENT_LANES_BYTES": SMALL_LANES}, **plan) as trainer:
        room = run_without_agent(trainer, records)
        subprocess.run([sys.executable, "-c", ATTACH, trainer.run_id], check=True, timeout=60)
        trainer.wait_gone(GONE_S)
    found = account(run_dir, trainer.logged)
    assert not found.problems
    assert found.damaged == 0
    assert found.newest >= room * 15 // 16


@pytest.mark.timeout(180)
def test_a_stopped_worker_is_replaced_and_nothing_is_lost(run_dir, tmp_path, pace):
    """SIGSTOP of the worker for 60 s: it shows no progress."""
    seconds = pace.seconds(60)
    settings = {"LOGCLIENT_STALL_S": str(max(1.0, pace.seconds(5)))}
    with training(tmp_path, ROOMY | settings, rate=2_000, until_told=True) as trainer:
        stopped = trainer.agent_pid()
        page = trainer.status_page()
        with processes.stopped(stopped):
            begin = time.monotonic()
            wait_until(lambda: page.words[layout.AGENT_WORKER] != stopped, 60, "another worker starts")
            drained = page.words[layout.AGENT_DRAINED]
            wait_until(lambda: page.words[layout.AGENT_DRAINED] > drained, 30, "the other one drains")
            time.sleep(max(0.0, begin + seconds - time.monotonic()))
        trainer.tell_to_end()
        trainer.wait_gone(GONE_S)
        logged = trainer.logged
    found = account(run_dir, logged)
    assert not found.problems
    assert found.stored == logged


@pytest.mark.timeout(180)
def test_a_stopped_supervisor_stops_nothing(run_dir, tmp_path, pace):
    """SIGSTOP of the supervisor: the worker goes on."""
    seconds = pace.seconds(40)
    with training(tmp_path, ROOMY, rate=2_000, until_told=True) as trainer:
        worker = trainer.agent_pid()
        page = trainer.status_page()
        with processes.stopped(trainer.agent_pid(layout.AGENT_SUPERVISOR)):
            written = page.words[layout.AGENT_WRITTEN]
            time.sleep(seconds)
            wait_until(lambda: page.words[layout.AGENT_WRITTEN] > written, 30, "the worker goes on writing")
            assert page.words[layout.AGENT_WORKER] == worker
        trainer.tell_to_end()
        trainer.wait_gone(GONE_S)
        logged = trainer.logged
    found = account(run_dir, logged)
    assert not found.problems
    assert found.stored == logged


@pytest.mark.timeout(180)
def test_a_worker_whose_supervisor_was_killed_gets_another_that_replaces_it(run_dir, tmp_path):
    """The supervisor is SIGKILLed, then the worker."""
    with training(tmp_path, ROOMY, rate=2_000, until_told=True) as trainer:
        worker = trainer.agent_pid()
        page = trainer.status_page()
        first = trainer.agent_pid(layout.AGENT_SUPERVISOR)
        assert processes.send(first, signal.SIGKILL)
        second = wait_until(
            lambda: page.words[layout.AGENT_SUPERVISOR] != first and page.words[layout.AGENT_SUPERVISOR],
            20,
            "the worker starts another supervisor",
        )
        assert page.words[layout.AGENT_WORKER] == worker
        assert processes.send(worker, signal.SIGKILL)
        wait_until(
            lambda: page.words[layout.AGENT_WORKER] != worker, 20, "the supervisor starts another worker"
        )
        assert page.words[layout.AGENT_SUPERVISOR] == second
        durable = page.words[layout.AGENT_WRITTEN]
        wait_until(lambda: page.words[layout.AGENT_WRITTEN] > durable, 20, "the new worker writes")
        trainer.kill()
        trainer.wait_gone(GONE_S)
        logged, begun = trainer.logged, trainer.begun
    found = account(run_dir, logged, begun)
    assert not found.problems
    assert found.forgotten == found.damaged == 0

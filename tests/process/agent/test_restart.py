"""Workers and supervisors that die, stop or crash: others go on, and nothing is lost or stored twice."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from logclient.shm import layout
from logclient_backend import failpoint
from tools.faults import processes

from ..agents import SUPERVISOR, WORKER, checked, is_gone, kill, log_of, nothing_left, successor
from ..disturbed import ROOMY, Trainer, documents, wait_until


@pytest.mark.first_is_quick
@pytest.mark.timeout(120)
@pytest.mark.parametrize("action", ["segv:1!", "die:1!"])
@pytest.mark.parametrize("point", [point for point in failpoint.POINTS if not point.startswith("media.")])
def test_worker_that_dies_at_a_fail_point_loses_and_repeats_nothing(
    run_dir: Path, tmp_path: Path, point: str, action: str
) -> None:
    """C4-2: whatever point a worker dies at, and however, it leaves all that its successor needs."""
    settings = {"LOGCLIENT_SEAL_S": "0.3", "LOGCLIENT_FAILPOINTS": f"{point}={action}"}
    trainer = Trainer(tmp_path, settings, records=5_000, rate=8_000)
    status = trainer.end()
    trainer.wait_gone()
    checked(run_dir, status["accepted"])
    assert action.split(":")[0] == "die" or "ended with signal" in log_of(run_dir)
    nothing_left()


@pytest.mark.timeout(60)
def test_worker_is_replaced_at_once_and_the_log_says_why(run_dir: Path, tmp_path: Path) -> None:
    """C4-2: the supervisor hears of the death when it happens, not at its next look, and the reason is in agent.log."""
    trainer = Trainer(tmp_path, rate=500, until_told=True)
    worker = trainer.agent_pid(WORKER)
    restarts = trainer.word(layout.AGENT_RESTARTS)
    began = time.monotonic()
    kill(worker)
    other = successor(trainer, WORKER, worker)
    took_s = time.monotonic() - began
    assert trainer.word(layout.AGENT_RESTARTS) == restarts + 1
    assert not is_gone(other)
    status = trainer.tell_to_end()
    trainer.wait_gone()
    checked(run_dir, status["accepted"])
    assert f"worker {worker} ended with signal 9" in log_of(run_dir)
    print(f"replaced after {1000 * took_s:.0f} ms")


@pytest.mark.timeout(60)
def test_worker_forks_another_supervisor_each_time_it_dies(run_dir: Path, tmp_path: Path) -> None:
    """The supervisor is SIGKILLed three times; then the last one it got replaces a killed worker."""
    trainer = Trainer(tmp_path, ROOMY, rate=5_000, until_told=True)
    worker = trainer.agent_pid(WORKER)
    supervisor = trainer.agent_pid(SUPERVISOR)
    for _ in range(3):
        kill(supervisor)
        supervisor = successor(trainer, SUPERVISOR, supervisor)
        assert trainer.agent_pid(WORKER) == worker
    kill(worker)
    successor(trainer, WORKER, worker)
    status = trainer.tell_to_end()
    trainer.wait_gone()
    checked(run_dir, status["accepted"])
    nothing_left()


def open_files(pid: int) -> list[str]:
    """What the descriptors of a process lead to."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except FileNotFoundError:
            pass  # closed since it was listed
    return found


@pytest.mark.timeout(60)
def test_descriptors_do_not_pile_up_over_supervisors_and_workers(run_dir: Path, tmp_path: Path) -> None:
    """A supervisor that a worker forked inherits what it needs, and nothing more with each generation.

    Segments on tmpfs count apart: the agent keeps those that are not in the run folder yet, under load more than one.
    """
    trainer = Trainer(tmp_path, rate=1_000, seconds=60, finish=False)
    counts = []
    for _ in range(8):
        supervisor, worker = trainer.agent_pid(SUPERVISOR), trainer.agent_pid(WORKER)
        kill(supervisor)
        supervisor = successor(trainer, SUPERVISOR, supervisor)
        kill(worker)
        successor(trainer, WORKER, worker)

        def count(pid: int = supervisor) -> int:
            return len([path for path in open_files(pid) if not path.endswith(".wal")])

        def processes(pid: int = supervisor) -> int:
            return open_files(pid).count("anon_inode:[pidfd]")

        def in_the_run_folder(pid: int = supervisor) -> list[str]:
            return [path for path in open_files(pid) if path.startswith(str(run_dir))]

        counts.append(count())
        # some are open for a moment only
        wait_until(lambda: not in_the_run_folder(), 20, "the supervisor has no file of the run folder open")
        if len(counts) > 2:
            wait_until(lambda: count() <= counts[1] + 3, 20, f"no more than before: {counts}")
            # the trainer twice, the worker, the process that ships, the supervisor before it
            wait_until(lambda: processes() <= 6, 20, "it watches only processes that matter to it")
    trainer.end_by()
    trainer.wait_gone()


@pytest.mark.timeout(120)
def test_stopped_worker_is_killed_and_replaced(run_dir: Path, tmp_path: Path, pace) -> None:
    """SIGSTOP of the worker: after `stall_s` without a beat another one goes on, and the stopped one is gone."""
    stall_s = max(1.0, pace.seconds(5))
    trainer = Trainer(tmp_path, {"LOGCLIENT_STALL_S": str(stall_s)}, rate=5_000, until_told=True)
    worker = trainer.agent_pid(WORKER)
    kill(worker, signal.SIGSTOP)
    successor(trainer, WORKER, worker, deadline_s=stall_s + 15)
    wait_until(lambda: is_gone(worker), 10, "the stopped worker is gone")
    status = trainer.tell_to_end()
    trainer.wait_gone()
    checked(run_dir, status["accepted"], lost=None)
    assert f"worker {worker} made no progress and was killed" in log_of(run_dir)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_stop_of_both_is_harmless(run_dir: Path, tmp_path: Path, pace) -> None:
    """SIGSTOP of supervisor and worker for 60 s (paced), afterwards both are those of before."""
    stop_s = max(3.0, pace.seconds(60))
    trainer = Trainer(tmp_path, {"LOGCLIENT_STALL_S": "1"}, rate=200, until_told=True)
    pids = (trainer.agent_pid(WORKER), trainer.agent_pid(SUPERVISOR))
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            kill(pid, number)
        time.sleep(stop_s if number == signal.SIGSTOP else 0)
    status = trainer.tell_to_end()
    assert status["agent"]["restarts"] == 0
    assert (status["agent"]["worker"], status["agent"]["supervisor"]) == pids
    trainer.wait_gone()
    checked(run_dir, status["accepted"])


@pytest.mark.timeout(120)
def test_old_stopped_worker_is_killed_by_a_new_supervisor(run_dir: Path, tmp_path: Path) -> None:
    """Supervisor killed while its worker is stopped: the next one does not let two workers loose on the lanes."""
    trainer = Trainer(tmp_path, {"LOGCLIENT_STALL_S": "1"}, rate=5_000, until_told=True)
    worker, supervisor = trainer.agent_pid(WORKER), trainer.agent_pid(SUPERVISOR)
    kill(supervisor, signal.SIGSTOP)
    kill(worker, signal.SIGSTOP)
    wait_until(lambda: processes.state_of(worker) == "T", 5, "the worker is stopped")
    kill(supervisor)
    wait_until(lambda: is_gone(supervisor), 5, "the supervisor is gone")
    other = Trainer(tmp_path, {"LOGCLIENT_RUN_ID": trainer.run_id}, records=10, rate=100)
    successor(trainer, WORKER, worker)
    wait_until(lambda: is_gone(worker), 10, "the stopped worker is gone")
    kill(worker, signal.SIGCONT)
    other.end()
    status = trainer.tell_to_end()
    trainer.wait_gone()
    checked(run_dir, status["accepted"] + 10, lost=None)


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_agent_gives_up_after_too_many_deaths_without_progress(run_dir: Path, tmp_path: Path) -> None:
    """C4-2: a limit on deaths without progress; then quiet dropping with exact counts, and the next process helps."""
    points = {"LOGCLIENT_FAILPOINTS": "worker.loop=kill:1+", "LOGCLIENT_RESTART_LIMIT": "3"}
    trainer = Trainer(tmp_path, points, records=2_000, rate=2_000, finish_timeout_s=1.0)
    wait_until(lambda: trainer.word(layout.AGENT_GAVE_UP), 30, "the agent gives up")
    assert trainer.word(layout.AGENT_RESTARTS) == 3
    status = trainer.end()
    assert status["agent"]["state"] != "gone", "finish has brought another one, which dies as well"
    assert status["accepted"] == 2_000 and status["durable"] == 0
    other = Trainer(tmp_path, {"LOGCLIENT_RUN_ID": trainer.run_id}, records=10, rate=100)
    other.end()
    trainer.wait_gone()
    checked(run_dir, 2_010)


@pytest.mark.timeout(60)
def test_lane_file_on_which_workers_crash_is_set_aside(run_dir: Path, tmp_path: Path) -> None:
    """Draining it killed a worker twice: the file is set aside, kept in the run folder, reported; others go on."""
    settings = {"LOGCLIENT_FAILPOINTS": "drain.taken=segv:1+"}
    trainer = Trainer(tmp_path, settings, records=500, rate=1_000, finish_timeout_s=0.5)
    trainer.end()
    trainer.wait_gone()
    (node,) = documents(run_dir)
    (aside,) = node["set_aside"]
    assert aside["reason"] == "workers crashed while they read it"
    (kept,) = run_dir.glob("*/*/aside-*.lanes.aside")
    assert kept.stat().st_size > 1 << 18
    assert len({line.split()[2] for line in log_of(run_dir).splitlines() if "signal 11" in line}) == 2
    nothing_left()

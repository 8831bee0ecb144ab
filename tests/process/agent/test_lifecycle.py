"""How agents come and go: with the processes of a run, one after another, at once, and over again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from logclient.shm import layout

from .. import scripts
from ..agents import SUPERVISOR, WORKER, checked, kill, nothing_left, successor
from ..disturbed import ROOMY, Trainer, documents, stored, wait_until


@pytest.mark.timeout(120)
def test_case_of_the_killed_backend(run_dir: Path, tmp_path: Path) -> None:
    """C4-2: SIGKILL the backend at steps 100, 200, 300 of 1,000; after each log, summary, config, flush, finish."""
    code = """
    import os, signal, time, logclient
    from logclient.shm import layout
    from logclient.spawn.agent import map_status
    run = logclient.init("case")
    words = map_status(run._session.shm_dir)
    for step in range(1000):
        logclient.log(step, {"loss": step / 2})
        if step in (100, 200, 300):
            while not words[layout.AGENT_WORKER]:
                time.sleep(0.01)
            os.kill(words[layout.AGENT_SUPERVISOR], signal.SIGSTOP)  # nobody is there until all calls have returned
            os.kill(words[layout.AGENT_WORKER], 9)
            logclient.log(10_000 + step, {"loss": 0.0})
            run.summary[f"best{step}"] = step
            run.config.update({f"lr{step}": step})
            os.kill(words[layout.AGENT_SUPERVISOR], signal.SIGCONT)
            assert run.flush(60)
    assert run.finish(60)
    status = run.status()
    print(status["accepted"], status["refused"], status["agent"]["restarts"])
    """
    ended = scripts.run_well(tmp_path, code)
    assert ended.out.split() == ["1003", "0", "3"]
    found = scripts.the_run(run_dir)
    assert found.config == {"lr100": 100, "lr200": 200, "lr300": 300}
    assert found.summary["best300"] == 300
    assert len(scripts.points(found)["loss"]) == 1003
    nothing_left()


@pytest.mark.timeout(60)
def test_case_of_the_killed_trainer(run_dir: Path, tmp_path: Path) -> None:
    """C4-4: SIGKILL with 5,000 rows in the ring: all are stored, the state is killed, and nothing at all is left."""
    trainer = Trainer(tmp_path, rate=5_000, seconds=60)
    supervisor, worker = trainer.agent_pid(SUPERVISOR), trainer.agent_pid(WORKER)
    wait_until(lambda: trainer.logged > 1_000, 20, "the agent drains")
    for pid in (supervisor, worker):
        kill(pid, signal.SIGSTOP)
    before = trainer.logged
    wait_until(lambda: trainer.logged > before + 5_000, 20, "5,000 rows are in the ring")
    trainer.end_by()
    for pid in (worker, supervisor):
        kill(pid, signal.SIGCONT)
    trainer.wait_gone()
    wait_until(
        lambda: not any(os.path.exists(f"/proc/{pid}") for pid in (supervisor, worker)),
        10,
        "no zombie is left",
    )
    nothing_left()
    checked(run_dir, stored(run_dir).records)
    assert trainer.logged <= stored(run_dir).records <= trainer.begun
    assert scripts.the_run(run_dir).state.name == "killed"


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("die_again", ["", "+"], ids=["once", "at every try"])
def test_dead_writing_thread_is_started_again(run_dir: Path, tmp_path: Path, die_again: str) -> None:
    """C1-2: the thread that writes dies, the rest lives and beats: log 10 times the lane, flush, finish."""
    settings = {"LOGCLIENT_FAILPOINTS": f"copy.write=die:2{die_again}", "LOGCLIENT_LANES_BYTES": "524288"}
    settings |= {"LOGCLIENT_SPILL_BYTES": "1048576"}
    trainer = Trainer(tmp_path, settings, records=40_000, rate=20_000, finish_timeout_s=2.0)
    status = trainer.end()
    assert trainer.longest_ms < 1_000
    if die_again:
        assert status["durable"] < 40_000
        assert status["agent"]["disk_silent_s"] or status["agent"]["state"] != "running"
        trainer.status_page()
        for which in (SUPERVISOR, WORKER):
            kill(trainer.agent_pid(which))
        return
    trainer.wait_gone()
    checked(run_dir, 40_000, lost=status["forgotten"])
    assert status["agent"]["restarts"] == 0, "the worker itself started it again"


@pytest.mark.timeout(300)
def test_more_processes_than_descriptors(run_dir: Path, tmp_path: Path) -> None:
    """The agent may open 150 files only: 400 children that log at once, or nearly, are served one after the other."""
    code = """
    import os, resource, logclient
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
    run = logclient.init("case")
    for child in range(400):
        if os.fork() == 0:
            run.log(child, {"child": float(child)})
            os._exit(0)
    for child in range(400):
        os.wait()
    run.log(400, {"child": 400.0})
    print(run.finish(120))
    """
    assert scripts.run_well(tmp_path, code, timeout_s=240).out.split() == ["True"]
    nothing_left(60)
    found = checked(run_dir, 401)
    assert sorted(step for steps in found.steps.values() for step in steps) == list(range(401))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_members_are_let_go_while_the_owner_logs_on(run_dir: Path, tmp_path: Path) -> None:
    """Lane files of ended children go in mid-run, also when something is logged at every moment."""
    code = """
    import os, sys, time, logclient
    run = logclient.init("case")
    shm_dir, most = run._session.shm_dir.path, 0
    for round in range(12):
        for child in range(4):
            if os.fork() == 0:
                run.log(1, {"child": float(child)})
                os._exit(child)
        begun = time.monotonic()
        while time.monotonic() - begun < 0.5:
            run.log(0, {"loss": 1.0})
            time.sleep(0.0002)
        most = max(most, sum(name.endswith(".lanes") for name in os.listdir(shm_dir)))
    for child in range(48):
        os.wait()
    print(most, run.finish(20))
    """
    ended = scripts.run_well(tmp_path, code)
    most, done = ended.out.split()
    assert done == "True"
    assert int(most) < 30, "they do not pile up"
    (node,) = documents(run_dir)
    members = [process for process in node["processes"].values() if "start" not in process["documents"]]
    assert len(members) == 48
    assert sorted({process["end"]["exit_code"] for process in members}) == [0, 1, 2, 3]
    assert sum(counts["stored"] == 1 for counts in node["streams"].values()) == 48
    nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_joining_while_the_last_one_leaves_loses_nothing(run_dir: Path, tmp_path: Path, pace) -> None:
    """One process finishes while another one starts with the same id, 200 rounds (paced): all of both is stored."""
    code = """
    import sys, time, logclient
    run = logclient.init("case", id=sys.argv[1], quiet=True)
    for step in range(100):
        run.log(step, {"loss": float(step)})
    time.sleep(float(sys.argv[2]))
    print(run.finish(20), run.status()["accepted"], run.status()["refused"])
    """
    rounds = pace.count(200, least=12)
    for number in range(rounds):
        pair = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "\n".join(line[4:] for line in code.splitlines()),
                    f"r{number}",
                    str(pause),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            for pause in (0.0, 0.02 * (number % 10))
        ]
        time.sleep(0.015 * (number % 7))
        pair.append(
            subprocess.Popen(
                [sys.executable, "-c", "\n".join(line[4:] for line in code.splitlines()), f"r{number}", "0"],
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        for process in pair:
            out, _ = process.communicate(timeout=60)
            assert out.split() == ["True", "100", "0"], f"round {number}"
    nothing_left(30)
    checked(run_dir, 300 * rounds, order=False)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_runs_at_once_then_many_one_after_another(run_dir: Path, tmp_path: Path, pace) -> None:
    """S-7: runs A and B open together, rows in turn, A closed, B goes on; then 100 runs (paced) one after another."""
    code = """
    import os, sys, threading, logclient
    a = logclient.init("case", id="a", quiet=True)
    b = logclient.init("case", id="b", quiet=True)
    for step in range(100):
        a.log(step, {"mine": 1.0})
        b.log(step, {"mine": 2.0})
    assert a.finish(20)
    for step in range(100, 200):
        b.log(step, {"mine": 2.0})
        a.log(step, {"mine": 1.0})
    assert b.finish(20)
    assert (a.status()["accepted"], a.status()["refused"], b.status()["accepted"]) == (100, 100, 200)
    def size():
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(os.listdir("/proc/self/task"))
    sizes = []
    for number in range(int(sys.argv[1])):
        run = logclient.init("case", id=f"n{number}", quiet=True)
        run.log(0, {"mine": 3.0})
        assert run.finish(20)
        sizes.append(size())
    assert len(set(sizes[2:])) == 1, sizes
    """
    count = pace.count(100, least=10)
    scripts.run_well(tmp_path, code, str(count), timeout_s=100)
    nothing_left(30)
    values = {}
    for run in scripts.runs(run_dir):
        (series,) = scripts.points(run).values()
        values[run.id] = (len(series), {value for _, value in series})
    assert values.pop("a") == (100, {1.0})
    assert values.pop("b") == (200, {2.0})
    assert list(values.values()) == [(1, {3.0})] * count


@pytest.mark.timeout(60)
def test_worker_that_was_replaced_unawares_stops(run_dir: Path, tmp_path: Path) -> None:
    """Two workers in one shm directory (in two PID namespaces, say): the first one notices and stages no more."""
    trainer = Trainer(tmp_path, ROOMY, rate=2_000, until_told=True)
    worker = trainer.agent_pid(WORKER)
    page = trainer.status_page()
    wait_until(lambda: page.words[layout.AGENT_STAGE_COMMIT], 10, "it stages")  # not before it named itself
    page.words[layout.AGENT_STAGE_WRITER] ^= 1
    successor(trainer, WORKER, worker)
    status = trainer.tell_to_end()
    trainer.wait_gone()
    checked(run_dir, status["accepted"])

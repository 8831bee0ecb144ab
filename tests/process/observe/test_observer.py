"""The observer of a live run, with nothing asked: quiet, stalled and moving again, and what is none of it.

Limits are seconds here that are minutes by default. A run that must not be stalled is watched for many samples.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from logclient.shm import layout
from tests.conftest import Pace
from tools.collector import Collector
from tools.faults import frozen, processes

from ..clocks import HOUR_NS, SteppingClock
from ..disturbed import ROOT, wait_until
from .observed_job import ENV, PATIENCE_S, PRELUDE, Job, job


def kinds(states: list[dict[str, Any]]) -> set[str]:
    return {str(state["kind"]) for state in states}


def shown(run_dir: Path) -> dict[str, Any]:
    """The output of `logclient show --json`."""
    command = [sys.executable, "-m", "logclient_backend", "show", "job", "--dir", str(run_dir), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_rank_that_sleeps_is_quiet_then_stalled_then_moves_again(tmp_path: Path, run_dir: Path) -> None:
    """Kept in memory and in the run folder while the run lives, and as an episode afterwards."""
    source = "logs(50)\nwait_for('go')\nlogs(100_000)\n"
    with job(tmp_path, source) as run:
        assert run.wait("ok")["verdict"] == "not stuck"
        assert run.text.startswith("ok: no rank is late")
        assert run.wait("quiet")["observed"]["text"].startswith("rank 0")
        found = run.wait("stalled")
        (process,) = run.processes
        assert (found["verdict"], found["stuck"], found["pids"]) == ("user code", True, [process.pid])
        assert (found["observed"]["verdict"], found["observed"]["rank"]) == ("user code", 0)
        assert found["observed"]["step"] == 49
        assert run.text.startswith("stalled: user code: rank 0 ")
        assert (
            f"wait_for ({tmp_path}/main.py:" in run.text
            and (run.shm_dir / "why.txt").stat().st_mode & 0o777 == 0o600
        )
        wait_until(
            lambda: (shown(run_dir)["observed"] or {}).get("kind") == "stalled", PATIENCE_S, "it is stored"
        )
        command = [sys.executable, "-m", "logclient_backend", "ls", "--dir", str(run_dir)]
        listed = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT, check=True
        )
        assert "running (stalled)" in listed.stdout
        run.go()
        (stall,) = run.wait("ok")["stalls"]
        assert stall["end_ns"] > stall["begin_ns"] and stall["verdict"] == "user code"
        wait_until(lambda: shown(run_dir)["observed"]["kind"] == "ok", PATIENCE_S, "that is stored, too")
        (stall,) = shown(run_dir)["stalls"]
        assert stall["end"] and "wait_for" in stall["text"]


def test_rank_that_is_stopped_is_stalled(tmp_path: Path, run_dir: Path) -> None:
    """Until it is continued."""
    with job(tmp_path, "logs(100_000)\n") as run:
        run.wait("ok")
        time.sleep(1.0)
        with processes.stopped(run.processes[0].pid):
            assert run.wait("stalled")["observed"]["verdict"] == "stopped"
            assert "is stopped by a signal" in run.text
        assert run.wait("ok")["stalls"][0]["end_ns"]


def test_rank_that_ended_while_its_peer_waits_is_named(tmp_path: Path, run_dir: Path) -> None:
    """The peer sleeps in user code; who ended explains that."""
    source = "logs(50)\nif RANK == 1: os._exit(7)\nwait_for('never')\n"
    with job(tmp_path, source, count=2) as run:
        found = run.wait("stalled")["observed"]
        assert (found["verdict"], found["rank"]) == ("process gone", 1)
        assert "exit code 7" in run.text


def test_rank_asleep_is_stalled_though_the_other_one_logs(tmp_path: Path, run_dir: Path) -> None:
    """Ranks that do not wait for each other: each has a rhythm of its own."""
    source = "logs(50)\nif RANK == 1: wait_for('go')\nlogs(100_000)\n"
    with job(tmp_path, source, count=2) as run:
        found = run.wait("stalled")["observed"]
        assert (found["verdict"], found["rank"]) == ("user code", 1)
        run.go()
        run.wait("ok")


COMPUTES = """
logs(50)
def evaluate():
    until = time.monotonic() + 0.06
    while time.monotonic() < until: pass
while True:
    evaluate()
    time.sleep(0.5)
"""
BUSY = """
logs(50)
def evaluate():
    return sum(number * number for number in range(200_000))
while not os.path.exists("go"):
    evaluate()
logs(100_000)
"""
SLOWER = """
for step in range(100_000):
    run.log(step, {"loss": 1.0})
    time.sleep(0.15 if step < 20 else 0.6)
"""
PROMPT = "logs(50)\nbreakpoint()\nlogs(100_000)\n"
INPUT = "logs(50)\ndef ask(): return input()\nask()\nlogs(100_000)\n"
DECLARED = """
logs(50)
with run.progress(3600, "checkpoint"):
    wait_for("go")
wait_for("never")
"""


@pytest.mark.parametrize(
    "source", [COMPUTES, PROMPT, INPUT], ids=["computes in silence", "breakpoint", "input"]
)
def test_late_run_that_is_not_stalled(tmp_path: Path, run_dir: Path, source: str) -> None:
    """It is shown as quiet, over many samples."""
    with job(tmp_path, source) as run:
        run.wait("quiet")
        assert kinds(run.watch()) <= {"quiet", "ok"}
        assert not run.why()["stalls"], run.text
        if source in (PROMPT, INPUT):
            stdin = run.processes[0].stdin
            assert stdin is not None
            stdin.write(b"c\n")
            stdin.flush()
            run.wait("ok")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_quarter_of_an_hour_of_computing_is_not_stalled(tmp_path: Path, run_dir: Path, pace: Pace) -> None:
    """Without a record; the times that the observer waits are divided by the same factor, down to what it can do."""
    with job(
        tmp_path,
        BUSY,
        LOGCLIENT_OBSERVE_S=str(max(0.1, 2.0 / pace)),
        LOGCLIENT_LATE_AFTER_S=str(max(1.0, 10.0 / pace)),
        LOGCLIENT_STALL_SAMPLES_S=str(max(0.5, 5.0 / pace)),
    ) as run:
        run.wait("quiet")
        until = time.monotonic() + pace.seconds(900) / (3 if pace > 1 else 1)  # it keeps a core busy
        while time.monotonic() < until:
            assert run.kind == "quiet" and not run.why()["stalls"], run.text
            time.sleep(0.1)
        run.go()
        run.wait("ok")


def test_breakpoint_on_a_terminal_is_not_stalled(tmp_path: Path, run_dir: Path) -> None:
    """With a line editor, which waits in another call of the kernel."""
    master, slave = pty.openpty()
    (tmp_path / "main.py").write_text(
        PRELUDE + PROMPT.replace("breakpoint()", "import readline; breakpoint()")
    )
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "backend"))),
        **ENV,
        "TERM": "dumb",
    }
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "main.py"), "0", "1"],
        cwd=tmp_path,
        env=env,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    try:
        run = Job(tmp_path, [], os.environ["LOGCLIENT_SHM_DIR"])
        wait_until(lambda: (run.shm_dir / "why.json").exists(), PATIENCE_S, "it is observed")
        run.wait("quiet")
        assert kinds(run.watch()) <= {"quiet", "ok"} and not run.why()["stalls"], run.text
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(master)
        os.close(slave)


def test_slower_steps_are_not_late(tmp_path: Path, run_dir: Path) -> None:
    """Four times slower from one step to the next, with the factor that is the default."""
    with job(tmp_path, SLOWER, LOGCLIENT_LATE_FACTOR="5", LOGCLIENT_LATE_AFTER_S="0.3") as run:
        run.wait("ok")
        until = time.monotonic() + 12.0
        while time.monotonic() < until:
            assert run.kind != "stalled" and not run.why()["stalls"], run.text
            time.sleep(0.05)


def test_declared_phase_is_not_late_until_it_is_over(tmp_path: Path, run_dir: Path) -> None:
    """The rank sleeps in it for many times its limit; afterwards it counts."""
    with job(tmp_path, DECLARED) as run:
        run.wait("ok")
        until = time.monotonic() + 6.0
        while time.monotonic() < until:
            assert run.kind == "ok", run.text
            time.sleep(0.05)
        run.go()
        run.wait("stalled")


def test_peers_of_a_rank_in_a_declared_phase_are_not_late_and_its_time_may_be_over(
    tmp_path: Path, run_dir: Path
) -> None:
    """Rank 1 waits while rank 0 saves; what was declared too short counts from then on."""
    source = """
logs(50)
if RANK == 0:
    with run.progress(8, "checkpoint"):
        wait_for("never")
wait_for("go")
"""
    with job(tmp_path, source, count=2) as run:
        run.wait("ok")
        begun = time.monotonic()
        run.wait("quiet")
        assert time.monotonic() - begun > 5.0, run.text
        assert run.wait("stalled")["verdict"] == "user code"


def test_machine_that_was_suspended_makes_nobody_stalled(tmp_path: Path, run_dir: Path) -> None:
    """No process runs for many times the limit: the trainer's, the agent's. Continued, the run is as it was."""
    with job(tmp_path, "logs(100_000)\n") as run:
        run.wait("ok")
        time.sleep(1.0)
        words = layout.AGENT_SUPERVISOR, layout.AGENT_WORKER, layout.AGENT_OBSERVER
        agent = [run.word(index) for index in words]
        restarts = run.word(layout.AGENT_OBSERVER_RESTARTS)
        with ExitStack() as stack:
            for pid in [*agent, run.processes[0].pid]:  # those that watch others first
                stack.enter_context(processes.stopped(pid))
            time.sleep(6.0)
        until = time.monotonic() + 4.0
        while time.monotonic() < until:
            assert run.kind == "ok" and not run.why()["stalls"], run.text
            time.sleep(0.05)
        assert run.word(layout.AGENT_OBSERVER) == agent[2]
        assert run.word(layout.AGENT_OBSERVER_RESTARTS) == restarts


@pytest.mark.root
def test_process_in_another_pid_namespace_is_not_called_gone(tmp_path: Path, run_dir: Path) -> None:
    """It cannot be looked at from here: it is late and shown as quiet, whatever it does."""
    source = """
import ctypes
logs(50)
assert ctypes.CDLL(None).unshare(0x20000000) == 0  # CLONE_NEWPID: for children
if os.fork() == 0:
    logs(50)
    wait_for("go")
logs(100_000)
"""
    with job(tmp_path, source) as run:
        run.wait("quiet")
        assert kinds(run.watch()) <= {"quiet", "ok"} and not run.why()["stalls"], run.text
        run.go()
        run.wait("ok")


def test_peers_of_a_rank_that_left_the_run_and_lives_are_stalled(tmp_path: Path, run_dir: Path) -> None:
    """Its lanes are gone, so nobody looks at it; but it is known that no rank is anywhere else."""
    peers = tmp_path / "torch" / "distributed"
    peers.mkdir(parents=True)
    (peers / "fake.py").write_text("import time\ndef all_reduce():\n    time.sleep(10_000)\n")
    source = f"""
while not os.path.exists("leave"):
    logs(5)
if RANK == 1:
    run.finish()
    wait_for("never")
sys.path.insert(0, {str(peers)!r})
import fake
fake.all_reduce()
"""
    with job(tmp_path, source, count=2) as run:
        run.wait("ok")
        wait_until(lambda: len(list(run.shm_dir.glob("*.lanes"))) == 2, PATIENCE_S, "both are there")
        time.sleep(1.0)  # it has seen them
        run.go("leave")
        found = run.wait("stalled")
        assert found["verdict"] in ("collective or peer", "user code"), run.text


def test_section_and_last_calls_are_evidence(tmp_path: Path, run_dir: Path) -> None:
    """In `why.txt`; calls where the stack cannot be read, and in `why.json` always."""
    source = """
run.trace(include=["__main__"])
logs(50)
with run.section("data"): wait_for("never")
"""
    with job(tmp_path, source) as run:
        found = run.wait("stalled")
        assert "in section 'data'" in run.text, run.text
        (rank,) = found["processes"]
        (thread,) = rank["last_calls"]
        assert thread["calls"][-1]["function"] == "wait_for", thread


def test_clock_that_is_set_makes_nobody_late(tmp_path: Path, run_dir: Path) -> None:
    """An hour forth and two back; a rank that sleeps is found as soon as with a clock that nobody sets."""
    clock = SteppingClock(tmp_path)
    with job(tmp_path, "logs(1)\nlogs(300)\nwait_for('never')\n", python=clock.python) as run:
        run.wait("ok")
        clock.offset_ns = HOUR_NS
        time.sleep(1.0)
        clock.offset_ns = -HOUR_NS
        assert run.wait("stalled")["observed"]["verdict"] == "user code"
        assert len(run.why()["stalls"]) == 1


def test_observer_that_is_killed_or_stopped_is_replaced(tmp_path: Path, run_dir: Path) -> None:
    """The next one goes on from what it had found; the run notices nothing."""
    source = "logs(50)\nwait_for('go')\nlogs(200)\nrun.finish()\nwait_for('never')\n"
    with job(tmp_path, source, LOGCLIENT_STALL_S="1") as run:
        run.wait("stalled")
        for end in (signal.SIGKILL, signal.SIGSTOP):
            pid = run.word(layout.AGENT_OBSERVER)
            restarts = run.word(layout.AGENT_OBSERVER_RESTARTS)
            os.kill(pid, end)
            run.wait_for_another_observer(pid)
            assert run.word(layout.AGENT_OBSERVER_RESTARTS) == restarts + 1
            run.watch(3)
            assert run.kind == "stalled" and len(run.why()["stalls"]) == 1, run.text
        run.go()
        assert run.wait("ok")["stalls"][0]["end_ns"]
        wait_until(lambda: not run.shm_dir.exists(), PATIENCE_S, "the agent leaves")
        found = shown(run_dir)
        assert (found["counts"]["accepted"], found["counts"]["stored"]) == (250, 250)
        assert found["observed"] is None and len(found["stalls"]) == 1


def test_observer_can_be_turned_off(tmp_path: Path, run_dir: Path) -> None:
    """No process (nobody measures the host, either), no file; the run is stored as ever."""
    program = "logs(100)\nwait_for('go')\nrun.finish()\n"
    with job(tmp_path, program, LOGCLIENT_OBSERVE="off", LOGCLIENT_SYSTEM="off") as run:
        wait_until(lambda: run.word(layout.AGENT_WORKER), PATIENCE_S, "there is an agent")
        time.sleep(3.0)
        assert not run.word(layout.AGENT_OBSERVER) and not (run.shm_dir / "why.txt").exists()
        run.go()
        wait_until(lambda: not (run.shm_dir / "run.json").exists(), PATIENCE_S, "the agent leaves")
        assert shown(run_dir)["counts"]["stored"] == 100


@pytest.mark.root
def test_frozen_disk_is_the_verdict_and_can_be_read_meanwhile(tmp_path: Path, disk: frozen.LoopExt4) -> None:
    """The rank waits in state D for the disk that its run folder is on; `why.txt` is on tmpfs."""
    source = f"""
logs(50)
wait_for("go")
def save(): open({str(disk.path / "checkpoint")!r}, "w").close()
save()
logs(100_000)
"""
    with job(tmp_path, source) as run:
        run.wait("ok")
        with disk.frozen():
            run.go()
            pid = run.processes[0].pid
            wait_until(lambda: processes.state_of(pid) == "D", PATIENCE_S, "it waits for the disk")
            wait_until(
                lambda: run.text.startswith("stalled: file system: rank 0"), PATIENCE_S, "that is found"
            )
            assert f"save ({tmp_path}/main.py:" in run.text
        assert run.wait("ok")["stalls"][0]["end_ns"]


def test_collector_shows_it_too(tmp_path: Path, run_dir: Path, listening_server: Collector) -> None:
    """In the list, in what is known of the run, and to the command line, until the run moves again."""
    source = "logs(50)\nwait_for('go')\nlogs(100_000)\n"
    address, token = listening_server.address, listening_server.token
    with job(tmp_path, source, LOGCLIENT_SERVER=address, LOGCLIENT_TOKEN=token) as run:
        run.wait("stalled")

        def row() -> dict[str, Any]:
            rows = listening_server.get("/api/v1/runs").json()["runs"]
            return dict(rows[0]) if rows else {}

        wait_until(lambda: (row().get("observed") or {}).get("kind") == "stalled", PATIENCE_S, "it is listed")
        assert row()["state"] == "running" and row()["observed"]["verdict"] == "user code"
        assert "wait_for" in row()["observed"]["text"]
        whole = listening_server.get("/api/v1/run?run=observed").json()
        assert whole["observed"]["rank"] == 0 and whole["more"]["stalls"][0]["end_ns"] == 0
        for verb, words in (("ls", "running (stalled)"), ("show", "stalled: user code: rank 0")):
            command = [sys.executable, "-m", "logclient_backend", verb, "--server", listening_server.url]
            more = {"LOGCLIENT_TOKEN": token}
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                cwd=ROOT,
                env={**os.environ, **more},
            )
            assert words in done.stdout, done
        run.go()
        wait_until(lambda: row()["observed"] is None, PATIENCE_S, "it moves again")
        assert listening_server.get("/api/v1/run?run=observed").json()["more"]["stalls"][0]["end_ns"]


GLOO = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=RANK, world_size=RANKS)
for step in range(100_000):
    if step == 60 and RANK == 1: wait_for("go")
    dist.all_reduce(torch.ones(8))
    run.log(step, {"loss": 1.0})
    time.sleep(0.02)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rank_that_its_peers_wait_for_is_named(tmp_path: Path, run_dir: Path) -> None:
    """Three gloo ranks; two of them wait in a collective."""
    pytest.importorskip("torch")
    with job(tmp_path, GLOO, count=3, OMP_NUM_THREADS="1") as run:
        found = run.wait("stalled")["observed"]
        assert (found["verdict"], found["rank"]) == ("user code", 1)
        assert "wait for their peers" in found["text"]
        run.go()
        run.wait("ok")

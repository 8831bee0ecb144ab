"""`logclient preflight` on ranks with a real fault each: it is named, and nothing else is."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from logclient_backend.preflight.place import PORTS
from tools.bench.preflight import (
    Job,
    dropped_trial,
    free_ports,
    frozen_trial,
    has_torch,
    named,
    rank_trial,
    taken_trial,
)
from tools.faults import frozen, network, processes

from .. import scripts
from ..disturbed import wait_until

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RANKS = 3  # each imports torch, several times
PATIENT = ("--timeout", "20")  # a machine that is busy with other tests is no fault


def texts(report: dict[str, object]) -> str:
    findings = report["findings"]
    assert isinstance(findings, list)
    return "; ".join(f"{each['code']}: {each['text']}" for each in findings)


@pytest.mark.parametrize("kind", ["killed", "stopped", "pulsed", "slowed", "silent"])
def test_rank_with_a_fault_is_named(kind: str) -> None:
    """Killed at a random moment, stopped for good, stopped again and again, or its checks are: any rank, rank 0 too."""
    rank = random.randrange(RANKS)
    is_right, report = rank_trial(kind, RANKS, rank, random.uniform(0, 4), *PATIENT)
    assert is_right, (rank, texts(report))


@pytest.mark.root
def test_blocked_port_is_named(needs_root: None) -> None:
    """Host, port, interface and rank, where packets to it vanish."""
    if reason := network.why_not():
        pytest.skip(reason)
    with network.Network() as net:
        is_right, report = dropped_trial(net, RANKS, 2, *PATIENT)
    assert is_right, texts(report)


def test_port_that_another_process_has_is_named() -> None:
    is_right, report = taken_trial(RANKS, 1, *PATIENT)
    assert is_right, texts(report)


@pytest.mark.root
def test_frozen_folder_is_named(needs_root: None) -> None:
    """All ranks end while their children wait for the disk, and the folder beside it is sound."""
    if reason := frozen.why_not():
        pytest.skip(reason)
    with frozen.LoopExt4(64) as disk:
        is_right, report = frozen_trial(disk, RANKS, *PATIENT)
    assert is_right, texts(report)


def test_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """An error of a folder is one finding for all ranks."""
    with Job(2, *PATIENT, "--folder", str(tmp_path / "no")) as job:
        report, codes = job.report(), job.codes()
    (found,) = report["findings"]
    assert (found["code"], found["ranks"], found["where"]) == ("folder error", [0, 1], str(tmp_path / "no"))
    assert codes == [1, 1]


def test_rank_that_never_came_is_named() -> None:
    """The others are checked without it; collectives are not tried."""
    with Job(3, *PATIENT, "--join-timeout", "10") as job:
        job.processes[2].kill()
        report, codes = job.report(), job.codes()
    assert named(report) == {2}, texts(report)
    assert report["findings"][0]["code"] in ("missing", "gone") and "collectives" in report["not_tried"]
    assert codes[:2] == [1, 1]


def test_all_ranks_that_are_killed_are_named() -> None:
    """The report is written by a process that outlives them."""
    with Job(2, *PATIENT) as job:
        job.wait_begun(1)
        for process in job.processes:
            process.kill()
        report = job.report()
    assert {each["code"] for each in report["findings"]} == {"gone"} and named(report) == {0, 1}


def alone(*words: str, rank: int = 1, **more: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment of one rank of two."""
    env = scripts.environment(RANK=str(rank), WORLD_SIZE="2", OMP_NUM_THREADS="1", **more)
    return [sys.executable, "-m", "logclient_backend", "preflight", "--join-timeout", "4", *words], env


def test_peer_that_accepts_and_is_silent() -> None:
    """In place of rank 0 another process listens at all its ports: the rank ends at its deadline, and says so."""
    first = free_ports(PORTS + 1)
    with contextlib.ExitStack() as stack:
        for port in range(first + 1, first + 1 + PORTS):
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        words, env = alone(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(first))
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "rank 1 on" in done.stderr, done.stderr
    assert "a process took the connection at port" in done.stderr and "gave no answer" in done.stderr


@pytest.mark.root
def test_name_server_that_is_silent(needs_root: None) -> None:
    """The name of rank 0's host is looked up by a child: the deadline holds, however long the resolver waits."""
    if reason := network.why_not():
        pytest.skip(reason)
    words, env = alone(MASTER_ADDR=network.NAME, MASTER_PORT="29500")
    with network.Network() as net, net.no_name(silent=True):
        begun = time.monotonic()
        process = net.left.start(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        out, _ = process.communicate(timeout=240)
        took_s = time.monotonic() - begun
    assert process.returncode == 1 and "leads to no address" in out and network.NAME in out, out
    assert took_s < 40, "each look-up takes 10 s and more here, once for each of eight ports"


def test_step_of_slurm() -> None:
    """Ranks and the place of rank 0 from the variables of `srun` alone."""
    step = secrets.randbelow(1 << 20)
    slurm = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": str(step),
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NODELIST": "localhost",
    }
    words = [sys.executable, "-m", "logclient_backend", "preflight", "--json", *PATIENT]
    with contextlib.ExitStack() as stack:
        started = []
        for rank in range(2):
            env = scripts.environment(
                **slurm, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank), OMP_NUM_THREADS="1"
            )
            process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
            stack.callback(process.kill)
            started.append(process)
        outs = [process.communicate(timeout=240)[0] for process in started]
    report = json.loads(outs[0])
    assert report["ok"] and report["ranks"] == 2 and report["launcher"], outs
    assert [process.returncode for process in started] == [0, 0] and not outs[1]


def test_two_processes_with_one_rank() -> None:
    """The second one is refused, in a sentence; the job goes on."""
    with Job(2, *PATIENT) as job:
        job.wait_begun(1)
        words = [*map(str, job.command), "--join-timeout", "3"]
        more = {
            "RANK": "1",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(job.port_of(-1)),
        }
        again = subprocess.run(words, env={**os.environ, **more}, capture_output=True, text=True, timeout=120)
        assert again.returncode == 1 and "two processes have the same RANK" in again.stderr, again.stderr
        report, codes = job.report(), job.codes()
    assert not report["findings"], texts(report)
    assert codes == [0, 0]


def start_torchrun(folder: Path, *words: str) -> subprocess.Popen[str]:
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node", str(RANKS)]
    return subprocess.Popen(
        [*torchrun, "-m", "logclient_backend", "preflight", *PATIENT, *words],
        cwd=folder,
        env=scripts.environment(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_torchrun(tmp_path: Path) -> None:
    """All is well: one table, a row for each rank, the settings in force; no file and no process is left."""
    process = start_torchrun(tmp_path)
    try:
        out, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, out
    assert out.count(f"preflight: all is well: {RANKS} ranks on 1 host") == 1, out
    assert "GLOO_SOCKET_IFNAME=lo" in out and out.count("gloo ") == RANKS, out
    assert not [*tmp_path.iterdir()]


def test_torchrun_that_ends_its_ranks(tmp_path: Path) -> None:
    """torchrun sends SIGTERM to all once one is killed: the rank is named all the same, before it ends."""
    process = start_torchrun(tmp_path)
    try:
        ranks = wait_until(lambda: _ranks_of(process.pid), 120, "the ranks are there")
        for rank in range(RANKS):
            wait_until(functools.partial(has_torch, ranks[rank]), 120, "they have joined")
        os.kill(ranks[2], signal.SIGKILL)
        out, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode != 0 and f"gone: rank 2 on {os.uname().nodename} is gone" in out, out
    assert "preflight: 1 finding" in out, out


def _ranks_of(launcher: int) -> dict[int, int]:
    """PIDs of torchrun's own children, by rank, once all are there."""
    found = {}
    for pid in processes.children_of(launcher):
        try:
            words = Path(f"/proc/{pid}/environ").read_text().split("\0")
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            return {}
        rank = next((word.removeprefix("RANK=") for word in words if word.startswith("RANK=")), "")
        if rank and int(parent) == launcher:
            found[int(rank)] = pid
    return found if len(found) == RANKS else {}


def test_one_process_without_a_launcher(tmp_path: Path) -> None:
    """`logclient preflight` alone; and its end while it runs."""
    words = [sys.executable, "-m", "logclient_backend", "preflight", *PATIENT]
    env = scripts.environment(OMP_NUM_THREADS="1")
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "1 rank on 1 host" in done.stdout, done.stderr
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(words, cwd=tmp_path, env=env, stdout=out, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: processes.children_of(process.pid), 60, "it has begun")
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
            assert code in (0, 1), "SIGTERM ends it with an exit code of its own"
            # What takes a few seconds may still be done; what has not begun says that it was ended.
            words_of = {0: ("all is well",), 1: ("ended early", "asked for an end")}[code]
            said = wait_until(lambda: out.seek(0) == 0 and out.read(), 30, "it says so")
            assert any(each in said for each in words_of), said
        finally:
            process.kill()


def test_agent_starts_without_preflight(tmp_path: Path) -> None:
    """Neither `--help` nor another verb imports torch or this room."""
    script = "import sys, logclient_backend.cli as c; c.cli(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "preflight" in done.stdout, done.stderr
    modules = done.stdout.splitlines()[-1].split()
    assert "torch" not in modules and not [name for name in modules if "preflight" in name]

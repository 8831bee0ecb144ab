"""Planted faults: does `logclient preflight` name the rank, port or folder, and in time?

    python tools/bench/preflight.py [--quick] [--ranks N] [--rounds N] [--seed N]

Each trial is a job of gloo ranks with one fault: a rank that is killed at a random moment, one that stays stopped, one
that is stopped in pulses, one whose checks are, one whose checks stay stopped, one that gets next to no CPU, a port
whose packets are dropped (in a network of its own), a port that another process has, a folder on a frozen disk. Some
need root, and are left out without it. Trials without a fault must have no finding. The time is
counted from when the last rank has imported torch.
The seed is drawn when it starts, and printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness
from tools.faults import frozen, network, processes

if __name__ == "__main__":
    harness.use_environment()

END_S = 300.0  # a job on a busy machine: torch is imported by each rank
LIMIT_S = 30.0
MOMENTS_S = 6.0  # after the first check has begun: a kill falls in there
Start = Callable[..., subprocess.Popen[Any]]


def free_ports(count: int) -> int:
    """Return the first of so many ports in a row that are free now."""
    chance = random.SystemRandom()
    while True:
        first = chance.randrange(20_000, 32_000)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    probe = stack.enter_context(socket.socket())
                    probe.bind(("", port))
            except OSError:
                continue
            return first


class Job:
    """Ranks of one preflight on this machine, started as a launcher by hand does."""

    def __init__(
        self, ranks: int, *words: str, start: Start = subprocess.Popen, port: int | None = None
    ) -> None:
        self.ranks = ranks
        self._folder = tempfile.TemporaryDirectory(prefix="logclient-preflight-")
        self._port = free_ports(ranks + 2) if port is None else port
        self.command = command = [
            sys.executable,
            "-m",
            "logclient_backend",
            "preflight",
            "--json",
            "--port",
            str(self._port),
            *words,
        ]
        self.processes = []
        for rank in range(ranks):
            more = {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._port),
                "OMP_NUM_THREADS": "1",
            }
            with (
                open(Path(self._folder.name, f"out{rank}"), "wb") as out,
                open(Path(self._folder.name, f"err{rank}"), "wb") as err,
            ):
                self.processes.append(
                    # in a folder of their own: it is tried, and a rank that is killed leaves its file there
                    start(command, stdout=out, stderr=err, cwd=self._folder.name, env={**os.environ, **more})
                )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait(END_S)
        self._folder.cleanup()

    def pid(self, rank: int) -> int:
        return int(self.processes[rank].pid)

    def port_of(self, rank: int) -> int:
        return self._port + 1 + rank

    def text(self, kind: str = "err") -> str:
        return "".join(Path(self._folder.name, f"{kind}{rank}").read_text() for rank in range(self.ranks))

    def begun(self, rank: int) -> bool:
        """Has this rank begun with its checks? It has children then."""
        return bool(processes.children_of(self.pid(rank)))

    def wait_begun(self, rank: int) -> None:
        processes.wait_until(lambda: self.begun(rank) or self.processes[rank].poll() is not None, END_S, 0.05)

    def wait_imported(self, rank: int) -> None:
        """Wait until it has imported torch: the library is mapped, and then a child begins."""
        pid = self.pid(rank)

        def has_ended() -> bool:
            return self.processes[rank].poll() is not None

        processes.wait_until(lambda: has_ended() or has_torch(pid), END_S, 0.02)
        first = set(processes.children_of(pid))
        processes.wait_until(lambda: has_ended() or set(processes.children_of(pid)) - first, END_S, 0.02)

    def report(self) -> dict[str, Any]:
        """Wait for the report. It is written by a child of rank 0, which outlives a rank 0 that was killed."""
        report = Path(self._folder.name, "out0")
        found = json.loads(processes.wait_until(lambda: _whole(report), END_S, 0.05, "the report is written"))
        assert isinstance(found, dict)
        return found

    def codes(self) -> list[int]:
        """Wait for the ranks; return their exit codes."""
        return [int(process.wait(END_S)) for process in self.processes]


def has_torch(pid: int) -> bool:
    """Is the library mapped? A rank that has begun to import it has joined."""
    try:
        return "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def _whole(path: Path) -> str:
    text = path.read_text()
    try:
        json.loads(text)
    except ValueError:
        return ""
    return text


# ---- faults: each yields what has to be named ----------------------------------------------------------------


@contextlib.contextmanager
def killed(job: Job, rank: int, after_s: float) -> Iterator[None]:
    """SIGKILL, so long after its first check began."""
    job.wait_begun(rank)
    time.sleep(after_s)
    job.processes[rank].kill()
    yield


@contextlib.contextmanager
def stopped(job: Job, rank: int) -> Iterator[None]:
    """SIGSTOP after the import, for good."""
    job.wait_imported(rank)
    os.kill(job.pid(rank), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(job.pid(rank), signal.SIGKILL)


@contextlib.contextmanager
def pulsed(job: Job, rank: int) -> Iterator[None]:
    """SIGSTOP and SIGCONT in turns, from its first check on."""
    job.wait_begun(rank)
    with _pulses(lambda: [job.pid(rank)], 0.05, 0.6):
        yield


@contextlib.contextmanager
def slowed(job: Job, rank: int) -> Iterator[None]:
    """The same for its checks alone: the rank itself answers."""
    job.wait_imported(rank)
    with _pulses(lambda: _checks(job.pid(rank)), 0.1, 0.6):
        yield


@contextlib.contextmanager
def silent(job: Job, rank: int) -> Iterator[None]:
    """Its checks are stopped for good: the kernel takes connections for them, and nobody answers."""
    job.wait_imported(rank)
    with _pulses(lambda: _checks(job.pid(rank)), 0.0, 0.1):
        yield


def _checks(pid: int) -> list[int]:
    found = []
    for child in processes.children_of(pid):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(child) == os.getsid(
                pid
            ):  # the coordinator is no check, and has a session of its own
                found.append(child)
    return found


@contextlib.contextmanager
def _pulses(pids: Callable[[], list[int]], running_s: float, stopped_s: float) -> Iterator[None]:
    """Stop and continue processes in turns; those that are to run for no time stay stopped."""
    is_over = threading.Event()

    def send(number: int) -> None:
        for pid in pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def pulse() -> None:
        while not is_over.is_set():
            send(signal.SIGSTOP)
            is_over.wait(stopped_s)
            if running_s:
                send(signal.SIGCONT)
                is_over.wait(running_s)

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextlib.contextmanager
def starved(job: Job, rank: int) -> Iterator[None]:
    """One core, shared with busy loops of much higher priority, from its import on; its children inherit both."""
    job.wait_imported(rank)
    pid, core = job.pid(rank), min(os.sched_getaffinity(0))
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for loop in loops:
            os.sched_setaffinity(loop.pid, {core})
        for each in (pid, *processes.children_of(pid)):
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, each, 19)
                os.sched_setaffinity(each, {core})
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait(END_S)


# ---- trials --------------------------------------------------------------------------------------------------


def named(report: dict[str, Any]) -> set[int]:
    """Return all ranks that a finding names."""
    return {rank for finding in report["findings"] for rank in finding["ranks"]}


def rank_trial(kind: str, ranks: int, rank: int, after_s: float, *words: str) -> tuple[bool, dict[str, Any]]:
    """A fault of a rank: that one is named, and no other."""
    faults: dict[str, Callable[[Job], contextlib.AbstractContextManager[None]]] = {
        "killed": lambda job: killed(job, rank, after_s),
        "stopped": lambda job: stopped(job, rank),
        "pulsed": lambda job: pulsed(job, rank),
        "slowed": lambda job: slowed(job, rank),
        "silent": lambda job: silent(job, rank),
        "starved": lambda job: starved(job, rank),
    }
    with Job(ranks, *words) as job:
        with faults[kind](job):
            report = job.report()
        codes = job.codes()
    is_exit_1 = all(code == 1 for at, code in enumerate(codes) if at != rank)
    return named(report) == {rank} and is_exit_1, report


def dropped_trial(net: network.Network, ranks: int, rank: int, *words: str) -> tuple[bool, dict[str, Any]]:
    """Packets to one rank's port vanish: port and rank are named."""
    first = 24_000 + random.randrange(4_000)
    port = first + 1 + rank
    net.left.run("nft", "add", "table", "inet", "planted")
    try:
        net.left.run("nft", "add", "chain", "inet", "planted", "in", "{ type filter hook input priority 0; }")
        net.left.run("nft", "add", "rule", "inet", "planted", "in", "tcp", "dport", str(port), "drop")
        with Job(ranks, *words, start=net.left.start, port=first) as job:
            report, codes = job.report(), job.codes()
    finally:
        net.left.run("nft", "delete", "table", "inet", "planted")
    found = report["findings"]
    is_right = [each["ranks"] for each in found] == [[rank]] and f":{port} (" in found[0]["where"]
    return is_right and codes == [1] * ranks, report


def taken_trial(ranks: int, rank: int, *words: str) -> tuple[bool, dict[str, Any]]:
    """Another process listens at a rank's port."""
    first = free_ports(ranks + 2)
    with socket.socket() as taken:
        taken.bind(("", first + 1 + rank))
        taken.listen()
        with Job(ranks, *words, port=first) as job:
            report, codes = job.report(), job.codes()
    found = report["findings"]
    is_right = [each["ranks"] for each in found] == [[rank]] and f":{first + 1 + rank}" in found[0]["text"]
    return is_right and codes == [1] * ranks, report


def frozen_trial(disk: frozen.LoopExt4, ranks: int, *words: str) -> tuple[bool, dict[str, Any]]:
    """A folder whose writes wait: the path is named, on all ranks."""
    with (
        tempfile.TemporaryDirectory() as sound,
        disk.frozen(),
        Job(ranks, *words, "--folder", sound, "--folder", str(disk.path)) as job,
    ):
        report, codes = job.report(), job.codes()
    found = report["findings"]
    wanted = [("folder hangs", str(disk.path), [*range(ranks)])]
    is_right = [(each["code"], each["where"], each["ranks"]) for each in found] == wanted
    return is_right and codes == [1] * ranks, report


def sound_trial(ranks: int, *words: str) -> tuple[bool, dict[str, Any]]:
    with Job(ranks, *words) as job:
        report, codes = job.report(), job.codes()
    return not report["findings"] and codes == [0] * ranks, report


KINDS = ("killed", "stopped", "pulsed", "slowed", "silent", "starved", "dropped", "taken", "frozen", "sound")


def run(report: harness.Report, given: argparse.Namespace) -> None:
    seed = given.seed or secrets.randbits(32)
    report.notes["seed"] = seed
    chance = random.Random(seed)
    wrong, longest = [], 0.0
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(network.Network()) if network.why_not() is None else None
        disk = stack.enter_context(frozen.LoopExt4(64)) if frozen.why_not() is None else None
        trials = [kind for _ in range(given.rounds) for kind in given.kinds.split(",")]
        for kind in trials:
            rank = chance.randrange(given.ranks)
            after_s = chance.uniform(0, MOMENTS_S)
            if kind == "dropped":
                if net is None:
                    continue
                is_right, found = dropped_trial(net, given.ranks, rank)
            elif kind == "frozen":
                if disk is None:
                    continue
                is_right, found = frozen_trial(disk, given.ranks)
            elif kind == "taken":
                is_right, found = taken_trial(given.ranks, rank)
            elif kind == "sound":
                is_right, found = sound_trial(given.ranks)
            else:
                is_right, found = rank_trial(kind, given.ranks, rank, after_s)
            texts = "; ".join(each["text"] for each in found["findings"]) or "no finding"
            line = f"{kind}, rank {rank}: {found['took_s']:.1f} s: {texts}"
            line += f"; not tried: {found['not_tried']}" if not found["findings"] else ""
            harness.say(f"{'right' if is_right else 'WRONG'}: {line}")
            longest = max(longest, found["took_s"])
            if not is_right:
                wrong.append(line)
    report.figure("wrong or no names", len(wrong), "trials", most=0)
    report.figure("longest time after the imports", longest, "s", most=LIMIT_S)
    report.notes["wrong"] = wrong


if __name__ == "__main__":
    options: dict[str, Any] = {
        "ranks": (8, 4, "gloo ranks"),
        "rounds": (3, 1, "of one trial of each kind"),
        "kinds": (",".join(KINDS), ",".join(KINDS), "of faults"),
        "seed": (0, 0, "0: drawn"),
    }
    sys.exit(harness.main(__doc__, run, **options))

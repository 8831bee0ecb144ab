"""log() while something else is broken, beside the same loop with all well: the training process is to notice nothing.

    python tools/bench/log_faults.py [--quick] [--pairs N] [--only NAME]

For each fault pairs of loops of 10,000 paced calls, in turns: all well, then the fault at work; and a loop of the
floor, for the longest call. Bars: the median over the pairs of (p99.9 with the fault / p99.9 without) at most 1.5;
the longest call with the fault at most 20 ms beyond the longest of the floor. Faults of disks and mounts need root
and are left out, and named, where they cannot be made.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness
from tools.bench.probe import Probe
from tools.faults import frozen, processes, tmpfs

SAMPLES = 10_000  # of one loop: fewer make no p99.9
BAR, BEYOND_MS = 1.5, 20.0
SUPERVISOR, WORKER = 0, 1  # words of the status page, see logclient.shm.layout
PATIENT_S = 600.0  # for `stall_s`: nobody replaces a worker that stands still
SEEN_S = 5.0  # until a fault shows in the status: the agent tells of a silent disk after a second
DISK_MIB, SHM_MIB = 96, 48


class Fault:
    """One fault: what it needs, and how it begins and ends around a loop."""

    name: ClassVar[str]
    least_s: ClassVar[float] = 0.0  # how long the fault is to last at full length; the loop runs as long
    once: ClassVar[bool] = False  # ends the agent for good: each pair gets a run of its own
    settings: ClassVar[dict[str, Any]] = {}

    @staticmethod
    def why_not() -> str | None:
        """Why it cannot be made here; None where it can."""
        return None

    @contextmanager
    def place(self) -> Iterator[harness.Place]:
        with harness.place() as place:
            yield place

    def prepare(self, probe: Probe) -> None:
        """Before all pairs of one run."""

    @contextmanager
    def at_work(self, probe: Probe) -> Iterator[Callable[[], None]]:
        """The fault lasts as long as this; what it yields is called every 10 ms meanwhile."""
        raise NotImplementedError
        yield

    def is_seen(self, status: dict[str, Any]) -> bool:
        """Does the status, asked at the end of a loop with the fault, tell that the fault is real?"""
        return True


class WorkerKilled(Fault):
    """SIGKILL twice a second, whoever is the worker."""

    name = "worker killed"

    @contextmanager
    def at_work(self, probe: Probe) -> Iterator[Callable[[], None]]:
        last = 0.0

        def kill() -> None:
            nonlocal last
            if time.monotonic() - last > 0.5:
                last = time.monotonic()
                processes.send(probe.agent_pid(WORKER), signal.SIGKILL)

        yield kill


class WorkerStopped(Fault):
    """SIGSTOP, and a supervisor that is told to wait: nobody drains."""

    name = "worker stopped"
    least_s = 60.0
    settings: ClassVar[dict[str, Any]] = {"stall_s": PATIENT_S}

    @contextmanager
    def at_work(self, probe: Probe) -> Iterator[Callable[[], None]]:
        with processes.stopped(*probe.wait_agent(WORKER)):
            yield _rest

    def is_seen(self, status: dict[str, Any]) -> bool:
        return bool(status["accepted"] - status["durable"] > SAMPLES // 2)


class RingOverflowing(Fault):
    """The smallest lanes, full, and nobody drains: every few calls forget records."""

    name = "ring overflowing"
    settings: ClassVar[dict[str, Any]] = {"stall_s": PATIENT_S, "lanes_bytes": 256 << 10}

    @contextmanager
    def at_work(self, probe: Probe) -> Iterator[Callable[[], None]]:
        with processes.stopped(*probe.wait_agent(WORKER)):
            probe.ask("burst", count=3000)
            yield _rest

    def is_seen(self, status: dict[str, Any]) -> bool:
        return bool(status["accepted"] - status["durable"] > SAMPLES)


class AgentKilled(Fault):
    """Supervisor and worker killed, for good: neither is there to bring the other back."""

    name = "supervisor and worker killed for good"
    once = True

    @contextmanager
    def at_work(self, probe: Probe) -> Iterator[Callable[[], None]]:
        pids = probe.wait_agent(SUPERVISOR, WORKER)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                processes.send(pid, number)
        processes.wait_until(lambda: not any(map(processes.is_alive, pids)), 5.0)
        yield _rest

    def is_seen(self, status: dict[str, Any]) -> bool:
        return not any(processes.is_alive(status["agent"][name]) for name in ("supervisor", "worker"))


class DiskFault(Fault):
    """The run folder lies on an ext4 of its own."""

    _disk: frozen.LoopExt4

    @staticmethod
    def why_not() -> str | None:
        return frozen.why_not()

    @contextmanager
    def place(self) -> Iterator[harness.Place]:
        with frozen.LoopExt4(DISK_MIB) as self._disk, harness.place(runs=self._disk.path) as place:
            yield place


class DiskFrozen(DiskFault):
    """Every write waits in state D."""

    name = "disk frozen"
    least_s = 20.0

    @contextmanager
    def at_work(self, probe: Probe) -> Iterator[Callable[[], None]]:
        with self._disk.frozen():
            yield _rest

    def is_seen(self, status: dict[str, Any]) -> bool:
        return bool(status["agent"]["disk_silent_s"])


class DiskFull(DiskFault):
    """ENOSPC on every write."""

    name = "disk full"

    @contextmanager
    def at_work(self, probe: Probe) -> Iterator[Callable[[], None]]:
        self._disk.fill()
        try:
            yield _rest
        finally:
            self._disk.free()

    def is_seen(self, status: dict[str, Any]) -> bool:
        return bool(status["agent"]["disk_errno"])


class MemoryFull(Fault):
    """The tmpfs of lanes and spill is full."""

    name = "/dev/shm full"
    _shm: tmpfs.SmallTmpfs

    @staticmethod
    def why_not() -> str | None:
        return tmpfs.why_not()

    @contextmanager
    def place(self) -> Iterator[harness.Place]:
        with tmpfs.SmallTmpfs(SHM_MIB) as self._shm, harness.place(memory=self._shm.path) as place:
            yield place

    @contextmanager
    def at_work(self, probe: Probe) -> Iterator[Callable[[], None]]:
        self._shm.fill()
        try:
            yield _rest
        finally:
            self._shm.free()


FAULTS: tuple[type[Fault], ...] = (
    WorkerKilled,
    WorkerStopped,
    AgentKilled,
    DiskFrozen,
    DiskFull,
    MemoryFull,
    RingOverflowing,
)


def _rest() -> None:
    pass


class Loops:
    """The results of one fault."""

    def __init__(self, pace_ns: int, pace: float) -> None:
        self.pace_ns = pace_ns
        self.pace = pace  # by how much the fault's own length is divided
        self.found: dict[str, list[dict[str, float]]] = {"floor": [], "well": [], "fault": []}

    def loop(self, probe: Probe, name: str, count: int, meanwhile: Callable[[], None] = _rest) -> None:
        probe.send("measure", call="floor" if name == "floor" else "log", count=count, pace_ns=self.pace_ns)
        self.found[name].append(probe.answer(meanwhile))

    def pair(self, probe: Probe, fault: Fault) -> None:
        self.loop(probe, "floor", SAMPLES)
        self.loop(probe, "well", SAMPLES)
        count = max(SAMPLES, int(fault.least_s / self.pace * 1e9 / self.pace_ns))
        with fault.at_work(probe) as meanwhile:
            self.loop(probe, "fault", count, meanwhile)
            processes.wait_until(
                lambda: fault.is_seen(probe.ask("status")),
                SEEN_S,
                0.1,
                f"{fault.name}, as the status tells it,",
            )
        if not fault.once:
            probe.ask("flush", timeout_s=20.0)  # until the agent has caught up

    def all(self, name: str, quantile: str) -> list[float]:
        return [one[quantile] for one in self.found[name]]


def measure(fault: Fault, given: argparse.Namespace) -> Loops:
    loops = Loops(int(given.pace_us * 1000), given.pace)
    runs = given.pairs if fault.once else 1
    for _ in range(runs):
        with ExitStack() as stack:
            place = stack.enter_context(fault.place())
            probe = stack.enter_context(Probe(place, **fault.settings))
            probe.wait_agent(SUPERVISOR, WORKER)
            probe.ask("measure", call="floor", count=500, pace_ns=loops.pace_ns)
            probe.ask("measure", call="log", count=500, pace_ns=loops.pace_ns)
            for _ in range(given.pairs // runs):
                loops.pair(probe, fault)
            probe.ask("finish", timeout_s=0.0 if fault.once else 20.0)
    return loops


def run(report: harness.Report, given: argparse.Namespace) -> None:
    left_out = {}
    for kind in FAULTS:
        fault = kind()
        if given.only and given.only not in fault.name:
            continue
        if reason := fault.why_not():
            left_out[fault.name] = reason
            harness.say(f"{fault.name}: left out: {reason}")
            continue
        loops = measure(fault, given)
        well, bad = loops.all("well", "p99.9"), loops.all("fault", "p99.9")
        report.figure(
            f"p99.9 of log(), {fault.name}",
            harness.median(bad),
            "us",
            well=harness.median(well),
            ratio=harness.median([b / a for a, b in zip(well, bad, strict=True)]),
            most_ratio=BAR,
        )
        longest = {name: max(loops.all(name, "longest")) / 1e3 for name in loops.found}
        beyond = longest["fault"] - longest["floor"]
        report.figure(f"longest call beyond the floor's, {fault.name}", beyond, "ms", most=BEYOND_MS)
        report.notes[fault.name] = {
            "longest_ms": {name: harness.rounded(value) for name, value in longest.items()},
            "p99.9_us": {
                name: [round(value, 1) for value in loops.all(name, "p99.9")] for name in loops.found
            },
            "calls": sum(int(one["samples"]) for one in loops.found["fault"]),
        }
    report.notes["left_out"] = left_out


if __name__ == "__main__":
    harness.use_environment()
    options: dict[str, Any] = {
        "pairs": (9, 5, "pairs of loops for each fault"),
        "pace_us": (1000.0, 100.0, "us between calls"),
        "pace": (1.0, 20.0, "divide the length of faults that have one (60 s stopped, 20 s frozen) by this"),
        "only": ("", "", "the faults whose name holds this"),
    }
    sys.exit(harness.main(__doc__, run, **options))

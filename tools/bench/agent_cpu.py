"""CPU time of the agent per million points, 10 values a record; its memory; and what it costs while nothing is logged.

    python tools/bench/agent_cpu.py [--quick] [--points N] [--idle-s S]

CPU is user plus system time of supervisor and worker together, from their start until everything is durable and
sealed and they have left: this bench becomes their parent, so the kernel tells it exactly. Start and end of an agent
that got next to nothing to do is measured too, and told apart.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from glob import glob
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness
from tools.bench.probe import Probe
from tools.faults import processes

VALUES = 10
BAR_S = 0.3  # per million points
MEMORY_MIB = 60.0
IDLE_PERCENT = 0.5
LEAVE_S = 120.0


class Load:
    """One trainer and its agent, watched until both are gone."""

    def __init__(
        self, python: str, records: int, rate: int | None, env: dict[str, str] | None = None
    ) -> None:
        """`env`: settings besides, of a server for example. Children that are there now are no agents."""
        self.python = python
        self._env = env or {}
        self._others = set(processes.children_of(os.getpid()))
        self.records = records
        self.rate = rate
        self.cpu_s = 0.0
        self.memory: dict[str, int] = {}  # largest sums seen over supervisor and worker
        self.status: dict[str, Any] = {}
        self.wall_s = 0.0

    def run(self) -> None:
        from logclient import layout

        with harness.place() as place:
            truth = place.memory / "truth"
            plan = {"records": self.records, "values": VALUES, "truth": str(truth), "finish_timeout_s": 60.0}
            if self.rate:
                plan["rate"] = self.rate
            begin = time.monotonic()
            trainer = subprocess.Popen(
                [self.python, "-m", "tests.process.trainer", json.dumps(plan)],
                stdout=subprocess.PIPE,
                cwd=harness.ROOT,
                env={**place.env, **self._env},
            )
            agents = self._watch(place, trainer, (layout.AGENT_SUPERVISOR, layout.AGENT_WORKER))
            self.wall_s = time.monotonic() - begin
            assert trainer.stdout is not None
            self.status = json.loads(trainer.stdout.read())
            trainer.stdout.close()
            if not agents:
                raise RuntimeError("No agent was seen.")

    def _watch(
        self, place: harness.Place, trainer: subprocess.Popen[bytes], words: tuple[int, int]
    ) -> set[int]:
        """Reap whoever ends; add up the CPU time of all but the trainer."""
        deadline = time.monotonic() + self.records / (self.rate or 100_000) + LEAVE_S
        agents: set[int] = set()
        while True:
            for page in glob(f"{place.memory}/logclient-*/*/agent.status"):
                self._look(Path(page), words, agents)
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:  # all are gone, the orphans too
                return agents
            if pid == 0 and self._others.issuperset(processes.children_of(os.getpid())):
                return agents
            if pid == trainer.pid:
                trainer.returncode = os.waitstatus_to_exitcode(status)
                if trainer.returncode:
                    raise RuntimeError(f"The trainer ended with {trainer.returncode}.")
            elif pid:
                self.cpu_s += used.ru_utime + used.ru_stime
            elif time.monotonic() > deadline:
                raise TimeoutError("The agent did not leave.")
            else:
                time.sleep(0.1)

    def _look(self, page: Path, words: tuple[int, int], agents: set[int]) -> None:
        try:
            data = page.read_bytes()
            pids = [int.from_bytes(data[8 * word : 8 * word + 8], "little") for word in words]
            if not all(pids):
                return
            found = [harness.memory_of(pid) for pid in pids]  # of both, or of none
        except OSError:
            return  # left meanwhile
        agents.update(pids)
        for name in ("Rss", "Pss"):
            total = sum(one.get(name, 0) for one in found)
            self.memory[name] = max(self.memory.get(name, 0), total)


def name_of(rate: int | None) -> str:
    return f"at {rate:,} records/s" if rate else "flat out"


def measure_load(report: harness.Report, python: str, points: int) -> None:
    """The figures that need a trainer at work."""
    bare = Load(python, 10, None)
    bare.run()
    report.figure("agent CPU to start and end", bare.cpu_s, "s")
    resident: list[float] = []
    for rate in (5_000, 20_000, None):
        load = Load(python, points // VALUES, rate)
        load.run()
        stored = load.status["durable"]
        report.figure(
            f"agent CPU per million points stored, {name_of(rate)}",
            load.cpu_s / (stored * VALUES / 1e6),
            "s",
            most=BAR_S,
        )
        report.figure(
            f"the same without its start and end, {name_of(rate)}",
            (load.cpu_s - bare.cpu_s) / (stored * VALUES / 1e6),
            "s",
        )
        resident.append(load.memory.get("Rss", 0) / (1 << 20))
        report.notes[name_of(rate)] = {
            "logged": load.status["accepted"] + load.status["refused"],
            "stored": stored,
            "forgotten": load.status["forgotten"],
            "agent_cpu_s": harness.rounded(load.cpu_s),
            "memory_mib": {name: harness.rounded(size / (1 << 20)) for name, size in load.memory.items()},
        }
    report.figure("memory of supervisor and worker, largest sum seen", max(resident), "MiB", most=MEMORY_MIB)


def measure_idle(report: harness.Report, python: str, seconds: float) -> None:
    """CPU of both processes while a run is open and nothing is logged."""
    from logclient import layout

    with harness.place() as place, Probe(place, python) as probe:
        pids = probe.wait_agent(layout.AGENT_SUPERVISOR, layout.AGENT_WORKER)
        time.sleep(3.0)  # until it takes the run for idle
        begin, before = time.monotonic(), sum(map(cpu_s, pids))
        time.sleep(seconds)
        used, wall = sum(map(cpu_s, pids)) - before, time.monotonic() - begin
        report.figure("agent CPU while idle", 100 * used / wall, "% of a core", most=IDLE_PERCENT)
        probe.ask("finish", timeout_s=10.0)
        place.wait_empty()


def cpu_s(pid: int) -> float:
    """User and system time of a process so far, by the scheduler's own count (ticks of 10 ms are too coarse)."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    return total / 1e9


def run(report: harness.Report, given: argparse.Namespace) -> None:
    with harness.plain_python() as python:
        measure_idle(report, python, given.idle_s)
        harness.adopt_orphans()
        measure_load(report, python, int(given.points))


if __name__ == "__main__":
    harness.use_environment()
    options: dict[str, Any] = {
        "points": (10e6, 1e6, "points of each load"),
        "idle_s": (60.0, 8.0, "seconds of looking at an idle agent"),
    }
    sys.exit(harness.main(__doc__, run, **options))

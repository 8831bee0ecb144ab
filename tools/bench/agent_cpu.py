"""CPU time of the agent per million points, 10 values a record, beside a floor or another commit; and its memory.

    python tools/bench/agent_cpu.py [--quick] [--points N]
    python tools/bench/agent_cpu.py --before CHECKOUT [--pairs N] [--pair-points N]
    git worktree add /tmp/before COMMIT      # makes such a checkout

CPU is user plus system time of supervisor and worker together, from their start until everything is durable and
sealed and they have left: this bench becomes their parent, so the kernel tells it exactly. Start and end of an agent
that got next to nothing to do is measured too, and reported apart.

The floor is a process that sleeps and wakes as often as a worker does while records come (ten times a second), and
every 0.8 s compresses as many bytes as were logged, appends them to a file and fsyncs it. It runs in the same run,
right after each load, for the same points at the same rate. With `--before` the two checkouts take turns at 5,000
records a second instead; a figure is the median over the pairs of (this / before). `agent_rest.py` has what an agent
at rest costs.
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
from tools.faults import processes

VALUES = 10
RATE = 5_000  # records a second, of the comparison with another commit
RATIO_BEFORE = 0.65  # bars
RATIO_FLOOR = 6.0
MEMORY_MIB = 60.0
LEAVE_S = 120.0


class Load:
    """One trainer and its agent, watched until both are gone."""

    def __init__(
        self,
        python: str,
        records: int,
        rate: int | None,
        env: dict[str, str] | None = None,
        root: Path = harness.ROOT,
    ) -> None:
        """`env`: settings besides, of a server for example; `root`: the checkout that is measured.

        Children that are there now are no agents.
        """
        self.python = python
        self._root = root
        self._env = env or {}
        self._others = set(processes.children_of(os.getpid()))
        self.records = records
        self.rate = rate
        self.cpu_s = 0.0
        self.memory: dict[str, int] = {}  # largest sums seen over supervisor and worker
        self.status: dict[str, Any] = {}
        self.wall_s = 0.0

    def run(self) -> None:
        from logclient.shm import layout

        with harness.place() as place:
            truth = place.memory / "truth"
            plan = {"records": self.records, "values": VALUES, "truth": str(truth), "finish_timeout_s": 60.0}
            if self.rate:
                plan["rate"] = self.rate
            begin = time.monotonic()
            trainer = subprocess.Popen(
                [self.python, "-m", "tests.process.trainer", json.dumps(plan)],
                stdout=subprocess.PIPE,
                cwd=self._root,
                env={**harness.without_path(place.env), **self._env},
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
                self._look(Path(page), words)
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
                agents.add(pid)
                self.cpu_s += used.ru_utime + used.ru_stime
            elif time.monotonic() > deadline:
                raise TimeoutError("The agent did not leave.")
            else:
                time.sleep(0.1)

    def _look(self, page: Path, words: tuple[int, int]) -> None:
        try:
            data = page.read_bytes()
            pids = [int.from_bytes(data[8 * word : 8 * word + 8], "little") for word in words]
            if not all(pids):
                return
            found = [harness.memory_of(pid) for pid in pids]  # of both, or of none
        except OSError:
            return  # left meanwhile, or a kernel without smaps_rollup
        for name in ("Rss", "Pss"):
            total = sum(one.get(name, 0) for one in found)
            self.memory[name] = max(self.memory.get(name, 0), total)


FLOOR = """
import json, os, struct, sys, tempfile, time, zlib
from random import Random
points, rate = int(sys.argv[1]), float(sys.argv[2])
noise = Random(1)
block = struct.pack("<4096d", *(noise.gauss(0, 1) for _ in range(4096)))
with tempfile.TemporaryFile() as file:
    begun, done, wakes = time.monotonic(), 0, 0
    before = time.process_time()
    while done < points:
        time.sleep(0.1)
        wakes += 1
        if wakes % 8 == 0:
            due = min(points, int((time.monotonic() - begun) * rate))
            while done < due:
                count = min(4096, due - done)
                file.write(zlib.compress(block[: 8 * count], 1))
                done += count
            file.flush()
            os.fsync(file.fileno())
    print(time.process_time() - before)
"""


def floor_s(python: str, points: int, rate: float) -> float:
    """CPU seconds per million points of a process that sleeps as often, and compresses and stores as much."""
    words = [python, "-c", FLOOR, str(points), str(rate)]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, text=True, check=True, timeout=points / rate + LEAVE_S
    )
    return float(done.stdout) / (points / 1e6)


def name_of(rate: int | None) -> str:
    return f"at {rate:,} records/s" if rate else "flat out"


def measure_load(report: harness.Report, python: str, points: int) -> None:
    """The figures that need a trainer at work."""
    bare = Load(python, 10, None)
    bare.run()
    report.figure("agent CPU to start and end", bare.cpu_s, "s")
    resident: list[float] = []
    costs: dict[int | None, float] = {}
    for rate in (RATE, 20_000, None):
        load = Load(python, points // VALUES, rate)
        load.run()
        stored = load.status["durable"]
        costs[rate] = load.cpu_s / (stored * VALUES / 1e6)
        floor = floor_s(python, stored * VALUES, VALUES * rate if rate else stored * VALUES / load.wall_s)
        report.figure(
            f"agent CPU per million points stored, {name_of(rate)}",
            costs[rate],
            "s",
            floor=floor,
            ratio=costs[rate] / floor,
            most_ratio=RATIO_FLOOR,
        )
        report.figure(
            f"the same without its start and end, {name_of(rate)}",
            (load.cpu_s - bare.cpu_s) / (stored * VALUES / 1e6),
            "s",
        )
        if load.memory:
            resident.append(load.memory["Rss"] / (1 << 20))
        report.notes[name_of(rate)] = {
            "logged": load.status["accepted"] + load.status["refused"],
            "stored": stored,
            "forgotten": load.status["forgotten"],
            "agent_cpu_s": harness.rounded(load.cpu_s),
            "memory_mib": {name: harness.rounded(size / (1 << 20)) for name, size in load.memory.items()},
        }
    report.figure(
        f"agent CPU per million points, {name_of(RATE)}, beside flat out",
        costs[RATE],
        "s",
        well=costs[None],
        ratio=costs[RATE] / costs[None],
    )
    if resident:  # else this kernel tells no process's memory
        report.figure(
            "memory of supervisor and worker, largest sum seen", max(resident), "MiB", most=MEMORY_MIB
        )


def compare(report: harness.Report, given: argparse.Namespace) -> None:
    """This checkout and another one in turns, at `RATE`."""
    from tools.bench.against import python_of

    before = Path(given.before).resolve()
    if not (before / "logclient" / "__init__.py").is_file():
        raise SystemExit(f"--before {given.before!r} is no checkout of this repository.")
    costs: dict[str, list[float]] = {"now": [], "before": [], "flat out": []}
    points = int(given.pair_points)
    with python_of(harness.ROOT) as here, python_of(before) as there:
        arms = {
            "now": (here, harness.ROOT, RATE),
            "before": (there, before, RATE),
            "flat out": (here, harness.ROOT, None),
        }
        for number in range(given.pairs):
            for name in list(arms)[:: -1 if number % 2 else 1]:
                python, root, rate = arms[name]
                load = Load(python, points // VALUES, rate, root=root)
                load.run()
                costs[name].append(load.cpu_s / (load.status["durable"] * VALUES / 1e6))
            harness.say(f"pair {number + 1} of {given.pairs}, load {os.getloadavg()[0]:.2f}")
    for beside, most in (("before", RATIO_BEFORE), ("flat out", None)):
        ratios = [now / other for now, other in zip(costs["now"], costs[beside], strict=True)]
        what = "the commit before" if beside == "before" else beside
        report.figure(
            f"agent CPU per million points, {name_of(RATE)}, beside {what}",
            harness.median(costs["now"]),
            "s",
            well=harness.median(costs[beside]),
            ratio=harness.median(ratios),
            most_ratio=most,
        )
    report.notes["pairs"] = {name: [harness.rounded(cost) for cost in found] for name, found in costs.items()}


def run(report: harness.Report, given: argparse.Namespace) -> None:
    harness.adopt_orphans()
    if given.before:
        compare(report, given)
        return
    with harness.plain_python() as python:
        measure_load(report, python, int(given.points))


if __name__ == "__main__":
    harness.use_environment()
    options: dict[str, Any] = {
        "points": (10e6, 1e6, "points of each load"),
        "before": ("", "", "checkout of a commit to compare with, and nothing else"),
        "pairs": (5, 3, "of the comparison"),
        "pair_points": (3e6, 1e6, "points of each load of the comparison"),
    }
    sys.exit(harness.main(__doc__, run, **options))

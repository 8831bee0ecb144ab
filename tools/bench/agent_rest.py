"""CPU time of an agent at rest, beside as many processes that only sleep a second and wake.

    python tools/bench/agent_rest.py [--quick] [--seconds S] [--ranks LIST] [--system off|S]

A run is open and nothing is logged any more: supervisor, worker, observer and the process that ships (a server is set,
its collector is idle) are watched by the scheduler's own count, all threads and children included. The floor runs
beside them for the same seconds: as many processes of the same interpreter, each in a loop of `time.sleep(1)`. An agent
takes short pauses for half a minute after the last record; the watch begins afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

if __name__ == "__main__":
    harness.use_environment()

from logclient.shm import layout
from tools.bench.probe import Probe
from tools.collector import collector
from tools.faults import processes

RATIO = 10.0  # bar
SETTLE_S = 40.0  # the short pauses after the last record, and a heartbeat
ACKED_S = 60.0
PROCESSES = {
    "supervisor": layout.AGENT_SUPERVISOR,
    "worker": layout.AGENT_WORKER,
    "ship process": layout.AGENT_SHIPPER,
    "observer": layout.AGENT_OBSERVER,
}
_CHILDREN = slice(13, 15)  # user and system time of ended children, of the fields behind the name
SLEEPER = "import time\nwhile True: time.sleep(1)"


def cpu_s(pid: int) -> float:
    """User and system time of a process so far: of all its threads, and of its children.

    By the scheduler, since ticks of 10 ms are too coarse; for children that have ended there is nothing finer.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    total = sum(map(int, fields[_CHILDREN])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    for task in os.listdir(f"/proc/{pid}/task"):
        total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    return total / 1e9


def each_cpu_s(pids: list[int]) -> list[float]:
    """Return that of these processes, each with its descendants that are not in the list, or counted already."""
    counted = set(pids)
    found = []
    for pid in reversed(pids):  # a supervisor comes first, and has the others as children
        more = set(processes.children_of(pid)) - counted
        counted |= more
        found.append(sum(map(cpu_s, [pid, *more])))
    return found[::-1]


@contextlib.contextmanager
def sleepers(python: str, count: int) -> Iterator[list[int]]:
    """So many processes that only sleep and wake."""
    started = [subprocess.Popen([python, "-c", SLEEPER]) for _ in range(count)]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


def measure(report: harness.Report, python: str, ranks: int, seconds: float, system: str) -> None:
    """One run with so many ranks on this node."""
    with contextlib.ExitStack() as stack:
        there = stack.enter_context(collector())
        place = stack.enter_context(harness.place())
        probes = [
            stack.enter_context(
                Probe(
                    place,
                    python,
                    env={**there.env, "LOGCLIENT_SYSTEM": system},
                    id=f"rest-{ranks}",
                    rank=rank,
                )
            )
            for rank in range(ranks)
        ]
        for probe in probes:
            probe.ask("burst", count=10)
            probe.ask("flush", timeout_s=30.0)
        pids = probes[0].wait_agent(*PROCESSES.values())
        wait_acked(probes)
        floor = stack.enter_context(sleepers(python, len(pids)))
        time.sleep(SETTLE_S)
        before = each_cpu_s(pids + floor)
        begun = time.monotonic()
        time.sleep(seconds)
        used = [now - was for now, was in zip(each_cpu_s(pids + floor), before, strict=True)]
        wall_s = time.monotonic() - begun
        agent, slept = used[: len(pids)], used[len(pids) :]
        report.figure(
            f"agent at rest, {ranks} rank{'s' * (ranks > 1)}",
            100 * sum(agent) / wall_s,
            "% of a core",
            floor=100 * sum(slept) / wall_s,
            ratio=sum(agent) / sum(slept),
            most_ratio=RATIO,
        )
        for name, cpu in zip(PROCESSES, agent, strict=True):
            report.figure(f"its {name}, {ranks} rank{'s' * (ranks > 1)}", 100 * cpu / wall_s, "% of a core")
        for probe in probes[::-1]:
            probe.ask("finish", timeout_s=10.0)
        place.wait_empty()


def wait_acked(probes: list[Probe]) -> None:
    """Until the collector has all: an agent that ships is not at rest."""
    deadline = time.monotonic() + ACKED_S
    for probe in probes:
        while (status := probe.ask("status"))["acked"] < status["accepted"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"The collector has {status['acked']} of {status['accepted']} records.")
            time.sleep(0.1)


def run(report: harness.Report, given: argparse.Namespace) -> None:
    with harness.plain_python() as python:
        for ranks in map(int, given.ranks.split(",")):
            measure(report, python, ranks, given.seconds, given.system)


if __name__ == "__main__":
    options: dict[str, Any] = {
        "seconds": (60.0, 20.0, "seconds of watching"),
        "ranks": ("1,8", "1,8", "processes of the run, separated by commas"),
        "system": ("10", "10", "LOGCLIENT_SYSTEM: seconds between two samples of the host, or off"),
    }
    sys.exit(harness.main(__doc__, run, **options))

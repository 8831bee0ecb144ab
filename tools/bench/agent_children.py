"""What forked children that log 10 rows each cost the agent, first and last: CPU a child, memory, descriptors.

    python tools/bench/agent_children.py [--quick] [--children N]

Eight live at a time, and all log into one run. CPU and memory are the worker's; a worker that is replaced meanwhile
is an error.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

ROWS, AT_ONCE, PARTS = 10, 8, 4


class Worker:
    """CPU seconds, private memory and descriptors of the agent's worker."""

    def __init__(self, pid: int) -> None:
        self._proc = Path(f"/proc/{pid}")

    def cpu_s(self) -> float:
        fields = (self._proc / "stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        lines = (self._proc / "status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

    def descriptors(self) -> int:
        return len(os.listdir(self._proc / "fd"))


def fork_children(count: int, work: Any) -> int:
    """So many children, at most `AT_ONCE` alive; the number of those that did not end with 0."""
    alive: set[int] = set()
    wrong = 0
    for number in range(count + AT_ONCE):
        if number < count:
            pid = os.fork()
            if pid == 0:
                os._exit(work(number))
            alive.add(pid)
        if len(alive) >= AT_ONCE or (number >= count and alive):
            pid, status = os.wait()
            alive.discard(pid)
            wrong += status != 0
    return wrong


def run(report: harness.Report, given: argparse.Namespace) -> None:
    with harness.place() as place:
        harness.enter(place)
        import logclient

        run = logclient.init("bench", quiet=True)
        assert isinstance(run, logclient.Run)

        def work(number: int) -> int:
            for step in range(ROWS):
                logclient.log(step, {"loss": step / 2, "child": float(number)})
            return int(logclient.status()["accepted"] != ROWS)

        deadline = time.monotonic() + 20
        while not (pid := run.status()["agent"]["worker"]):
            if time.monotonic() > deadline:
                raise TimeoutError("No agent came.")
            time.sleep(0.01)
        worker = Worker(pid)
        memory = [worker.memory_mib()]
        cpu, descriptors, wrong, begin = [worker.cpu_s()], 0, 0, time.monotonic()
        for _ in range(PARTS):
            wrong += fork_children(given.children // PARTS, work)
            cpu.append(worker.cpu_s())
            memory.append(worker.memory_mib())
            descriptors = max(descriptors, worker.descriptors())
        wall_s = time.monotonic() - begin
        if wrong or run.status()["agent"]["worker"] != pid:
            raise RuntimeError(f"{wrong} children ended wrongly; worker {pid}, now {run.status()['agent']}.")
        part = given.children // PARTS
        for number, name in ((0, "first"), (PARTS - 1, "last")):
            report.figure(
                f"agent CPU a child, {name} {part:,}", 1e3 * (cpu[number + 1] - cpu[number]) / part, "ms"
            )
        report.figure(
            "memory of the worker, grown a child", 1024 * (memory[-1] - memory[0]) / (PARTS * part), "KiB"
        )
        report.figure("descriptors of the worker, most seen", descriptors, "open")
        report.notes["children"] = {"a second": harness.rounded(PARTS * part / wall_s), "memory_mib": memory}
        run.finish(60)
        place.wait_empty()


if __name__ == "__main__":
    harness.use_environment()
    sys.exit(harness.main(__doc__, run, children=(2000, 200, "forked children")))

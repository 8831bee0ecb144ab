"""First `log` of eight children that are forked right after `init`, beside children that only reserve a file as large.

    python tools/bench/children_first.py [--quick] [--rounds N]

Both kinds fork in turns, from a process that has just called `init`. The bar is on the ratio of the 90th percentiles
in the same run; the median in ms has one of its own (10 ms), which tells something on an idle machine only.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

CHILDREN = 8
FILE_BYTES = 256 << 10  # lanes of a forked child


def reserve(folder: str) -> str:
    """Make a file of that size in shared memory, mapped and populated; its path."""
    path = os.path.join(folder, os.urandom(8).hex())
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.posix_fallocate(fd, 0, FILE_BYTES)
    mmap.mmap(fd, FILE_BYTES, mmap.MAP_SHARED | mmap.MAP_POPULATE)
    os.close(fd)
    return path


def fork_all(work: Callable[[], object]) -> list[float]:
    """Milliseconds that `work` took in each of the children, which run at the same time."""
    page = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("d")
    children = []
    for number in range(CHILDREN):
        pid = os.fork()
        if pid == 0:
            begun = time.perf_counter()
            work()
            page[number] = 1e3 * (time.perf_counter() - begun)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    return [float(value) for value in page[:CHILDREN]]


def at(values: list[float], part: float) -> float:
    return sorted(values)[int(part * (len(values) - 1))]


def run(report: harness.Report, given: argparse.Namespace) -> None:
    first: list[float] = []
    floor: list[float] = []
    with harness.place() as place:
        harness.enter(place)
        import logclient

        shm = os.environ["LOGCLIENT_SHM_DIR"]
        for number in range(2 * given.rounds):
            run = logclient.init("bench", quiet=True)
            if number % 2:
                first += fork_all(partial(run.log, 0, {"loss": 1.0}))
            else:
                floor += fork_all(partial(reserve, shm))
                for name in os.listdir(shm):
                    if os.path.isfile(os.path.join(shm, name)):
                        os.unlink(os.path.join(shm, name))
            run.finish(60)
        place.wait_empty()
    report.figure("first log of a child, median", at(first, 0.5), "ms", floor=at(floor, 0.5), most=10.0)
    slow, slow_floor = at(first, 0.9), at(floor, 0.9)
    ratio = slow / slow_floor
    report.figure("first log of a child, p90", slow, "ms", floor=slow_floor, ratio=ratio, most_ratio=3.0)
    report.notes["ms"] = {
        "log": {"median": at(first, 0.5), "p90": at(first, 0.9), "most": max(first)},
        "reserve": {"median": at(floor, 0.5), "p90": at(floor, 0.9), "most": max(floor)},
    }


if __name__ == "__main__":
    harness.use_environment()
    sys.exit(harness.main(__doc__, run, rounds=(50, 5, "times eight children of each kind")))

"""`logclient sync` of a large offline run: memory, time against live ingest, and what it sends after it was killed.

    python tools/bench/sync.py [--quick] [--points N] [--share PERCENT] [--runs N] [--only large|runs]

A run folder of N points (10 values a record, noise) is written as the agent seals it, and goes to a collector on
loopback: once as a whole, once killed when so much is there and started again. Live ingest is the same number of points
from a client that has them in memory and sends parcels of the same size to a collector of its own: what no way through
a disk can beat.

Many small runs: so many, and a fifth and a twentieth of them, go to a collector of their own; each run is to cost the
same.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

if __name__ == "__main__":
    harness.use_environment()

import requests

from tools.bench.feed import Feed
from tools.collector import Collector, collector

VALUES = 10
MEMORY_MIB, RATIO, AGAIN, LINEAR = 200.0, 1.5, 35.0, 1.3
SMALL_RECORDS = 30
SEGMENT_RECORDS = 20_000
TICK_S = 0.02


def make_run(folder: Path, points: int) -> int:
    """Records of a run as the agent leaves them; how many."""
    from logclient.shm.columns import Columns
    from logclient.shm.record import Shape
    from logclient_backend.wal.encoded import StreamColumns
    from logclient_backend.wal.files import REAL
    from logclient_backend.wal.seal import sealed_pieces, write_sealed
    from tests.backend.runs.build import NOW_NS, NodeMaker, raw

    made = NodeMaker(folder, "large")
    made.process(1, end={"time": NOW_NS, "alive": False, "exit_code": 0})
    shape = Shape(tuple(f"metric{at}" for at in range(VALUES)), "d" * VALUES)
    chance = random.Random(1)
    noise = [
        array("Q", array("d", [chance.gauss(0, 1) for _ in range(SEGMENT_RECORDS)]).tobytes())
        for _ in range(VALUES)
    ]
    records = points // VALUES
    for number, first in enumerate(range(1, records + 1, SEGMENT_RECORDS)):
        seqs = range(first, min(first + SEGMENT_RECORDS, records + 1))
        cells: list[Any] = [column[: len(seqs)] for column in noise]
        times = array("q", [NOW_NS + seq * 1_000_000 + seq * seq % 9973 for seq in seqs])
        columns = Columns(shape, None, array("Q", seqs), array("Q", seqs), array("q", seqs), times, cells)
        stream, process, lane = raw((1, 1, 0))
        item = StreamColumns(stream, process, lane, columns)
        pieces = sealed_pieces([item], b"writer-1", number + 1, times[0])
        write_sealed(REAL, str(made.path), b"writer-1", number + 1, pieces)
    made.told(1, 1, records, records)
    made.save()
    return records


class Sync:
    """One `logclient sync`."""

    def __init__(self, folder: Path, to: Collector) -> None:
        words = [
            sys.executable,
            "-m",
            "logclient_backend",
            "sync",
            str(folder),
            "--server",
            to.address,
            "--json",
        ]
        env = {**harness.clean_environment(), "LOGCLIENT_TOKEN": to.token}
        # a pipe that nobody reads meanwhile would fill and stop it
        self._out = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(words, cwd=harness.ROOT, env=env, stdout=self._out, text=True)
        self.memory_mib = 0.0
        self._begin = time.monotonic()
        self.seconds = 0.0

    def wait(self) -> list[dict[str, Any]]:
        """What it says of its uploads."""
        while self.process.poll() is None:
            self.look()
            time.sleep(TICK_S)
        self.seconds = time.monotonic() - self._begin
        self._out.seek(0)
        out = self._out.read()
        if self.process.returncode:
            raise RuntimeError(f"sync ended with {self.process.returncode}: {out}")
        found: list[dict[str, Any]] = json.loads(out)["uploads"]
        return found

    def look(self) -> None:
        """How much memory it has at most, as the kernel counts."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return
        if found := re.search(r"VmHWM:\s+(\d+)", status):
            self.memory_mib = max(self.memory_mib, int(found[1]) / 1024)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def records_at(to: Collector, run: str) -> int:
    """That the collector has committed."""
    answer = requests.get(
        f"{to.url}/api/v1/runs", headers={"Authorization": f"Bearer {to.token}"}, timeout=30
    )
    answer.raise_for_status()
    return sum(int(each["records"]) for each in answer.json()["runs"] if each["id"] == run)


def make_small(folder: Path, number: int) -> None:
    """A finished run of one key."""
    from tests.backend.runs.build import NOW_NS, simple_run

    simple_run(folder, f"run-{number}", SMALL_RECORDS, name=f"small {number}", created_ns=NOW_NS + number)


def run_small(report: harness.Report, runs: int) -> None:
    """CPU is compared, not time: it counts whatever else the machine does, and the start of two processes is left out
    by looking at what the runs beyond the smaller number cost."""
    counts = sorted({max(1, runs // 20), max(2, runs // 5), runs})
    spent: list[float] = []
    notes: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="logclient-bench-") as name:
        folder = Path(name) / "runs"
        made = 0
        for count in counts:
            for number in range(made, count):
                make_small(folder, number)
            made = count
            with collector() as there:
                before = _children_cpu_s() + there.cpu_s
                whole = Sync(folder, there)
                uploads = whole.wait()
                spent.append(_children_cpu_s() + there.cpu_s - before)
            sent = sum(upload["sent"] for upload in uploads)
            if sent != count * SMALL_RECORDS:
                raise RuntimeError(f"{sent} of {count * SMALL_RECORDS} records were sent.")
            notes[str(count)] = {
                "seconds": harness.rounded(whole.seconds),
                "cpu_s": harness.rounded(spent[-1]),
                "memory_mib": harness.rounded(whole.memory_mib),
            }
            harness.say(f"{count:,} runs: {notes[str(count)]}")
    report.notes["small_runs"] = notes
    few = (spent[1] - spent[0]) / (counts[1] - counts[0])
    many = (spent[2] - spent[1]) / (counts[2] - counts[1])
    report.figure(
        f"CPU of sync and collector per run, up to {counts[2]:,} beside up to {counts[1]:,}",
        many * 1e3,
        "ms",
        floor=few * 1e3,
        ratio=many / few,
        most_ratio=LINEAR,
    )
    report.figure(f"memory of sync, {runs:,} runs", whole.memory_mib, "MiB", most=MEMORY_MIB)


def _children_cpu_s() -> float:
    """Of those that ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def run(report: harness.Report, given: argparse.Namespace) -> None:
    if given.only in ("", "runs"):
        run_small(report, given.runs)
    if given.only in ("", "large"):
        run_large(report, given)


def run_large(report: harness.Report, given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="logclient-bench-") as name:
        folder = Path(name) / "runs"
        records = make_run(folder, int(given.points))
        times: dict[str, list[float]] = {"live": [], "sync": []}
        memory = 0.0
        for _ in range(given.pairs):
            with collector() as there:
                feed = Feed(there, run="live", values=VALUES)
                times["live"].append(feed.all_of(records))
            with collector() as there:
                whole = Sync(folder, there)
                (upload,) = whole.wait()
                if upload["sent"] != records:
                    raise RuntimeError(f"{upload['sent']} of {records} records were sent.")
                times["sync"].append(whole.seconds)
                memory = max(memory, whole.memory_mib)
        ratio = harness.median([b / a for a, b in zip(times["live"], times["sync"], strict=True)])
        report.figure("memory of sync", memory, "MiB", most=MEMORY_MIB)
        report.figure(
            "time of sync, beside live ingest",
            harness.median(times["sync"]),
            "s",
            floor=harness.median(times["live"]),
            ratio=ratio,
            most_ratio=RATIO,
        )
        with collector() as there:
            first = Sync(folder, there)
            while (done := records_at(there, "large")) < records * given.share / 100:
                if first.process.poll() is not None:
                    raise RuntimeError("It was over before it could be killed: give more points.")
                time.sleep(TICK_S)
            first.kill()
            (upload,) = Sync(folder, there).wait()
            report.figure(
                f"sent again after a kill at {100 * done / records:.0f} %",
                100 * upload["sent"] / records,
                "% of all",
                most=AGAIN,
            )
            if upload["already"] + upload["sent"] != records:
                raise RuntimeError(f"{upload['already']} and {upload['sent']} are not {records} records.")


if __name__ == "__main__":
    options: dict[str, Any] = {
        "points": (20e6, 3e6, "points of the run"),
        "pairs": (3, 1, "of live ingest and sync"),
        "runs": (10_000, 1_000, "small runs"),
        "only": ("", "", "large or runs; default both"),
        "share": (70.0, 70.0, "per cent that are there when it is killed"),
    }
    sys.exit(harness.main(__doc__, run, **options))

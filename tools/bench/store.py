"""What the embedded store costs: CPU per point, bytes per point, charts of long series, lists of many runs.

    python tools/bench/store.py [--points 5000000] [--long 10000000] [--runs 10000]

- Writing: records of 10 float32-valued metrics in batches of 10,000 points, eight streams, each batch committed with
  an fsync; compaction goes on beside it in a thread of its own and its CPU is counted. Making the batches is not.
- Size: the file after compaction, everything in it included (time stamps, ledger, summaries).
- Chart: a series of so many points, to 2,000 buckets, first in a fresh reader with the file out of the page cache,
  then again.
- Runs (`small_runs.py`): as many small runs as told, then lists, filters and last values, with the same beside 1/20 of
  them; then over HTTP, from a collector on loopback, all of them in one answer.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness, small_runs
from tools.bench.harness import milliseconds

if __name__ == "__main__":
    harness.use_environment()

import numpy as np

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.collector.store.embedded import EmbeddedStore, open_store
from logclient_backend.collector.store.interface import Parcel
from logclient_backend.wal.encoded import StreamColumns

KEYS = 10
BATCH_POINTS = 10_000
STREAMS = 8
START_NS = 1_700_000_000_000_000_000
CPU_BAR_S = 0.5  # of the 1.0 s that the collector may take from gRPC to committed rows
FIRST_BAR_MS, AGAIN_BAR_MS = 150.0, 25.0


def batches(points: int, *, keys: int, is_float32: bool) -> Iterator[StreamColumns]:
    """Decaying curves with noise; a record each 0.2 ms or so, streams in turn."""
    noise = np.random.default_rng(1)
    shape = Shape(tuple(f"train/metric{at}" for at in range(keys)), "d" * keys)
    size = BATCH_POINTS // keys
    total = points // keys
    at = [1] * STREAMS
    clock = START_NS
    for number in range(-(-total // size)):
        stream = number % STREAMS
        count = min(size, total - number * size)
        seq = np.arange(at[stream], at[stream] + count, dtype=np.uint64)
        at[stream] += count
        times = clock + np.cumsum(noise.integers(180_000, 220_000, count))
        cells: list[array[int] | list[bytes]] = []
        for _ in range(keys):
            values = noise.standard_normal(count)
            if is_float32:
                values = (
                    (2.0 / np.sqrt(seq.astype(np.float64)) + 0.1 * values)
                    .astype(np.float32)
                    .astype(np.float64)
                )
            cells.append(array("Q", values.tobytes()))
        if stream == STREAMS - 1:
            clock = int(times[-1])
        seqs = seq.tobytes()
        columns = Columns(
            shape,
            stream,
            array("Q", seqs),
            array("Q", seqs),
            array("q", seqs),
            array("q", times.tobytes()),
            cells,
        )
        yield StreamColumns(bytes([stream + 1]) * 16, bytes([stream + 1]) * 16, 0, columns)


def cpu_s() -> float:
    return time.process_time()


class Upkeep:
    """Compaction as a collector does it."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._store.compact(deadline_s=0.5):
                self._stop.wait(0.2)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def write(store: EmbeddedStore, run: str, work: Iterator[StreamColumns]) -> tuple[float, int]:
    """CPU seconds and points, compaction to the end included."""
    upkeep = Upkeep(store)
    points, spent = 0, 0.0
    before = cpu_s()
    try:
        for item in work:
            spent += cpu_s() - before - _made[0]
            before, _made[0] = cpu_s(), 0.0
            store.writer.write([Parcel(run, "node", START_NS, [item])])
            points += len(item.columns) * len(item.columns.cells)
    finally:
        upkeep.stop()
    while store.compact(deadline_s=60, now=True):
        pass
    return spent + cpu_s() - before, points


_made = [0.0]


def timed(work: Iterator[StreamColumns]) -> Iterator[StreamColumns]:
    """Notes what making each batch costs this thread, so that it is not counted."""
    while True:
        begin = time.thread_time()
        item = next(work, None)
        _made[0] = time.thread_time() - begin
        if item is None:
            return
        yield item


def size_of(folder: str) -> int:
    return os.stat(os.path.join(folder, "store.db")).st_size


def evict(folder: str) -> None:
    """Out of the page cache."""
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file, contextlib.suppress(OSError):
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_writing(report: harness.Report, points: int, folder: str) -> None:
    for name, is_float32, most in (("float32", True, 6.0), ("float64 noise", False, 9.5)):
        path = os.path.join(folder, name.split()[0])
        store = open_store(path)
        try:
            spent, done = write(store, "run", timed(batches(points, keys=KEYS, is_float32=is_float32)))
        finally:
            store.close()
        report.figure(
            f"writing and compaction, {name}",
            spent / done * 1e6,
            "s of CPU per million points",
            most=CPU_BAR_S,
        )
        report.figure(f"store, compacted, {name}", size_of(path) / done, "bytes per point", most=most)


def run_long(report: harness.Report, points: int, folder: str) -> None:
    path = os.path.join(folder, "long")
    store = open_store(path, synchronous="NORMAL")
    try:
        write(store, "run", timed(one_stream(points)))
    finally:
        store.close()
    evict(path)
    store = open_store(path)
    try:
        begin = time.perf_counter()
        found = store.reader.buckets("run", "train/metric0")
        first = (time.perf_counter() - begin) * 1e3
        assert found.points == points, found.points
        again = milliseconds(lambda: store.reader.buckets("run", "train/metric0"), 9)
        middle = points // 2
        zoom = milliseconds(
            lambda: store.reader.buckets(
                "run", "train/metric0", first_step=middle, last_step=middle + 20_000
            ),
            3,
        )
        page = milliseconds(lambda: store.reader.points("run", "train/metric0", most=100_000), 3)
    finally:
        store.close()
    report.figure(f"buckets of {points:,} points, first", first, "ms", most=FIRST_BAR_MS)
    report.figure(f"buckets of {points:,} points, again", again, "ms", most=AGAIN_BAR_MS)
    report.figure("buckets of 20,000 steps of them", zoom, "ms")
    report.figure("first page of 100,000 raw points", page, "ms")


def one_stream(points: int) -> Iterator[StreamColumns]:
    """One key, one stream."""
    at = 0
    for item in batches(points, keys=1, is_float32=True):
        columns = item.columns
        count = len(columns)
        seqs = array("Q", range(at + 1, at + count + 1))
        at += count
        steps = array("q", seqs.tobytes())
        moved = Columns(columns.shape, 0, seqs, seqs, steps, columns.time, columns.cells)
        yield StreamColumns(b"l" * 16, b"p" * 16, 0, moved)


def run(report: harness.Report, given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="logclient-bench-") as folder:
        run_writing(report, given.points, folder)
        run_long(report, given.long, folder)
        small_runs.run(report, given.runs, Path(folder) / "runs")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report.figure("peak memory of it all", peak, "MiB")


if __name__ == "__main__":
    options = {
        "points": (5_000_000, 1_000_000, "written, of each kind"),
        "long": (10_000_000, 10_000_000, "points of the long series"),
        "runs": (10_000, 10_000, "small runs"),
    }
    sys.exit(harness.main(__doc__, run, **options))

"""Bytes per point of the WAL, open and sealed, at 2, 50 and 5,000 records a second.

    python tools/bench/bytes_per_point.py [--seconds 60] [--seed 1]

Records of 10 noisy metrics with time stamps in ns, written as the agent does: staged in small blocks, rotated by size
or after 60 s, then sealed. A point is one value of one record; everything in the file counts: headers, names, footer.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

if __name__ == "__main__":
    harness.use_environment()

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.wal.files import REAL
from logclient_backend.wal.seal import seal
from logclient_backend.wal.writer import OpenSegment

NAMES = (
    "train/loss",
    "train/grad_norm",
    "train/accuracy",
    "train/lr_effective",
    "val/loss",
    "val/accuracy",
    "time/step",
    "time/data",
    "gpu/power",
    "tokens_per_second",
)
CENTERS = (2.3, 0.8, 0.7, 3e-4, 2.5, 0.65, 0.21, 0.013, 312.0, 81_000.0)
SPREADS = (0.05, 0.4, 0.02, 0.1, 0.05, 0.02, 0.03, 0.5, 0.05, 0.04)  # relative
START_NS = 1_700_000_000_000_000_000
CAPACITY = 4 << 20
SEAL_AFTER_S = 60
STAGED = {2: 1, 50: 20, 5000: 250}  # rate: records a staging call finds
SEALED_BAR = {"float32": 5.0, "float64": 8.5}
OPEN_BAR = 12.0


def batches(rate: int, seconds: float, is_float32: bool, seed: int) -> Iterator[Columns]:
    """Seeded records: each metric is noise of its own spread around a slowly falling mean, and steps jitter by 3 %."""
    noise = random.Random(seed)
    shape = Shape(NAMES, "d" * len(NAMES))
    time_ns = START_NS
    step_ns = 1_000_000_000 / rate
    size = STAGED[rate]
    total = int(rate * seconds)
    for first in range(1, total + 1, size):
        count = min(size, total + 1 - first)
        times = array("q")
        for _ in range(count):
            time_ns += int(step_ns * max(0.2, noise.gauss(1.0, 0.03))) + noise.randrange(2_000)
            times.append(time_ns)
        cells: list[array[int] | list[bytes]] = []
        for center, spread in zip(CENTERS, SPREADS, strict=True):
            mean = center * (1 - 0.3 * first / total)
            values = array("d", [mean * noise.gauss(1.0, spread) for _ in range(count)])
            if is_float32:
                values = array("d", array("f", values))
            cells.append(array("Q", values.tobytes()))
        seqs = range(first, first + count)
        yield Columns(
            shape,
            0,
            array("Q", seqs),
            array("Q", seqs),
            array("q", range(first - 1, first - 1 + count)),
            times,
            cells,
        )


def measure(folder: str, rate: int, seconds: float, kind: str, seed: int) -> dict[str, float]:
    """Bytes per point of the open and the sealed segments of so many seconds."""
    stream, process, writer = (
        random.Random(seed + at).randbytes(size) for at, size in enumerate((16, 16, 8))
    )
    open_bytes = sealed_bytes = points = number = 0
    segment: OpenSegment | None = None
    began_ns = 0

    def finish(done: OpenSegment) -> tuple[int, int]:
        data = done.bytes()
        done.unlink()
        return len(data), os.path.getsize(seal(REAL, data, done.name, folder))

    for columns in batches(rate, seconds, kind == "float32", seed):
        if segment is not None and (
            segment.is_full or columns.time[0] - began_ns > SEAL_AFTER_S * 1_000_000_000
        ):
            sizes = finish(segment)
            open_bytes, sealed_bytes = open_bytes + sizes[0], sealed_bytes + sizes[1]
            segment = None
        if segment is None:
            number += 1
            began_ns = columns.time[0]
            segment = OpenSegment.create(REAL, folder, writer, number, began_ns, CAPACITY)
        segment.append(stream, process, 0, columns)
        points += len(columns) * len(NAMES)
    assert segment is not None
    sizes = finish(segment)
    return {
        "points": points,
        "segments": number,
        "open": round((open_bytes + sizes[0]) / points, 3),
        "sealed": round((sealed_bytes + sizes[1]) / points, 3),
    }


def run(report: harness.Report, given: argparse.Namespace) -> None:
    points = {}
    for kind in ("float32", "float64"):
        for rate in STAGED:
            with tempfile.TemporaryDirectory(prefix="logclient-bench-") as folder:
                found = measure(folder, rate, given.seconds, kind, given.seed)
            where = f"{kind}-valued at {rate} records/s"
            report.figure(f"sealed segment, {where}", found["sealed"], "bytes/point", most=SEALED_BAR[kind])
            report.figure(f"open segment, {where}", found["open"], "bytes/point", most=OPEN_BAR)
            points[where] = {"points": found["points"], "segments": found["segments"]}
    report.notes["written"] = points


if __name__ == "__main__":
    sys.exit(
        harness.main(
            __doc__, run, seconds=(60.0, 60.0, "of logging at each rate"), seed=(1, 1, "of the generator")
        )
    )

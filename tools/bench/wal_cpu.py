"""CPU seconds that staging and sealing take per million points.

    python tools/bench/wal_cpu.py [--points 1000000] [--rounds 5]

Records of 10 float values in staged blocks of 250, encoded, appended to tmpfs and sealed, system calls included. The
other rows tell what smaller blocks and alternating key sets cost; they have no bar. Figures are the best of the rounds:
other work on the machine only ever adds.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from array import array
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

KEYS = 10
CAPACITY = 4 << 20
BAR_S = 0.12  # of the 0.3 s that the whole agent may take
# name: (records in a block, key sets in turn, float32, has the bar)
CASES = {
    "float64, blocks of 250": (250, 1, False, True),
    "float32, blocks of 250": (250, 1, True, True),
    "float64, blocks of 1000": (1000, 1, False, True),
    "float64, blocks of 20": (20, 1, False, False),
    "float64, 2 key sets in turn, blocks of 250": (250, 2, False, False),
    "float64, 200 key sets in turn, blocks of 20": (20, 200, False, False),
}


def batches(points: int, size: int, sets: int, is_float32: bool) -> list[Columns]:
    noise = random.Random(1)
    shapes = [
        Shape(tuple(f"set{number}/metric{at}" for at in range(KEYS)), "d" * KEYS) for number in range(sets)
    ]
    made = []
    total = points // KEYS
    for start in range(1, total + 1, size * sets):
        for number, shape in enumerate(shapes):
            seqs = range(start + number, min(start + size * sets, total + 1), sets)
            if not seqs:
                continue
            cells: list[array[int] | list[bytes]] = []
            for _ in range(KEYS):
                values = array("d", [noise.gauss(0, 1) for _ in seqs])
                cells.append(array("Q", (array("d", array("f", values)) if is_float32 else values).tobytes()))
            times = array(
                "q", [1_700_000_000_000_000_000 + seq * 200_000 + noise.randrange(20_000) for seq in seqs]
            )
            made.append(Columns(shape, 0, array("Q", seqs), array("Q", seqs), array("q", seqs), times, cells))
    return made


def measure(work: list[Columns], stage: str, disk: str) -> tuple[float, float]:
    """CPU seconds of appending and of sealing."""
    append_s = seal_s = 0.0
    writer = os.urandom(8)
    left = iter(work)
    number = 0
    columns = next(left, None)
    while columns is not None:
        number += 1
        begin = time.process_time()
        segment = OpenSegment.create(REAL, stage, writer, number, columns.time[0], CAPACITY)
        while columns is not None and not segment.is_full:
            segment.append(b"s" * 16, b"p" * 16, 0, columns)
            columns = next(left, None)
        middle = time.process_time()
        path = seal(REAL, segment.bytes(), segment.name, disk)
        seal_s += time.process_time() - middle
        append_s += middle - begin
        segment.unlink()
        os.unlink(path)
    return append_s, seal_s


def run(report: harness.Report, given: argparse.Namespace) -> None:
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    parts = {}
    for name, (size, sets, is_float32, has_bar) in CASES.items():
        work = batches(given.points, size, sets, is_float32)
        points = sum(len(columns) for columns in work) * KEYS
        with tempfile.TemporaryDirectory(dir=shared) as stage, tempfile.TemporaryDirectory() as disk:
            rounds = [measure(work, stage, disk) for _ in range(given.rounds)]
        append_s, seal_s = (seconds * 1e6 / points for seconds in min(rounds, key=sum))
        parts[name] = {"append": round(append_s, 4), "seal": round(seal_s, 4)}
        report.figure(name, append_s + seal_s, "s of CPU per million points", most=BAR_S if has_bar else None)
    report.notes["parts"] = parts


if __name__ == "__main__":
    options = {"points": (1_000_000, 1_000_000, "of each case"), "rounds": (5, 2, "of which the best counts")}
    sys.exit(harness.main(__doc__, run, **options))

"""CPU seconds that shipping takes per million points: reading what is staged or sealed, packing, gRPC.

    python tools/bench/ship_cpu.py [--points 1000000] [--rounds 5]

Records of 10 float64 values of noise. The collector is a process of its own that keeps everything in memory; its time
is not counted. `staged`: blocks of 20 records in open segments on tmpfs, as a live run at 400 records/s has them;
`sealed`: what `logclient sync` reads. Packed: as to another machine; else as on loopback. Figures are the best of the
rounds: other work on the machine only ever adds.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

if __name__ == "__main__":
    harness.use_environment()

from logclient_backend.ship.progress import Progress
from logclient_backend.ship.settings import ShipSettings
from logclient_backend.ship.shipper import Shipper
from logclient_backend.ship.source import FolderSource
from logclient_backend.wal.files import REAL
from logclient_backend.wal.seal import seal
from logclient_backend.wal.writer import OpenSegment
from logclient_backend.wire.address import Address
from logclient_backend.wire.client import Session
from logclient_backend.wire.credentials import Access
from logclient_backend.wire.messages import Hello
from tools.bench.wal_cpu import CAPACITY, KEYS, batches

DEADLINE_S = 300.0
BAR_S = 0.5  # of the 1.0 s that an agent online may take, of which 0.3 s are for all the rest
# name: (records in a block, sealed, packed, has the bar)
CASES = {
    "staged, blocks of 20, packed": (20, False, True, False),
    "staged, blocks of 250, packed": (250, False, True, True),
    "staged, blocks of 250": (250, False, False, True),
    "sealed, packed": (250, True, True, True),
    "sealed": (250, True, False, True),
}


@contextmanager
def collector() -> Iterator[Address]:
    """A process that takes everything and keeps it in memory."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.collectors", "0"], stdout=subprocess.PIPE, cwd=harness.ROOT
    )
    try:
        assert process.stdout is not None
        yield Address("127.0.0.1", int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def fill(folder: str, points: int, size: int, *, is_sealed: bool) -> int:
    """Segments with so many points; how many records."""
    records = number = 0
    segment: OpenSegment | None = None
    for columns in [*batches(points, size, 1, False), None]:
        if segment is not None and (columns is None or segment.is_full):
            data = segment.bytes()
            segment.close()
            if is_sealed:
                seal(REAL, data, segment.name, folder)
                os.unlink(segment.path) if os.path.exists(segment.path) else None
            segment = None
        if columns is None:
            break
        if segment is None:
            number += 1
            segment = OpenSegment.create(REAL, folder, b"bench---", number, columns.time[0], CAPACITY)
        segment.append(b"s" * 16, b"p" * 16, 0, columns)
        records += len(columns)
    return records


def ship(folder: str, records: int, *, is_sealed: bool, packs: bool) -> float:
    """CPU seconds until all is acknowledged."""
    with collector() as address:
        progress = Progress()
        access, hello = Access(address), Hello("run", "node")
        begun = time.process_time()
        source = FolderSource([folder] if is_sealed else [], shm_dir="" if is_sealed else folder)
        deadline = time.monotonic() + DEADLINE_S
        Shipper(
            lambda: Session(access, hello, packs=packs), source, progress, ShipSettings(until_done=is_sealed)
        ).run(lambda: progress.records < records and time.monotonic() < deadline)
        if progress.records != records:
            raise TimeoutError(f"{progress.records} of {records} records arrived: {progress.error}")
        return time.process_time() - begun


def run(report: harness.Report, given: argparse.Namespace) -> None:
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    for name, (size, is_sealed, packs, has_bar) in CASES.items():
        with tempfile.TemporaryDirectory(dir=None if is_sealed else shared) as folder:
            records = fill(folder, given.points, size, is_sealed=is_sealed)
            best = min(ship(folder, records, is_sealed=is_sealed, packs=packs) for _ in range(given.rounds))
        seconds = best * 1e6 / (records * KEYS)
        report.figure(name, seconds, "s of CPU per million points", most=BAR_S if has_bar else None)
    report.notes["memory_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    options = {"points": (1_000_000, 1_000_000, "of each case"), "rounds": (5, 2, "of which the best counts")}
    sys.exit(harness.main(__doc__, run, **options))

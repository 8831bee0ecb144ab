"""What a collector costs: CPU per point from gRPC to committed rows, and how soon it listens.

    python tools/bench/ingest.py [--quick] [--points N]

One `logclient server` process on loopback; two nodes of a run ship records of 10 float32-valued metrics in parcels of
10,000 points, one after the other as fast as they are taken. CPU is that of the collector's process: decoding, checks,
the store, its fsyncs, and compaction until nothing is left to compact. Once with parcels as they come from the same
machine, once packed, as they come over a network.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from array import array
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

if __name__ == "__main__":
    harness.use_environment()

import numpy as np
import requests

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wire import address
from logclient_backend.wire.batch import BatchWriter
from logclient_backend.wire.client import Session
from logclient_backend.wire.credentials import Access
from logclient_backend.wire.messages import Ack, Hello, Parcel
from tools.bench.feed import A_PARCEL
from tools.collector import Collector, collector

BAR_S, READY_BAR_S = 1.0, 2.0
VALUES = 10
RECORDS = A_PARCEL // VALUES
DIFFERENT = 64  # parcels, so that none looks like one that came a moment ago
LEAVE_S = 120.0


class Node:
    """One conversation, which ships one stream."""

    def __init__(self, to: Collector, name: str, *, packs: bool, cells: list[list[Any]]) -> None:
        self.session = Session(Access(address.parse(to.address), to.token), Hello("bench", name))
        self.session._writer = BatchWriter(packs=packs)
        self.session.open()
        self.sent = self.acked = 0
        self._shape = Shape(tuple(f"train/metric{at}" for at in range(VALUES)), "d" * VALUES)
        self._stream = os.urandom(16)
        self._cells = cells

    def send(self) -> None:
        first = 1 + self.sent * RECORDS
        seq = array("Q", range(first, first + RECORDS))
        now = time.time_ns()
        times = array("q", [now + 50_000_000 * at + at * at % 977 for at in range(RECORDS)])
        cells = self._cells[self.sent % DIFFERENT]
        columns = Columns(self._shape, 0, seq, seq, array("q", seq), times, cells)
        self.session.send(Parcel(0, [StreamColumns(self._stream, self._stream, 0, columns)]))
        self.sent += 1

    def poll(self, wait_s: float) -> None:
        for answer in self.session.poll(wait_s):
            if not isinstance(answer, Ack):
                raise RuntimeError(f"The collector refused a parcel: {answer}")
            self.acked = answer.upto


def cells() -> list[list[Any]]:
    """Values of the different parcels: float32 noise that falls, as a loss does."""
    noise = np.random.default_rng(7)
    made = []
    for at in range(DIFFERENT):
        values = (np.exp(-at / 20) + 0.1 * noise.standard_normal((VALUES, RECORDS))).astype("f4").astype("f8")
        made.append([array("Q", column.tobytes()) for column in values])
    return made


def fill(to: Collector, parcels: int, *, packs: bool) -> tuple[float, float, float]:
    """CPU seconds until all is acknowledged, and until all is compacted; points a second."""
    nodes = [Node(to, name, packs=packs, cells=cells()) for name in ("left", "right")]
    before, begin = to.cpu_s, time.monotonic()
    while any(node.acked * len(nodes) < parcels for node in nodes):
        for node in nodes:
            while node.session.has_room and node.sent * len(nodes) < parcels:
                node.send()
            node.poll(0.02)
    took, acked_s = time.monotonic() - begin, to.cpu_s - before
    for node in nodes:
        node.session.close(10.0)
    points = sum(node.acked for node in nodes) * A_PARCEL
    deadline = time.monotonic() + LEAVE_S
    while metric(to, "store_uncompacted_points"):
        if time.monotonic() > deadline:
            raise TimeoutError("The collector does not come to the end of its compaction.")
        time.sleep(0.25)
    return acked_s, to.cpu_s - before, points / took


def metric(to: Collector, name: str) -> float:
    """One of its figures; asking costs it a millisecond."""
    answer = requests.get(f"{to.url}/metrics", headers={"Authorization": f"Bearer {to.token}"}, timeout=60)
    for line in answer.text.splitlines():
        if line.startswith(f"logclient_{name} "):
            return float(line.split()[1])
    raise KeyError(name)


def run(report: harness.Report, given: argparse.Namespace) -> None:
    parcels = given.points // A_PARCEL
    started = time.monotonic()
    for packs in (False, True):
        how = "packed" if packs else "from the same machine"
        started = time.monotonic()
        with collector() as to:
            ready_s = time.monotonic() - started
            metric(to, "points_total")  # by now all is imported
            acked_s, all_s, rate = fill(to, parcels, packs=packs)
            millions = parcels * A_PARCEL / 1e6
            report.figure(f"CPU per million points, {how}, until acknowledged", acked_s / millions, "s")
            report.figure(
                f"CPU per million points, {how}, compaction included", all_s / millions, "s", most=BAR_S
            )
            report.figure(f"points a second, {how}", rate, "points/s")
            report.figure(
                f"bytes a point on disk, {how}", metric(to, "store_bytes") / parcels / A_PARCEL, "bytes"
            )
        if not packs:
            report.figure("from start until it listens", ready_s, "s", most=READY_BAR_S)


if __name__ == "__main__":
    sys.exit(harness.main(__doc__, run, points=(20_000_000, 4_000_000, "points of each filling")))

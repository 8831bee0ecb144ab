"""What `series(key)` of a folder costs for each key of a run that has very many.

    python tools/bench/many_keys.py [--quick] [--keys N]

The floor is a listing of the run's folder, which each question makes to see whether anything has changed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

BAR_MS = 1.0
RECORDS, SEGMENTS = 20, 5


def make(folder: str, keys: list[str]) -> None:
    """Write a run of some sealed segments."""
    from logclient.shm.columns import Columns
    from logclient.shm.record import Shape
    from logclient_backend.wal.documents import DocumentFile
    from logclient_backend.wal.encoded import StreamColumns
    from logclient_backend.wal.files import REAL
    from logclient_backend.wal.seal import sealed_pieces, write_sealed

    node = os.path.join(folder, "many", "00000000000000aa")
    os.makedirs(node)
    shape, each = Shape(tuple(keys), "d" * len(keys)), RECORDS // SEGMENTS
    for number in range(SEGMENTS):
        seqs = array("Q", range(number * each + 1, (number + 1) * each + 1))
        steps = array("q", seqs)
        cells: list[Any] = [array("Q", array("d", steps).tobytes()) for _ in keys]
        item = StreamColumns(b"s" * 16, b"p" * 16, 0, Columns(shape, None, seqs, seqs, steps, steps, cells))
        write_sealed(
            REAL, node, b"\0\0\0\1make", number + 1, sealed_pieces([item], b"\0\0\0\1make", number + 1, 0)
        )
    DocumentFile(node).save(b'{"version":1,"run":{"run_id":"many"},"processes":{},"streams":{}}')


def run(report: harness.Report, given: argparse.Namespace) -> None:
    import logclient

    keys = [f"layer{number}/weight.norm" for number in range(given.keys)]
    with tempfile.TemporaryDirectory() as folder:
        make(folder, keys)
        found = logclient.read(folder)["many"]
        begun = time.perf_counter()
        assert len(found.series(keys[0])) == RECORDS
        report.figure("the first key", 1e3 * (time.perf_counter() - begun), "ms")
        node = os.path.join(folder, "many", "00000000000000aa")
        took, floors = [], []
        for key in keys[1:]:
            begun = time.perf_counter()
            os.listdir(node)
            between = time.perf_counter()
            found.series(key)
            took.append(1e3 * (time.perf_counter() - between))
            floors.append(1e3 * (between - begun))
    report.figure(
        f"mean of the other keys, {given.keys:,} keys",
        sum(took) / len(took),
        "ms",
        floor=sum(floors) / len(floors),
        most=BAR_MS,
    )


if __name__ == "__main__":
    harness.use_environment()
    sys.exit(harness.main(__doc__, run, keys=(15_000, 15_000, "keys of the run")))

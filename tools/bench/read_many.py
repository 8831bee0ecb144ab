"""Questions about many runs of a collector with `logclient.read`: the list, one table of all, one key of all.

    python tools/bench/read_many.py [--quick]

Runs with 45 settings and 200 points of two keys each, in a store as it is after a while. Server and reader share this
process, so each time is CPU of both sides; it stands beside one question for one run, and has no bar.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import logclient
from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.collector.store.interface import Description, Parcel, Store
from logclient_backend.wal.encoded import StreamColumns
from tests.served import backing, made_store, serving
from tools.bench.harness import Report, main, say

NOW_NS = 1_700_000_000_000_000_000
POINTS = 200


def fill(store: Store, runs: int) -> None:
    """All runs, packed."""
    parcels = []
    shape = Shape(("loss", "acc"), "dd")
    for number in range(runs):
        values = np.random.default_rng(number).random((2, POINTS))
        cells: list[Any] = [array("Q", column.view(np.uint64).tobytes()) for column in values]
        seq, step = array("Q", range(1, POINTS + 1)), array("q", range(POINTS))
        when = array("q", [NOW_NS + number * 10**9 + at for at in range(POINTS)])
        id = (number + 1).to_bytes(16, "big")
        told = Description(
            name=f"run {number}",
            project="bench",
            group=f"group {number % 50}",
            state="finished",
            created_ns=NOW_NS + number,
            config={"lr": number / runs, "seed": number, "model": {f"k{at}": at * 1.5 for at in range(43)}},
            summary={"acc": number / runs},
        )
        columns = Columns(shape, None, seq, seq, step, when, cells)
        batch = [StreamColumns(id, id, 0, columns)]
        parcels.append(Parcel(f"run-{number:05d}", "node", NOW_NS, batch, (), b"{}", told))
        if len(parcels) == 200 or number == runs - 1:
            store.writer.write(parcels)
            parcels = []
    while store.compact(deadline_s=60.0):
        pass


def run(report: Report, given: argparse.Namespace) -> None:
    os.environ["LOGCLIENT_TOKEN"] = "reads"
    with tempfile.TemporaryDirectory() as folder, made_store(Path(folder)) as store:
        say(f"{given.runs:,} runs")
        fill(store, given.runs)
        with serving(backing(store)) as url:
            one = logclient.read(url)[0]
            one.frame(["loss"])  # what is imported is imported by now
            floor = cpu_s(lambda: one.series("loss", first_step=0))

            def figure(what: str, ask: Callable[[], object]) -> None:
                report.figure(f"{what}, CPU of both sides", cpu_s(ask), "s", floor=floor)

            runs = logclient.read(url)
            figure("list", lambda: logclient.read(url))
            figure("table of config and summary", lambda: runs.table())
            figure("again, as they are kept", lambda: runs.table())
            figure("table with last, lowest and highest of a key", lambda: runs.table("loss"))
            figure("condition on a setting", lambda: runs.where("config.lr < 0.5"))
            figure(f"one key of all, {POINTS * given.runs:,} points", lambda: runs.frame("loss"))
            figure("band over all", lambda: runs.band("loss"))


def cpu_s(ask: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    begin = time.process_time()
    ask()
    return time.process_time() - begin


if __name__ == "__main__":
    sys.exit(main(__doc__, run, runs=(5_000, 500, "runs of the collector")))

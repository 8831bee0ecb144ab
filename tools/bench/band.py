"""One key of many runs as a band: how long a collector's store and HTTP API take to answer `/api/v1/band`.

    python tools/bench/band.py [--quick]

Runs of one group, random walks with a step each, one of them with a single spike. The answer is asked for over TCP, and
beside it an answer that holds nothing (`/api/v1/info`) in the same rounds. The bar: 200 ms in the median, which leaves
the page 300 ms of the half second in which a band is to be seen; the spike is in each answer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from array import array
from pathlib import Path

import numpy as np
import requests

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.collector.store.interface import Description, Parcel, Store
from logclient_backend.wal.encoded import StreamColumns
from tests.served import backing, made_store, serving
from tools.bench.harness import Report, main, say

BAR_MS = 200.0
SPIKE = 1e6
NOW_NS = 1_700_000_000_000_000_000


def fill(store: Store, runs: int, points: int) -> None:
    """All runs, packed as a collector has them after a while."""
    for number in range(runs):
        value = np.cumsum(np.random.default_rng(number).normal(size=points))
        if number == runs // 2:
            value[points // 3] = SPIKE
        seq = array("Q", np.arange(1, points + 1, dtype=np.uint64).tobytes())
        step = array("q", np.arange(points, dtype=np.int64).tobytes())
        when = array("q", (NOW_NS + np.arange(points, dtype=np.int64) * 1_000_000).tobytes())
        columns = Columns(
            Shape(("loss",), "d"), None, seq, seq, step, when, [array("Q", value.view(np.uint64).tobytes())]
        )
        id = number.to_bytes(16, "big")
        told = Description(name=f"seed-{number}", project="bench", group="seeds", state="finished")
        pieces = [
            StreamColumns(id, id, 0, columns.part(at, min(points, at + 10_000)))
            for at in range(0, points, 10_000)
        ]
        store.writer.write([Parcel(f"run-{number}", "node", NOW_NS, pieces, (), b"{}", told)])
    while store.compact(deadline_s=60.0):
        pass


def asked_ms(url: str, **parameters: object) -> tuple[float, dict[str, object]]:
    """Milliseconds to the whole answer, and the answer."""
    begin = time.perf_counter()
    answer = SESSION.get(url, params=parameters, timeout=60)  # type: ignore[arg-type]
    took = (time.perf_counter() - begin) * 1e3
    answer.raise_for_status()
    return took, answer.json()


SESSION = requests.Session()
SESSION.headers["Authorization"] = "Bearer reads"


def run(report: Report, given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder, made_store(Path(folder)) as store:
        say(f"{given.runs} runs of {given.points:,} points")
        fill(store, given.runs, given.points)
        with serving(backing(store)) as url:
            first, _ = asked_ms(f"{url}/api/v1/band", key="loss", group="seeds", most=given.width)
            whole, zoomed, nothing = [], [], []
            low = given.points // 3
            for _ in range(given.rounds):
                nothing.append(asked_ms(f"{url}/api/v1/info")[0])
                took, made = asked_ms(f"{url}/api/v1/band", key="loss", group="seeds", most=given.width)
                whole.append(took)
                assert max(made["max"]) == SPIKE, "the spike is not in the answer"  # type: ignore[call-overload]
                assert len(made["start"]) <= given.width  # type: ignore[arg-type]
                zoom = {"first_step": low, "last_step": low + given.width}
                took, made = asked_ms(
                    f"{url}/api/v1/band", key="loss", group="seeds", most=given.width * 2, **zoom
                )
                assert made["width"] == 1
                zoomed.append(took)
    floor = statistics.median(nothing)
    report.figure("first answer", first, "ms", floor=floor)
    report.figure(
        "answer for the whole range, median", statistics.median(whole), "ms", floor=floor, most=BAR_MS
    )
    report.figure("slowest answer for the whole range", max(whole), "ms", floor=floor)
    report.figure("answer for raw points of a zoom, median", statistics.median(zoomed), "ms", floor=floor)


if __name__ == "__main__":
    sys.exit(
        main(
            __doc__,
            run,
            runs=(20, 20, "runs of the group"),
            points=(100_000, 100_000, "points of each"),
            width=(1500, 1500, "buckets, as many as a chart has pixels"),
            rounds=(20, 5, "times that each is asked for"),
        )
    )

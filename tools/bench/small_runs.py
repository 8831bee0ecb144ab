"""A store of many small runs, and what lists, filters and last values of them cost: a part of `store.py`."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from tools.bench import harness
from tools.bench.harness import milliseconds
from tools.collector import Collector

BAR_MS = 300.0
MEMORY_MIB = 200.0  # of the collector, whatever was listed
START_NS = 1_700_000_000_000_000_000
POINTS = 30  # of each of its three keys


def small_run(number: int, points: int = POINTS) -> Any:
    """A parcel that is a whole run."""
    from logclient.shm.columns import Columns
    from logclient.shm.record import Shape
    from logclient_backend.collector.store.interface import Description, Parcel
    from logclient_backend.wal.encoded import StreamColumns

    shape = Shape(("loss", "acc", "lr"), "ddd")
    seqs = array("Q", range(1, points + 1))
    times = array("q", [START_NS + number * 1_000_000 + seq for seq in seqs])
    values = array("Q", array("d", [number + 1.0 / seq for seq in seqs]).tobytes())
    columns = Columns(shape, 0, seqs, seqs, array("q", seqs), times, [values, values, values])
    stream = number.to_bytes(16, "little")
    about = Description(
        project=f"project{number % 7}",
        name=f"run {number}",
        state="finished",
        created_ns=START_NS + number,
        config={"lr": 1e-3 * (number % 50), "model": {"layers": number % 12}, "seed": number},
        summary={"loss": 1.0 / (number + 1)},
        tags=("even" if number % 2 == 0 else "odd",),
        attempts={stream.hex(): 1},
    )
    item = StreamColumns(stream, stream, 0, columns)
    return Parcel(f"run-{number}", "node", START_NS, [item], (), b'{"node": %d}' % number, about)


def fill(store: Any, first: int, upto: int, points: int = POINTS) -> None:
    """Runs of these numbers, compacted."""
    for number in range(first, upto, 50):
        store.writer.write([small_run(each, points) for each in range(number, min(upto, number + 50))])
    while store.compact(deadline_s=60, now=True):
        pass


def run(report: harness.Report, runs: int, folder: Path) -> None:
    """In this process and over HTTP, each beside a store of 1/20 of them."""
    from logclient_backend.collector.store.embedded import open_store

    collector = Collector(folder)
    figures: list[dict[str, float]] = []
    memory = 0.0
    made = 0
    for upto in (max(1, runs // 20), runs):
        store = open_store(str(folder / "store"), synchronous="NORMAL")
        try:
            fill(store, made, upto)
            figures.append(_asked(store, upto))
        finally:
            store.close()
        made = upto
        try:
            collector.start()
            figures[-1] |= _asked_by_http(collector, upto)
            memory = _peak_mib(collector.pid)
        finally:
            collector.kill()
    few, many = figures
    for what, value in many.items():
        report.figure(f"{what}, {runs:,} runs", value, "ms", well=few[what], most=BAR_MS)
    report.figure(f"memory of a collector that lists all, {runs:,} runs", memory, "MiB", most=MEMORY_MIB)


def _asked(store: Any, runs: int) -> dict[str, float]:
    from logclient_backend.collector.store.interface import Filter, RunQuery

    reader = store.reader
    ids = [f"run-{number}" for number in range(runs)]
    by_lr = RunQuery([Filter("config", "lr", "<", 0.01), Filter("tag", value="odd")], limit=50)
    newest = f"run-{runs - 1}"
    questions: dict[str, Callable[[], object]] = {
        "newest 50": lambda: reader.runs(RunQuery(limit=50)),
        "filtered by config and tag": lambda: reader.runs(by_lr),
        "sorted by summary": lambda: reader.runs(RunQuery(sort="summary::loss", limit=50)),
        "last values of all, one key": lambda: reader.last_values(ids, ["loss"]),
        "newest run: keys and a chart": lambda: (
            reader.run(newest),
            reader.keys(newest).keys,
            reader.buckets(newest, "loss"),
        ),
    }
    return {f"{what}, in the store": milliseconds(ask, 5) for what, ask in questions.items()}


def _asked_by_http(collector: Collector, runs: int) -> dict[str, float]:
    """From the question to the last byte of the answer, compressed as browsers ask for it; nothing is parsed."""
    where = json.dumps(["config", "lr", "<", 0.025])
    questions: dict[str, dict[str, Any]] = {
        "newest 50": {"limit": 50},
        "list of all": {"limit": runs},
        "list of half of all, by config": {"limit": runs, "where": where},
        "list of all with last values": {"limit": runs, "column": "last::loss"},
    }
    connection = http.client.HTTPConnection(urlsplit(collector.url).netloc, timeout=120)
    with contextlib.closing(connection):

        def ask(question: dict[str, Any]) -> None:
            headers = {"Authorization": f"Bearer {collector.token}", "Accept-Encoding": "gzip"}
            connection.request("GET", f"/api/v1/runs?{urlencode(question, quote_via=quote)}", headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{question} is answered with {answer.status}: {body[:300]!r}")

        ask({"limit": 1})  # the first question of all loads modules
        return {f"HTTP: {what}": milliseconds(partial(ask, asked), 5) for what, asked in questions.items()}


def _peak_mib(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0

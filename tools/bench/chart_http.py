"""Charts over HTTP while points arrive: does a question wait for what comes in?

    python tools/bench/chart_http.py [--quick] [--points N] [--rate N] [--seconds N]

One `logclient server` process on loopback with a series of N points. A client asks for its full-range chart (2,000
buckets) and, in turn with it, for `/healthz`: at rest, then while another process ships `rate` points a second (records
of 10 values, two nodes of another run), then while it ships points to the very series. The ratio of the two questions
says how much is the machine's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from array import array
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

if __name__ == "__main__":
    harness.use_environment()

import requests

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wire import address
from logclient_backend.wire.client import Session
from logclient_backend.wire.credentials import Access
from logclient_backend.wire.messages import Ack, Hello, Parcel
from tools.bench.feed import A_PARCEL
from tools.bench.ingest import Node, cells, metric
from tools.collector import Collector, collector

BAR_MS = 100.0
RUN, KEY = "long", "loss"
BUCKETS = 2_000
SETTLE_S = 180.0
PAUSE_S = 0.05  # between two questions


class LongSeries:
    """A conversation that ships records of one value."""

    def __init__(self, to: tuple[str, str], first: int = 1) -> None:
        self.session = Session(Access(address.parse(to[0]), to[1]), Hello(RUN, "one"))
        self.session.open()
        self.sent = self.acked = 0
        self.first = first
        self._shape = Shape((KEY,), "d")
        self._cells = [column[0] for column in cells()]
        self._records = len(self._cells[0])

    def send(self, records: int) -> None:
        seq = array("Q", range(self.first, self.first + records))
        self.first += records
        now = time.time_ns()
        times = array("q", [now + at * 1_000 for at in range(records)])
        words = array("Q")
        while len(words) < records:
            words.extend(self._cells[(self.sent + len(words)) % len(self._cells)])
        columns = Columns(self._shape, 0, seq, seq, array("q", seq), times, [words[:records]])
        self.session.send(Parcel(0, [StreamColumns(b"s" * 16, b"p" * 16, 0, columns)]))
        self.sent += 1

    def poll(self, wait_s: float) -> None:
        for answer in self.session.poll(wait_s):
            if not isinstance(answer, Ack):
                raise RuntimeError(f"The collector refused a parcel: {answer}")
            self.acked = answer.upto


def fill(to: Collector, points: int) -> None:
    """Ship the series, and wait until it is packed."""
    series = LongSeries((to.address, to.token))
    while series.acked * A_PARCEL < points:
        while series.session.has_room and series.sent * A_PARCEL < points:
            series.send(A_PARCEL)
        series.poll(0.02)
    series.session.close(10.0)
    deadline = time.monotonic() + SETTLE_S
    while metric(to, "store_uncompacted_points"):
        if time.monotonic() > deadline:
            raise TimeoutError("The collector does not come to the end of its compaction.")
        time.sleep(0.25)


def feed(where: str, token: str, rate: int, seconds: float, first: int) -> None:
    """Ship at a rate; print the points a second that were acknowledged. `first`: of the long series; 0: another run."""
    sources: list[Any]
    if first:
        sources = [LongSeries((where, token), first)]
    else:
        there: Any = argparse.Namespace(address=where, token=token)
        made = cells()
        sources = [Node(there, name, packs=False, cells=made) for name in ("left", "right")]
    began = time.monotonic()
    sent = 0
    while (now := time.monotonic() - began) < seconds:
        for source in sources:
            if source.session.has_room and sent < rate * now:
                source.send(*([A_PARCEL] if first else []))
                sent += A_PARCEL
            source.poll(0.0)
        if sent >= rate * now:
            time.sleep(0.002)
    print(sum(source.acked for source in sources) * A_PARCEL / (time.monotonic() - began), flush=True)
    for source in sources:
        source.session.close(10.0)


class Asker:
    """Asks for the chart and for nothing, in turn."""

    def __init__(self, to: Collector) -> None:
        self._to = to
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers["Authorization"] = f"Bearer {to.token}"

    def ask(self, seconds: float) -> dict[str, list[float]]:
        """Milliseconds of each, sorted."""
        paths = {
            "chart": f"/api/v1/run/buckets?run={RUN}&key={KEY}&most={BUCKETS}",
            "empty question": "/healthz",
        }
        took: dict[str, list[float]] = {name: [] for name in paths}
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for name, path in paths.items():
                began = time.perf_counter()
                answer = self._session.get(self._to.url + path, timeout=60)
                took[name].append((time.perf_counter() - began) * 1e3)
                if answer.status_code != 200:
                    raise RuntimeError(answer.text)
            time.sleep(PAUSE_S)
        return {name: sorted(found) for name, found in took.items()}


def run(report: harness.Report, given: argparse.Namespace) -> None:
    with collector() as to:
        fill(to, given.points)
        asker = Asker(to)
        asker.ask(2.0)  # by now all is imported and in memory
        _ask(report, to, asker, "at rest", given.seconds / 2, None)
        for what, first in (("while others arrive", 0), ("while its own points arrive", given.points + 1)):
            words = [sys.executable, __file__, "feed", to.address, to.token]
            words += [str(given.rate), str(given.seconds + 4), str(first)]
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as feeder:
                time.sleep(3.0)
                _ask(report, to, asker, what, given.seconds, BAR_MS)
                rate, _ = feeder.communicate(timeout=120)
            report.figure(f"points a second, {what}", float(rate), "points/s")
        for name, pid in processes(to).items():
            for kind, size in harness.memory_of(pid).items():
                report.figure(f"memory of the {name} process, {kind}", size / (1 << 20), "MiB")


def _ask(
    report: harness.Report,
    to: Collector,
    asker: Asker,
    what: str,
    seconds: float,
    most_ms: float | None,
) -> None:
    """Ask for so long; CPU time is what a machine with other work measures best."""
    before = _web_cpu_s(to)
    took = asker.ask(seconds)
    _report(report, what, took, most_ms)
    used_ms = 1e3 * (_web_cpu_s(to) - before) / len(took["chart"])
    report.figure(f"CPU of the web processes per two questions, {what}", used_ms, "ms")


def _web_cpu_s(to: Collector) -> float:
    """Return the CPU time of the web processes; of the whole collector where it has none."""
    pids = list(processes(to).values())
    total = 0
    for pid in pids[1:] or pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def processes(to: Collector) -> dict[str, int]:
    """Return the processes of a collector."""
    children = Path(f"/proc/{to.pid}/task").glob("*/children")
    pids = [int(pid) for each in children for pid in each.read_text().split()]
    return {"committing": to.pid} | {f"web ({at})": pid for at, pid in enumerate(pids, 1)}


def _report(report: harness.Report, what: str, took: dict[str, list[float]], most_ms: float | None) -> None:
    for name, found in took.items():
        report.figure(f"{name}, {what}, p50", harness.quantile(found, 0.5), "ms")
        is_chart = name == "chart"
        report.figure(
            f"{name}, {what}, p95", harness.quantile(found, 0.95), "ms", most=most_ms if is_chart else None
        )
        if is_chart:
            report.figure(f"{name}, {what}, longest", found[-1], "ms")
    ratio = harness.quantile(took["chart"], 0.95) / harness.quantile(took["empty question"], 0.95)
    report.figure(f"chart to empty question, {what}, p95", ratio, "times")


if __name__ == "__main__":
    if sys.argv[1:2] == ["feed"]:
        where, token, *numbers = sys.argv[2:]
        feed(where, token, int(numbers[0]), float(numbers[1]), int(numbers[2]))
        sys.exit(0)
    sys.exit(
        harness.main(
            __doc__,
            run,
            points=(10_000_000, 1_000_000, "points of the series"),
            rate=(1_000_000, 1_000_000, "points that arrive a second"),
            seconds=(20.0, 6.0, "of questions while they arrive"),
        )
    )

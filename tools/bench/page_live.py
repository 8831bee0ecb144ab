"""Charts that are followed for minutes: a part of `page.py`.

50 runs of 20 keys in one set of charts; one of the runs is a program that logs at 5 Hz through its agent. Counted:
bytes of the stream for each new point, bytes of each event, the heap of the page after a collection of garbage and
the memory of the collector's processes, at three tenths of the time and at its end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from logclient_backend.collector.store.open import open_store
from tests.browser.chart_data import columns, compact, put
from tools.bench import harness, page
from tools.collector import Collector

if TYPE_CHECKING:
    from playwright.sync_api import Browser, CDPSession

RUNS, KEYS, RATE_HZ = 50, 20, 5
FEW_STEPS = 1_000  # of each run that has ended
MINUTES, QUICK_MINUTES = 10.0, 1.0
EARLY = 0.3  # of the time: minute 3 of 10
POINT_BYTES, UPDATE_BYTES, GROWTH = 64.0, 2048.0, 1.1
HEIGHT = 2_400  # all charts are in sight, so that all are followed
MIB = float(1 << 20)
FRAME_BYTES = len("event: points\nid: \ndata: \n\n")

TRAINER = f"""
import sys, time, logclient
run = logclient.init(id="live", dir=sys.argv[1], quiet=True)
begin, step = time.monotonic(), 0
while True:
    step += 1
    run.log(step, {{f"metric{{at}}": (step * 7919 + at) % 1000 / 1000 for at in range({KEYS})}})
    time.sleep(max(0.0, begin + step / {RATE_HZ} - time.monotonic()))
"""


class Traffic:
    """Bytes and events of the page's streams, and its heap."""

    def __init__(self, client: CDPSession) -> None:
        self._client = client
        self._streams: set[str] = set()
        self.bytes = 0
        self.sizes: list[int] = []  # of each event with points
        self.points = 0
        client.on("Network.requestWillBeSent", self._asked)
        client.on("Network.dataReceived", self._received)
        client.on("Network.eventSourceMessageReceived", self._event)
        for domain in ("Network", "HeapProfiler", "Performance"):
            client.send(f"{domain}.enable")

    def _asked(self, event: dict[str, Any]) -> None:
        if "/api/v1/stream" in event["request"]["url"]:
            self._streams.add(event["requestId"])

    def _received(self, event: dict[str, Any]) -> None:
        if event["requestId"] in self._streams:
            self.bytes += event["dataLength"]

    def _event(self, event: dict[str, Any]) -> None:
        if event["eventName"] == "points":
            self.sizes.append(FRAME_BYTES + len(event["eventId"]) + len(event["data"]))
            self.points += sum(
                len(column) for group in json.loads(event["data"])["groups"] for column in group[-1]
            )

    def heap_mib(self) -> float:
        """Return the page's heap after a collection of garbage, in MiB."""
        for _ in range(2):
            self._client.send("HeapProfiler.collectGarbage")
        found = self._client.send("Performance.getMetrics")["metrics"]
        return next(float(each["value"]) for each in found if each["name"] == "JSHeapUsedSize") / MIB


def memory_mib(pid: int) -> float:
    """Return the resident memory of a collector's processes, in MiB."""
    first = psutil.Process(pid)
    found = 0
    for process in [first, *first.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += process.memory_info().rss
    return found / MIB


@contextlib.contextmanager
def serving() -> Iterator[Collector]:
    """A collector with the runs that have ended, to which a program sends its own."""
    with tempfile.TemporaryDirectory(prefix="logclient-bench-") as folder, harness.place() as place:
        collector = Collector(Path(folder) / "data", "--no-auth", roles=())
        store = open_store(str(Path(folder) / "data" / "store"), is_durable=False)
        chance = np.random.default_rng(1)
        try:
            for number in range(RUNS - 1):
                values = {f"metric{at}": chance.random(FEW_STEPS) for at in range(KEYS)}
                put(store, f"done{number}", [columns(values, np.arange(FEW_STEPS))])
            compact(store)
        finally:
            store.close()
        trainer = None
        try:
            collector.start()
            words = [sys.executable, "-c", TRAINER, str(place.runs)]
            trainer = subprocess.Popen(words, env={**place.env, **collector.env})
            yield collector
        finally:
            if trainer is not None:
                trainer.kill()
                trainer.wait()
            collector.kill()


def run(report: harness.Report, browser: Browser, given: argparse.Namespace) -> None:
    """Follow the charts, and look twice."""
    seconds = 60 * (QUICK_MINUTES if given.quick else MINUTES)
    with serving() as collector, page.opened(browser) as shown:
        traffic = Traffic(shown.context.new_cdp_session(shown))
        runs = ["live", *(f"done{number}" for number in range(RUNS - 1))]
        deadline = time.monotonic() + 60
        while collector.get("/api/v1/runs", params={"limit": 1}).json()["total"] < RUNS:
            if time.monotonic() > deadline:
                raise SystemExit("the program's run did not reach the collector within 60 s")
            time.sleep(0.2)
        shown.set_viewport_size({"width": page.WIDTH, "height": HEIGHT})
        shown.goto(f"{collector.url}/#/charts?" + "&".join(f"run={name}" for name in runs))
        shown.wait_for_function("() => document.querySelectorAll('.plot[aria-busy=false]').length > 0")
        shown.wait_for_timeout(5_000)
        begin, sent, first, known = time.monotonic(), traffic.bytes, len(traffic.sizes), traffic.points
        looks = []
        for share in (EARLY, 1.0):
            shown.wait_for_timeout(max(0.0, begin + share * seconds - time.monotonic()) * 1000)
            looks.append((traffic.heap_mib(), memory_mib(collector.pid)))
        updates, points = traffic.sizes[first:], traffic.points - known
        words = f"{RUNS} runs of {KEYS} keys, one live at {RATE_HZ} Hz"
        report.notes["followed_s"] = round(seconds)
        report.notes["events"], report.notes["points"] = len(updates), points
        if not updates:
            raise SystemExit("no event with points reached the page")
        report.figure(
            f"stream, a new point: {words}", (traffic.bytes - sent) / points, "bytes", most=POINT_BYTES
        )
        report.figure(f"longest update: {words}", max(updates), "bytes", most=UPDATE_BYTES)
        for what, at in (("heap of the page", 0), ("memory of the collector", 1)):
            early, late = looks[0][at], looks[1][at]
            report.figure(
                f"{what} at the end: {words}", late, "MiB", well=early, ratio=late / early, most_ratio=GROWTH
            )

"""The runs table in a browser: a part of `page.py`."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from logclient_backend.collector.store.open import open_store
from tests.browser.many_runs import fill
from tools.bench import harness, page
from tools.collector import Collector

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

RUNS, MANY = 1_000, 20_000
PAINT_MS, TYPING_MS, BLOCK_MS = 1_000.0, 100.0, 200.0
WORDS = ("resnet50-adamw", "config.lr<0.002", "val/loss<0.5", "state=failed")

PROBE = """
if (location.pathname === "/") {
  const count = () => document.querySelector(".toolbar > .count")?.textContent ?? "";
  const isRow = () => document.querySelector("table.runs tbody tr[aria-selected] .name a");
  bench.when("row", isRow);
  bench.when("all", () => isRow() && / runs$/.test(count()));
} else bench.when("empty", () => document.body);
"""


@contextmanager
def serving(runs: int) -> Iterator[str]:
    """The address of a collector with so many runs, which needs no login."""
    with tempfile.TemporaryDirectory(prefix="logclient-bench-") as folder:
        collector = Collector(Path(folder) / "data", "--no-auth", roles=())
        store = open_store(str(Path(folder) / "data" / "store"), is_durable=False)
        try:
            fill(store, runs)
            while store.compact(deadline_s=60):
                pass
        finally:
            store.close()
        try:
            collector.start()
            yield collector.url
        finally:
            collector.kill()


def load(shown: Page, url: str, name: str) -> float:
    shown.goto("about:blank")
    shown.goto(url)
    return page.mark(shown, name)


def run(report: harness.Report, browser: Browser, given: argparse.Namespace) -> None:
    """First paint, typing and blocks with 1,000 runs; the same with more runs than are loaded."""
    for runs in (RUNS, MANY):
        with serving(runs) as url, page.opened(browser, PROBE) as shown:
            measure(report, shown, url, f"{runs:,} runs", given.rounds, PAINT_MS if runs == RUNS else None)


def measure(
    report: harness.Report, shown: Page, url: str, words: str, rounds: int, bar_ms: float | None
) -> None:
    """One store, in a page that is warm."""
    load(shown, url, "all")
    blocks: list[float] = []

    def first() -> float:
        found = load(shown, url, "row")
        page.mark(shown, "all")
        blocks.extend(shown.evaluate("bench.blocks"))
        return found

    empty = page.median_of(rounds, lambda: load(shown, f"{url}/healthz", "empty"))
    paint = page.median_of(rounds, first)
    report.figure(f"first rows of {words}", paint, "ms", floor=empty, ratio=paint / empty, most=bar_ms)
    whole = page.median_of(rounds, lambda: load(shown, url, "all"))
    report.figure(f"all that is loaded of {words}", whole, "ms", floor=empty, ratio=whole / empty)
    field = shown.get_by_label("Filter runs")
    for text in WORDS:
        field.fill("")
        field.press_sequentially(text, delay=30)
    keys: list[float] = sorted(shown.evaluate("bench.keys"))
    report.figure(f"typing in the filter of {words}, median", keys[len(keys) // 2], "ms", most=TYPING_MS)
    report.figure(f"typing in the filter of {words}, p95", keys[len(keys) * 95 // 100], "ms")
    shown.evaluate("document.querySelector('.scroll').scrollTop = 1e6")
    shown.wait_for_timeout(300)
    blocks += shown.evaluate("bench.blocks")
    report.figure(f"longest block with {words}", max(blocks, default=0.0), "ms", most=BLOCK_MS)

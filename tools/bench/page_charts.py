"""Charts in a browser: a part of `page.py`.

A run with 2,261 keys and 112 settings; one series of 10,000,000 points with a single spike, dip and NaN, which are
looked for in the pixels of each load; 20 seeds of 100,000 points as a band.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from logclient_backend.collector.store.open import open_store
from tests.browser.chart_data import SECOND, START_NS, columns, compact, pixels, put
from tools.bench import harness, page
from tools.collector import Collector

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from logclient_backend.collector.store.interface import Store

KEYS, SETTINGS = 2_261, 112
POINTS, QUICK_POINTS = 10_000_000, 1_000_000
SEEDS, SEED_POINTS = 20, 100_000
PART = 500_000  # points of one parcel
RAW = 300  # steps of a range in which each point is drawn
OPEN_MS, BLOCK_MS, FRAME_MS, WHOLE_MS, RAW_MS, BAND_MS = 2_000.0, 200.0, 50.0, 400.0, 300.0, 500.0
SCROLLS = 120
SPIKE = 8.0

PROBE = """
bench.charts = () => {
  const plots = [...document.querySelectorAll('.plot')];
  return plots.length && plots.every(
    (plot) => plot.getAttribute('aria-busy') === 'false' && !plot.classList.contains('is-empty'));
};
bench.go = async (change) => {
  const start = performance.now();
  change();
  do await new Promise(requestAnimationFrame); while (!bench.charts());
  await new Promise((then) => setTimeout(then));
  return performance.now() - start;
};
bench.scroll = async (count) => {
  const frames = [];
  let last = performance.now();
  for (let i = 0; i < count; i++) {
    scrollBy(0, 60);
    const now = await new Promise(requestAnimationFrame);
    frames.push(now - last);
    last = now;
  }
  return frames.slice(1).sort((a, b) => a - b);
};
bench.when("empty", () => document.body);
"""


def fill(store: Store, points: int) -> None:
    few = np.arange(50)
    names = [f"layer{at // 20:03d}/norm{at % 20}" for at in range(KEYS)]
    config = {f"setting{at}": at for at in range(SETTINGS)}
    put(store, "many", [columns({name: few * 0.5 + at for at, name in enumerate(names)}, few)], config=config)
    chance = np.random.default_rng(1)
    for first in range(0, points, PART):
        step = np.arange(first, min(points, first + PART))
        wave = np.sin(step / points * 20) + chance.normal(0, 0.05, len(step))
        for at, value in odd_places(points).items():
            if first <= at < first + PART:
                wave[at - first] = value
        when = START_NS + step * (SECOND // 1000)
        put(store, "long", [columns({"wave": wave}, step, seq=first + 1, time_ns=when)])
    for seed in range(SEEDS):
        step = np.arange(SEED_POINTS)
        loss = np.exp(-step / 2e4) + chance.normal(0, 0.02, SEED_POINTS)
        put(store, f"seed{seed}", [columns({"loss": loss}, step)], group="seeds")
    compact(store)


def odd_places(points: int) -> dict[int, float]:
    """Step -> value of the single points that have to be seen."""
    return {points // 3: SPIKE, points // 2: -SPIKE, 2 * points // 3: math.nan}


@contextmanager
def serving(points: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="logclient-bench-") as folder:
        collector = Collector(Path(folder) / "data", "--no-auth", roles=())
        store = open_store(str(Path(folder) / "data" / "store"), is_durable=False)
        try:
            fill(store, points)
        finally:
            store.close()
        try:
            collector.start()
            yield collector.url
        finally:
            collector.kill()


def run(report: harness.Report, browser: Browser, given: argparse.Namespace) -> None:
    """All bars of charts, each beside an empty page."""
    points = QUICK_POINTS if given.quick else POINTS
    with serving(points) as url, page.opened(browser, PROBE) as shown:
        empty = page.median_of(given.rounds, lambda: _empty(shown, url))
        many_keys(report, shown, url, given.rounds, empty)
        long_series(report, shown, url, given.rounds, empty, points)
        band(report, shown, url, given.rounds, empty)


def _empty(shown: Page, url: str) -> float:
    shown.goto(f"{url}/healthz")
    return page.mark(shown, "empty")


def _go(shown: Page, fragment: str) -> float:
    """Open a view by a link of the page, and return ms until its charts are painted."""
    return float(shown.evaluate("(to) => bench.go(() => { location.hash = to; })", fragment))


def _at_home(shown: Page, url: str) -> None:
    """The page anew, at another view, so that nothing of a chart is kept."""
    shown.goto("about:blank")
    shown.goto(f"{url}/#/runs")
    shown.get_by_role("link", name="many").first.wait_for()


def many_keys(report: harness.Report, shown: Page, url: str, rounds: int, empty: float) -> None:
    blocks: list[float] = []
    frames: list[float] = []

    def opened() -> float:
        _at_home(shown, url)
        shown.evaluate("() => { bench.blocks.length = 0; }")
        found = _go(shown, "#/charts?run=many")
        frames.extend(shown.evaluate("(count) => bench.scroll(count)", SCROLLS))
        blocks.extend(shown.evaluate("bench.blocks"))
        return found

    words = f"a run of {KEYS:,} keys and {SETTINGS} settings"
    median = page.median_of(rounds, opened)
    report.figure(f"charts of {words}", median, "ms", floor=empty, ratio=median / empty, most=OPEN_MS)
    report.figure(f"longest block with {words}", max(blocks, default=0.0), "ms", most=BLOCK_MS)
    frames.sort()
    report.figure(f"frame while scrolling {words}, p95", frames[len(frames) * 95 // 100], "ms", most=FRAME_MS)


def long_series(
    report: harness.Report, shown: Page, url: str, rounds: int, empty: float, points: int
) -> None:
    seen: list[bool] = []

    def whole() -> float:
        _at_home(shown, url)
        found = _go(shown, "#/charts?run=long")
        seen.append(shows_odd_points(pixels(shown, "wave"), points))
        return found

    words = f"{points:,} points"
    median = page.median_of(rounds, whole)
    report.figure(f"chart of {words}", median, "ms", floor=empty, ratio=median / empty, most=WHOLE_MS)
    missed = seen.count(False)
    report.figure(f"of {rounds} loads without spike, dip or NaN in the pixels", missed, "loads", most=0)
    turns = iter(range(rounds))

    def raw() -> float:
        first = points * (2 * next(turns) + 1) // (2 * rounds)
        return _go(shown, f"#/charts?run=long&zoom={first},{first + RAW}")

    median = page.median_of(rounds, raw)
    report.figure(
        f"zoom to raw points of {words}", median, "ms", floor=empty, ratio=median / empty, most=RAW_MS
    )


def shows_odd_points(found: dict[str, Any], points: int) -> bool:
    """Are spike, dip and NaN where they belong in the picture?"""
    height = found["height"]
    at = [round(step / points * found["width"]) for step in odd_places(points)]
    columns = [[each for each in found["ink"][column - 3 : column + 4] if each[2]] for column in at]
    if not all(columns):
        return False
    spike, dip, nan = columns
    is_high = min(high for high, _, _ in spike) < height * 0.1
    is_low = max(low for _, low, _ in dip) > height * 0.9
    return bool(is_high and is_low and max(low for _, low, _ in nan) > height * 0.93)


def band(report: harness.Report, shown: Page, url: str, rounds: int, empty: float) -> None:
    runs = "&".join(f"run=seed{seed}" for seed in range(SEEDS))

    def grouped() -> float:
        _at_home(shown, url)
        _go(shown, f"#/charts?{runs}")
        return _go(shown, f"#/charts?{runs}&group=group")

    words = f"{SEEDS} seeds of {SEED_POINTS:,} points as a band"
    median = page.median_of(rounds, grouped)
    report.figure(words, median, "ms", floor=empty, ratio=median / empty, most=BAND_MS)

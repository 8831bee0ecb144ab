"""How soon does the dashboard answer in a browser, beside an empty page of the same collector?

    python tools/bench/page.py [--quick] [--rounds N] [--only CASE]

A case is a function of `CASES`, in a module of its own (`page_<name>.py`): it gets the browser and reports figures.
Each case starts what it needs; the browser is warm: one page was opened before, and files of the page are cached.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

if __name__ == "__main__":
    harness.use_environment()

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.conftest import ARGUMENTS

# Name of a case -> module with `run(report, browser, given)`.
CASES = {name: f"tools.bench.page_{name}" for name in ("runs", "charts", "live")}
WIDTH, HEIGHT = 1280, 800

# In each page before its own scripts: keeps when something was in the document and painted, and each long task.
PROBE = """
(() => {
  const bench = (window.bench = { marks: {}, blocks: [], keys: [] });
  new PerformanceObserver((list) => {
    for (const each of list.getEntries()) bench.blocks.push(each.duration);
  }).observe({ type: "longtask", buffered: true });
  const painted = (then) => requestAnimationFrame(() => setTimeout(() => then(performance.now())));
  bench.when = (name, test) => {
    const look = () => (test() ? painted((at) => (bench.marks[name] = at)) : requestAnimationFrame(look));
    look();
  };
  addEventListener("keydown", (event) => painted((at) => bench.keys.push(at - event.timeStamp)), true);
})();
"""


@contextmanager
def opened(browser: Browser, script: str = "") -> Iterator[Page]:
    """A page with the probe, and this script of the case after it."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    context.set_default_timeout(60_000)
    context.add_init_script(PROBE + script)
    yield context.new_page()
    context.close()


def mark(page: Page, name: str) -> float:
    """Return when it was painted, in ms since the navigation began."""
    page.wait_for_function("(name) => name in bench.marks", arg=name, timeout=60_000)
    return float(page.evaluate("(name) => bench.marks[name]", name))


def median_of(rounds: int, measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(rounds))


def run(report: harness.Report, given: argparse.Namespace) -> None:
    path = shutil.which("chromium")
    if path is None:
        raise SystemExit("needs Debian's chromium: `make system` installs it as root")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        report.notes["browser"] = browser.version
        for name, module in CASES.items():
            if given.only in ("", name):
                importlib.import_module(module).run(report, browser, given)
        browser.close()


if __name__ == "__main__":
    options: dict[str, Any] = {"rounds": (20, 5, "times that each is measured"), "only": ("", "", "one case")}
    sys.exit(harness.main(__doc__, run, **options))

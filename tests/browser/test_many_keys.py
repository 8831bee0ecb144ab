"""R2-12: a project of 79 runs with 2,261 metrics and 112 settings each, in the table and as charts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlencode

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from logclient_backend.collector.tokens import EVERYBODY
from tests.served import backing, made_store, serving

from .chart_data import columns, loaded, put, until

RUNS, KEYS, SETTINGS = 79, 2_261, 112


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    names = [f"layer{at // 20:03d}/norm{at % 20}" for at in range(KEYS)]
    few = np.arange(2)
    with made_store(tmp_path_factory.mktemp("wide") / "data") as store:
        for run in range(RUNS):
            values = {name: few + at + run for at, name in enumerate(names)}
            config = {f"setting{at:03d}": at * run for at in range(SETTINGS)}
            put(store, f"run{run:03d}", [columns(values, few, of=run + 1)], config=config)
        with serving(backing(store, check=lambda token: EVERYBODY)) as found:
            yield found


def test_wide_runs_are_listed_scrolled_filtered_and_opened(page: Page, url: str) -> None:
    """All settings as columns: the last is reached, typing filters; of 2,261 charts those in sight are drawn."""
    page.goto(f"{url}/#/runs?" + urlencode([("col", f"config::setting{at:03d}") for at in range(SETTINGS)]))
    count = page.locator(".toolbar > .count")
    expect(count).to_have_text(f"{RUNS} runs")
    expect(page.locator("table.runs thead th")).to_have_count(2 + SETTINGS)
    rows = page.locator("table.runs tbody tr[aria-selected]")
    until(lambda: 20 < rows.count() < 60)  # as many as are in sight, whatever the table holds
    page.get_by_role("grid", name="Runs").press("End")
    expect(rows.last).to_have_attribute("aria-rowindex", str(RUNS + 1))
    page.get_by_role("grid", name="Runs").press("Home")
    expect(rows.first).to_have_attribute("aria-rowindex", "2")
    until(lambda: rows.count() > 20)
    places = rows.evaluate_all("(rows) => rows.map((row) => Number(row.getAttribute('aria-rowindex')))")
    assert places == list(range(2, 2 + len(places)))
    page.locator(".scroll").evaluate("(element) => { element.scrollLeft = element.scrollWidth; }")
    expect(page.get_by_role("columnheader", name="setting111")).to_be_in_viewport()
    expect(rows.first.locator(".name")).to_be_in_viewport()  # it stays in place
    for typed, left in (("run", RUNS), ("0", RUNS), ("4", 10), ("2", 1)):
        page.get_by_label("Filter runs").press_sequentially(typed)
        expect(count).to_have_text(re.compile(rf"^{left} (of {RUNS} )?runs$"))
    rows.first.get_by_role("link", name="run042").click()
    page.get_by_role("link", name="Charts").click()
    loaded(page)
    canvases = "document.querySelectorAll('canvas').length"
    assert page.locator("details.section, .section").count() >= KEYS // 20
    assert page.evaluate(canvases) < 40
    page.mouse.wheel(0, 20_000)
    loaded(page)
    assert page.evaluate(canvases) < 60

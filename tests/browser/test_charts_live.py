"""Charts of a run that goes on: new points without a reload, over cuts of the network and restarts of the collector."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Request, expect

from logclient_backend.collector.store.interface import Store
from logclient_backend.collector.tokens import EVERYBODY
from tests.served import backing, made_store, serving

from .chart_data import SECOND, columns, loaded, put, until
from .conftest import Watched, set_hidden, settled

PATIENCE_MS = 30_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with made_store(tmp_path / "data") as found:
        log(found, 0, 100)
        put(found, "over", [columns({"loss": np.arange(100.0)}, np.arange(100))])
        yield found


def log(store: Store, first: int, count: int, run: str = "goes on") -> None:
    """Log steps from `first` on, whose values are the steps."""
    step = np.arange(first, first + count)
    now = time.time_ns()
    when = now + (step - step[-1]) * (SECOND // 10)
    batch = columns({"loss": step * 1.0}, step, seq=first + 1, time_ns=when)
    put(store, run, [batch], state="running", created_ns=now - 100 * SECOND)


def last(page: Page, value: int) -> None:
    """Wait for that value in the legend."""
    expect(page.locator(".legend-item").first).to_have_attribute(
        "title", f"goes on: last {value}", timeout=PATIENCE_MS
    )


def test_new_points_come_alone_and_leave_the_view_as_it_is(watched: Watched, store: Store) -> None:
    """R2-46: nothing is loaded again but what is new, hidden runs and log axes stay, and the age of the data is shown.

    A collector that was away is named, and its page catches up by itself.
    """
    page = watched.page
    stands_on = backing(store, check=lambda token: EVERYBODY)
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(urlsplit(request.url).path.rpartition("/")[2])

    page.on("request", note)
    with serving(stands_on) as url:
        page.goto(f"{url}/#/charts?run=goes%20on&run=over&hide=over&logy=1")
        loaded(page)
        last(page, 99)
        until(lambda: page.evaluate("1") and "stream" in asked)  # events come within calls
        expect(page.locator(".status")).to_contain_text("last data")
        asked.clear()
        for first in (100, 110, 120):
            log(store, first, 10)
            last(page, first + 9)
        assert "curves" not in asked
        assert "hide=over" in page.url
        expect(page.get_by_label("Log y")).to_be_checked()
        expect(page.locator("canvas")).to_have_attribute(
            "aria-label", "loss, steps 0 to 129. goes on: last 129, min 0, max 129."
        )
    watched.expected += ["ERR_", "502"]
    expect(page.locator(".status")).to_contain_text("no connection", timeout=PATIENCE_MS)
    log(store, 130, 10)
    with serving(stands_on, urlsplit(url).port or 0):
        last(page, 139)
        expect(page.locator(".status")).not_to_contain_text("no connection")
        page.goto("about:blank")


def test_a_hidden_tab_asks_nothing_and_catches_up_once(watched: Watched, store: Store) -> None:
    """A minute passes; points that came meanwhile are sent by one stream, and no curve is loaded again."""
    page = watched.page
    page.clock.install()
    with serving(backing(store, check=lambda token: EVERYBODY)) as url:
        page.goto(f"{url}/#/charts?run=goes%20on")
        loaded(page)
        last(page, 99)
        log(store, 100, 5)
        last(page, 104)
        settled(watched)
        set_hidden(page, True)
        watched.requests.clear()
        log(store, 105, 5)
        page.clock.fast_forward(60_000)
        assert [each.url for each in watched.requests] == []
        set_hidden(page, False)
        last(page, 109)
        asked = [urlsplit(each.url).path.rpartition("/")[2] for each in watched.requests]
        assert asked.count("stream") == 1
        assert "curves" not in asked
        page.goto("about:blank")


def test_view_outlives_a_cut_network_and_a_reload(watched: Watched, store: Store) -> None:
    """R2-46: zoom, smoothing, log axis, hidden runs and the place on the page stay. What came meanwhile is shown."""
    page = watched.page
    watched.expected += ["ERR_", "502"]
    put(store, "third", [columns({f"other{at}": np.arange(9.0) for at in range(40)}, np.arange(9))])
    view = "run=goes%20on&run=over&run=third&hide=over&hide=third&logy=1&smooth=50&zoom=60,500"
    with serving(backing(store, check=lambda token: EVERYBODY)) as url:
        page.goto(f"{url}/#/charts?{view}")
        last(page, 99)
        canvas = page.get_by_role("figure", name="loss", exact=True).locator("canvas")
        page.evaluate("scrollTo(0, 200)")
        bar = page.locator("#connection")
        page.context.set_offline(True)  # streams that are open stay so
        expect(bar).to_be_visible(timeout=PATIENCE_MS)
        log(store, 100, 10)
        page.context.set_offline(False)
        last(page, 109)
        expect(bar).to_be_hidden(timeout=PATIENCE_MS)
        text = "loss, steps 60 to 500. goes on: last 109, min 60, max 109."
        expect(canvas).to_have_attribute("aria-label", text)
        assert page.evaluate("scrollY") == 200 and page.url.endswith(view)
        page.reload()
        expect(canvas).to_have_attribute("aria-label", text)
        expect(page.get_by_label("Log y")).to_be_checked()
        assert page.url.endswith(view)
        page.goto("about:blank")


def test_points_come_without_streams_too(browser: Browser, store: Store) -> None:
    """A browser, or a proxy, that lets no stream through: every few seconds the page asks for what follows."""
    context = browser.new_context()
    context.add_init_script("delete window.EventSource")
    page = context.new_page()
    with serving(backing(store, check=lambda token: EVERYBODY)) as url:
        page.goto(f"{url}/#/charts?run=goes%20on")
        loaded(page)
        last(page, 99)
        log(store, 100, 5)
        last(page, 104)
        page.goto("about:blank")
    context.close()

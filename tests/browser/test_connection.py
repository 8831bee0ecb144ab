"""A collector that is stopped, frozen or ends a login: the page says so, and goes on by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from logclient_backend.collector.sessions import Sessions
from logclient_backend.collector.store.open import open_store
from logclient_backend.collector.tokens import Grant
from tests.browser.conftest import Watched, set_hidden
from tests.browser.many_runs import fill
from tools.collector import Collector
from tools.faults import processes


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    """With five runs."""
    made = Collector(tmp_path / "data", roles=("read",))
    store = open_store(str(tmp_path / "data" / "store"), is_durable=False)
    try:
        fill(store, 5)
    finally:
        store.close()
    made.start()
    yield made
    made.kill()


def log_in(page: Page, collector: Collector, token: str = "") -> None:
    page.get_by_label("Token").fill(token or collector.token)
    page.get_by_role("button", name="Log in").click()


def test_loss_is_shown_and_the_page_goes_on_when_the_collector_is_back(
    watched: Watched, collector: Collector
) -> None:
    """After the login the page is where the link led; a collector that is gone for a while changes nothing of it."""
    page = watched.page
    watched.expected += [
        "401",
        "ERR_CONNECTION_REFUSED",
        "ERR_INCOMPLETE_CHUNKED",
        "ERR_CONNECTION_RESET",
        "ERR_EMPTY",
    ]
    page.goto(f"{collector.url}/#/runs?q=adamw")
    log_in(page, collector, "wrong")
    expect(page.get_by_role("alert").filter(has_text="This token is not known here")).to_be_visible()
    log_in(page, collector)
    count = page.locator(".toolbar > .count")
    expect(count).to_have_text("5 runs")
    expect(page.locator("#header .who")).to_have_text("test (read)")
    assert collector.token not in page.url
    assert collector.token not in str(
        page.evaluate("[document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage)]")
    )

    collector.kill()
    bar = page.locator("#connection")
    expect(bar).to_have_text(re.compile(r"has not answered for \d+ s"))
    expect(page.get_by_label("Filter runs")).to_have_value("adamw")
    collector.start()
    expect(bar).to_be_hidden()
    expect(count).to_have_text("5 runs")

    collector.command("token", "revoke", "test")
    expect(page.get_by_text("Your login has ended")).to_be_visible()


def test_a_frozen_collector_is_named_and_the_page_goes_on_by_itself(
    watched: Watched, collector: Collector
) -> None:
    """The process that stores, then the one that answers: each is stopped and goes on, and the page with it."""
    page = watched.page
    watched.expected.append("401")
    page.goto(f"{collector.url}/#/runs")
    log_in(page, collector)
    expect(page.locator(".toolbar > .count")).to_have_text("5 runs")
    bar = page.locator("#connection")
    children = Path(f"/proc/{collector.pid}/task").glob("*/children")
    (web,) = [int(pid) for each in children for pid in each.read_text().split()]
    for pid, words in ((collector.pid, "takes nothing new at this moment"), (web, "has not answered for")):
        with processes.stopped(pid):
            set_hidden(page, True)
            set_hidden(page, False)  # who comes back to the page learns it at once, all others within 15 s
            expect(bar).to_contain_text(words)
        expect(bar).to_be_hidden()
    expect(page.locator(".toolbar > .count")).to_have_text("5 runs")


def test_code_of_a_link_logs_in_once(watched: Watched, collector: Collector) -> None:
    """A link of `logclient ui` opens the page; its code does not stay in the address, and counts once."""
    page = watched.page
    watched.expected.append("401")
    sessions = Sessions(str(collector.data), is_valid=lambda grant: True)
    code = sessions.new_code(Grant("test", frozenset({"read"})))
    page.goto(f"{collector.url}/#/login?code={code}")
    expect(page.locator("#header .who")).to_have_text("test (read)")
    expect(page.locator(".toolbar > .count")).to_have_text("5 runs")
    assert code not in page.url
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    page.goto("about:blank")
    page.goto(f"{collector.url}/#/login?code={code}")
    expect(page.get_by_text("that code is unknown, was used")).to_be_visible()
    expect(page.get_by_label("Token")).to_be_visible()

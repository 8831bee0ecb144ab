"""The dashboard in a real browser: Debian's Chromium, driven by Playwright.

Every test fails where the page wrote an error to its console, threw one, or asked another host for anything.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Playwright, Request, expect, sync_playwright

ARGUMENTS = (
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDTH, HEIGHT = 1280, 800
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)


# Of a module, not of the session: while Playwright runs, the thread has an event loop, and no test could begin another.
@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as found:
        yield found


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs Debian's chromium: `make system` installs it as root")
    found = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
    yield found
    found.close()


class Watched:
    """A page, and what it did that no page of ours does."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        self.expected: list[str] = []  # parts of faults that the test itself causes
        self.requests: list[Request] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.faults.append(f"threw {error}"))
        page.on("request", lambda request: self.requests.append(request))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type} {message.text} at {message.location}")

    @property
    def hosts(self) -> set[str]:
        """Hosts that were asked; a request that the policy of a page has stopped never left the browser."""
        sent = [each for each in self.requests if each.failure != "csp"]
        return {host for each in sent if (host := urlsplit(each.url).netloc)}

    def check(self) -> None:
        """Fail where something is there that the test did not expect."""
        found = [fault for fault in self.faults if not any(part in fault for part in self.expected)]
        assert found == []
        assert {host for host in self.hosts if not host.startswith("127.0.0.1:")} == set()


@contextmanager
def watching(browser: Browser) -> Iterator[Watched]:
    """A page in a browser profile of its own."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    context.set_default_timeout(PATIENCE_MS)
    found = Watched(context.new_page())
    yield found
    found.check()
    context.close()


def set_hidden(page: Page, is_hidden: bool) -> None:
    """Make the page believe that its tab is hidden, or in sight again: a browser without a screen hides none."""
    page.evaluate(
        """(isHidden) => {
          Object.defineProperty(document, "hidden", {value: isHidden, configurable: true});
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )


def settled(watched: Watched) -> None:
    """Wait until the page has a stream, all else is answered, and nothing more was asked for a moment."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    known, since = -1, 0.0

    def is_waiting() -> bool:
        under_way = [
            each.url for each in watched.requests if not each.failure and each.timing["responseEnd"] < 0
        ]
        return len(under_way) != 1 or "/stream?" not in under_way[0]

    while time.monotonic() - since < 0.5 or is_waiting():
        assert time.monotonic() < deadline, [each.url for each in watched.requests[-5:]]
        watched.page.evaluate("1")  # events come within calls
        if len(watched.requests) != known:
            known, since = len(watched.requests), time.monotonic()


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    with watching(browser) as found:
        yield found


@pytest.fixture
def page(watched: Watched) -> Page:
    return watched.page

"""The console of a run on its page: a program that really printed, and one that prints while the page is open."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from logclient_backend.collector.tokens import EVERYBODY
from tests.served import backing, made_store, serving, take_in

PROGRAM = """
import logclient, sys
run = logclient.init(project="p", dir=sys.argv[1], console="tee", quiet=True)
for number in range(1000):
    print(f"line {number}")
print("<img src=x onerror=alert(1)>", file=sys.stderr)
for done in range(100):
    print(f"\\rbar {done + 1}/100", end="", flush=True)
print()
run.finish()
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base = tmp_path_factory.mktemp("console")
    words = [sys.executable, "-c", PROGRAM, str(base / "runs")]
    subprocess.run(words, check=True, timeout=100, stdout=subprocess.DEVNULL)
    with made_store(base / "data") as store:
        (run,) = take_in(store, base / "runs")
        with serving(backing(store, check=lambda token: EVERYBODY)) as found:
            yield f"{found}/#/run/{run.id}/console"


def test_last_lines_come_first_and_earlier_ones_by_scrolling(page: Page, url: str) -> None:
    """A progress bar is one line in its last state; text is never markup."""
    page.goto(url)
    console = page.get_by_role("log", name="Output")
    expect(console.locator(".line").last).to_have_text("bar 100/100")
    expect(console.get_by_text("<img src=x onerror=alert(1)>")).to_have_class("line stderr")
    expect(console.get_by_text("line 0", exact=True)).to_have_count(0)
    for count in (800, 1002):  # pages of 400 lines
        console.evaluate("element => { element.scrollTop = 0; }")
        expect(console.locator(".line")).to_have_count(count)
    expect(console.locator(".line").first).to_have_text("line 0")


def test_lines_are_found_and_streams_chosen(page: Page, url: str) -> None:
    """Both are in the link."""
    page.goto(url)
    console = page.get_by_role("log", name="Output")
    page.get_by_role("searchbox", name="Find in lines").fill("LINE 99")
    expect(console.locator(".line")).to_have_count(11)  # 99 and 990 to 999
    page.reload()
    expect(console.locator(".line")).to_have_count(11)
    page.get_by_role("searchbox", name="Find in lines").fill("")
    page.get_by_role("combobox", name="Stream").select_option("stderr")
    expect(console.locator(".line")).to_have_count(1)


def test_run_without_output_says_how_to_ask_for_it(page: Page, url: str, tmp_path: Path) -> None:
    """A run whose console was not captured has a sentence in its place."""
    from tests.backend.runs.build import simple_run

    simple_run(tmp_path / "runs", "silent", 3)
    with made_store(tmp_path / "data") as store:
        take_in(store, tmp_path / "runs")
        with serving(backing(store, check=lambda token: EVERYBODY)) as found:
            page.goto(f"{found}/#/run/silent/console")
            expect(page.get_by_text('init(console="tee")')).to_be_visible()

"""Runs whose names, tags, groups, keys and values try to become a part of the page."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect

from logclient.shm.record import Shape
from logclient_backend.collector.store.interface import Description, Parcel
from logclient_backend.collector.tokens import EVERYBODY
from logclient_backend.wal.encoded import StreamColumns
from tests.backend.store.samples import columns
from tests.browser.conftest import Watched
from tests.served import backing, made_store, serving

HOSTILE = (
    '<img src=x onerror="window.hacked=1">',
    "<script>window.hacked=1</script>",
    '"><svg/onload=window.hacked=1>',
    "javascript:window.hacked=1",
    "{{constructor.constructor('window.hacked=1')()}}",
    "${window.hacked=1}",
    "\u202egnp.exe\u202c \u2066 right to left \u2069",
    "مرحبا بالعالم שלום",
    "👩‍👩‍👧‍👦🏳️‍🌈 " * 20,
    "w" * 5000,
    "many words " * 450,
    "line\none\r\ntwo\ttab",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢" * 20,
    "../../etc/passwd%00?a=b&c#d",
    "__proto__",
)


def hostile_run(number: int, text: str, now_ns: int) -> Parcel:
    stream = number.to_bytes(16, "big")
    key = text.encode()[:500].decode(errors="ignore")
    shape = Shape((key,), "d")
    records = StreamColumns(stream, stream, 0, columns(shape, [1, 2], [(1.0,), (2.0,)]))
    about = Description(
        name=text,
        project=text[:200],
        group=text[:200],
        tags=(text[:200], "plain"),
        state="failed",
        reason=text,
        created_ns=now_ns - number,
        config={text: text, "nested": {text: [text]}},
        summary={text: text},
        attempts={stream.hex(): 1},
    )
    return Parcel(f"{number}-{key[:300]}", "node", now_ns, [records], (), b"{}", about)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with made_store(tmp_path_factory.mktemp("hostile") / "data") as store:
        now_ns = time.time_ns()
        store.writer.write([hostile_run(number, text, now_ns) for number, text in enumerate(HOSTILE)])
        with serving(backing(store, check=lambda token: EVERYBODY)) as found:
            yield found


def check(page: Page) -> None:
    """Nothing ran, nothing was loaded, and the page is as wide and the rows are as high as ever."""
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("Object.prototype.polluted") is None
    assert page.locator("#main img, #main iframe, #main script, dialog img, dialog script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # Found and measured in one step: a row that was replaced meanwhile has no height.
    rows = "[...document.querySelectorAll('table.runs tbody tr[aria-selected]')]"
    heights = f"[...new Set({rows}.map((row) => Math.round(row.getBoundingClientRect().height)))]"
    assert page.evaluate(heights) in ([30], [])


def test_no_text_of_a_run_becomes_markup_or_breaks_the_layout(watched: Watched, url: str) -> None:
    """In the table, as columns, as groups, in dialogs, in the filter and in messages."""
    page = watched.page
    page.goto(url)
    count = page.locator(".toolbar > .count")
    expect(count).to_have_text(f"{len(HOSTILE)} runs")
    expect(page.get_by_role("link", name=HOSTILE[0])).to_be_visible()
    check(page)
    page.get_by_role("button", name="Columns").click()
    dialog = page.get_by_role("dialog", name="Columns")
    for text in HOSTILE[:3]:
        dialog.get_by_label("Search columns").fill(text)
        dialog.get_by_label(text).first.check()
    check(page)
    dialog.get_by_role("button", name="Close").click()
    expect(page.locator("table.runs thead th").filter(has_text=HOSTILE[0]).first).to_be_visible()
    check(page)
    keys = [text.encode()[:500].decode(errors="ignore") for text in HOSTILE]
    page.goto(
        f"{url}/#/runs?"
        + urlencode([("col", f"{part}::{key}") for part in ("last", "config", "summary") for key in keys])
    )
    expect(page.locator("table.runs thead th")).to_have_count(2 + 3 * len(keys))
    expect(page.locator("table.runs tbody")).to_contain_text("2")
    check(page)
    page.goto(f"{url}/#/runs")
    for by in ("tags", "group"):
        page.get_by_label("Group by").select_option(by)
        expect(page.locator("table.runs tr.group").first).to_be_visible()
        check(page)
    page.get_by_label("Group by").select_option("")
    page.get_by_label("Filter runs").fill('"<script>"')
    expect(count).to_have_text(f"1 of {len(HOSTILE)} runs")
    page.get_by_label("Filter runs").fill(HOSTILE[0])
    expect(page.locator("#filter-note")).not_to_be_empty()
    check(page)
    page.get_by_label("Filter runs").fill("")
    page.locator("table.runs tbody .check input").first.click()
    page.get_by_role("button", name="Remove tag…").click()
    page.get_by_role("dialog", name="Remove a tag").get_by_role("button", name=HOSTILE[0]).click()
    expect(page.locator(".message").first).to_be_visible()
    check(page)
    page.goto("about:blank")

"""Several runs changed at once, and taken back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from logclient_backend.collector.store.interface import RunQuery, Store
from logclient_backend.collector.tokens import ADMIN, READ, Grant
from tests.browser.many_runs import fill
from tests.served import backing, made_store, serving

RUNS = 30


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with made_store(tmp_path / "data") as made:
        fill(made, RUNS)
        yield made


def opened(page: Page, url: str, *, to: int) -> None:
    """The table with the first rows selected."""
    page.goto(f"{url}/#/runs?q=-long&sort=name")
    boxes = page.locator("table.runs tbody .check input")
    boxes.nth(0).click()
    boxes.nth(to - 1).click(modifiers=["Shift"])
    expect(page.get_by_role("region", name="Selected runs").locator(".count")).to_have_text(f"{to} selected")


def tags(store: Store, tag: str) -> int:
    return sum(tag in run.brief for run in store.reader.runs(RunQuery()).runs)


def test_runs_are_tagged_and_deleted_at_once_with_an_undo(page: Page, store: Store) -> None:
    """Tags, group and deletion of several runs; a message offers to undo each."""
    with serving(backing(store, check=lambda token: Grant("ann", frozenset({ADMIN})))) as url:
        opened(page, url, to=5)
        rows = page.locator("table.runs tbody tr[aria-selected]")
        tagged = rows.filter(has_text="kee<b>p")
        page.get_by_role("button", name="Add tag…").click()
        page.get_by_role("textbox", name="Tag").fill("kee<b>p")
        page.keyboard.press("Enter")
        expect(tagged).to_have_count(5)
        assert tags(store, "kee<b>p") == 5
        page.get_by_role("button", name="Undo").click()
        expect(tagged).to_have_count(0)
        assert tags(store, "kee<b>p") == 0

        page.get_by_role("button", name="Set group…").click()
        page.get_by_role("textbox", name="Group").fill("mine")
        page.keyboard.press("Enter")
        expect(rows.filter(has_text="mine")).to_have_count(5)
        page.get_by_role("button", name="Undo").click()
        expect(rows.filter(has_text="mine")).to_have_count(0)

        count = page.locator(".toolbar > .count")
        before = count.inner_text()
        page.get_by_role("grid").focus()
        page.keyboard.press("Delete")
        expect(count).to_have_text(re.compile(rf"of {RUNS - 5} runs$"))
        assert store.reader.runs(RunQuery()).total == RUNS - 5
        page.get_by_role("button", name="Undo").click()
        expect(count).to_have_text(before)
        assert store.reader.runs(RunQuery()).total == RUNS
        page.goto("about:blank")


def test_who_may_only_read_sees_why_nothing_can_be_changed(page: Page, store: Store) -> None:
    """The buttons are there and name the role that is missing."""
    with serving(backing(store, check=lambda token: Grant("bob", frozenset({READ})))) as url:
        opened(page, url, to=2)
        for name, role in (("Add tag…", "edit"), ("Delete", "admin")):
            button = page.get_by_role("button", name=name, exact=True)
            expect(button).to_be_disabled()
            expect(button).to_have_attribute("title", f"Your token lacks the role {role}.")
        page.goto("about:blank")

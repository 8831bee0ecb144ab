"""The frame around all views: theme, links, a collector that is gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from logclient_backend.collector.tokens import EVERYBODY
from tests.served import backing, made_store, sample_runs, serving, take_in


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base = tmp_path_factory.mktemp("frame")
    sample_runs(base / "runs")
    with made_store(base / "data") as store:
        take_in(store, base / "runs")
        with serving(backing(store, check=lambda token: EVERYBODY)) as found:
            yield found


def test_runs_are_listed_by_name(page: Page, url: str) -> None:
    """Names are shown as they are, whatever characters they hold."""
    page.goto(url)
    expect(page.get_by_role("link", name="näme ☃")).to_be_visible()
    expect(page.get_by_role("link", name="every type")).to_be_visible()


def test_theme_is_kept_over_a_reload(page: Page, url: str) -> None:
    """The system's theme at first, then the user's choice."""
    page.emulate_media(color_scheme="dark")
    page.goto(url)
    theme = "document.documentElement.dataset.theme"
    assert page.evaluate(theme) == "dark"
    page.get_by_role("button", name="Change to the light theme").click()
    assert page.evaluate(theme) == "light"
    page.reload()
    assert page.evaluate(theme) == "light"

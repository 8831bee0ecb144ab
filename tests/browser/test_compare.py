"""Runs side by side: settings that differ, values, and how they hang together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from logclient_backend.collector.tokens import EVERYBODY
from tests.backend.runs.build import NodeMaker, rec
from tests.served import backing, made_store, serving, take_in

RUNS = ("one", "two", "three")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base = tmp_path_factory.mktemp("compare")
    for at, name in enumerate(RUNS, 1):
        made = NodeMaker(base / "runs", name)
        config = {"lr": 10.0**-at, "batch": 32, "model": {"act": "relu" if at < 3 else "gelu"}}
        made.process(1, documents={"config": config, "about": {"name": name}})
        extra: dict[str, Any] = {"only": 1.0} if at == 1 else {}
        made.segment({(at, 1, 0): [rec(seq, loss=at / seq, **extra) for seq in range(1, 5)]})
        made.save()
    with made_store(base / "data") as store:
        take_in(store, base / "runs")
        with serving(backing(store, check=lambda token: EVERYBODY)) as found:
            yield f"{found}/#/compare?" + "&".join(f"run={name}" for name in RUNS)


def test_settings_that_differ_are_shown_and_the_others_on_request(page: Page, url: str) -> None:
    """A setting is named by its path; the choice is in the link."""
    page.goto(url)
    settings = page.get_by_role("region", name="Settings", exact=True)
    expect(settings.get_by_role("row", name="lr 0.1 0.01 0.001")).to_be_visible()
    expect(settings.get_by_role("row", name="model::act relu relu gelu")).to_be_visible()
    expect(settings.get_by_role("row", name="batch")).to_have_count(0)
    settings.get_by_role("checkbox").check()
    expect(settings.get_by_role("row", name="batch 32 32 32")).to_be_visible()
    page.reload()
    expect(settings.get_by_role("row", name="batch 32 32 32")).to_be_visible()


def test_last_lowest_and_highest_value_of_each_key(page: Page, url: str) -> None:
    """A run without a key has a dash; the best of a row is marked."""
    page.goto(url)
    values = page.get_by_role("region", name="Values", exact=True)
    expect(values.get_by_role("row", name="loss 0.25 0.5 0.75")).to_be_visible()
    expect(values.get_by_role("row", name="only 1 – –")).to_be_visible()
    values.get_by_role("combobox").select_option("Highest value")
    expect(values.get_by_role("row", name="loss 1 2 3")).to_be_visible()
    expect(values.locator("tr", has_text="loss").locator(".best")).to_have_text("3")


def test_each_run_is_a_line_and_a_mark_that_lead_to_it(page: Page, url: str) -> None:
    """Parallel coordinates over what differs; a scatter plot of two of them, with those that lack a value counted."""
    page.goto(url)
    drawn = page.get_by_role("region", name="Settings and values")
    expect(drawn.locator(".parallel .run-line")).to_have_count(len(RUNS))
    drawn.get_by_label("Vertical").select_option("only")
    expect(drawn.locator(".scatter .run-mark")).to_have_count(1)
    expect(drawn.get_by_role("img", name="2 of 3 runs lack one of the two values.")).to_be_visible()
    drawn.locator(".scatter .run-mark").click()
    expect(page.get_by_role("heading", level=1, name="one")).to_be_visible()
    page.go_back()
    expect(drawn.get_by_label("Vertical")).to_have_value("only")


@pytest.mark.parametrize(
    ("values", "kind", "place"),
    [
        ([1, 3, 2], "linear", [0, 1, 0.5]),
        ([0.001, 10, 0.1], "log", [0, 1, 0.5]),
        ([5, 5], "linear", [0.5, 0.5]),
        (["b", "a", None], "names", [1, 0, None]),
        ([1, "nan"], "names", [0, 1]),
        ([True, False], "names", [1, 0]),
    ],
)
def test_scale_has_a_place_for_each_value(
    page: Page, url: str, values: list[Any], kind: str, place: list[Any]
) -> None:
    """Numbers are on a line, far ones on a logarithmic one, and anything else has a place of its own."""
    page.goto(url)
    app = page.locator("script[type=module]").get_attribute("src") or ""
    script = """async ([path, values]) => {
        const { scaleOf } = await import(new URL(path, document.baseURI));
        const scale = scaleOf(values);
        return [scale.kind, values.map(scale.at)];
    }"""
    found_kind, found = page.evaluate(script, [app.replace("app.js", "compare/scale.js"), values])
    assert found_kind == kind
    assert found == [pytest.approx(each) if each is not None else None for each in place]

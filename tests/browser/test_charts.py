"""Charts of runs as a user sees them: pixels of the canvas, texts, the address."""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit
from xml.etree import ElementTree

import numpy as np
import pytest
import requests
from playwright.sync_api import Browser, Locator, Page, expect

from logclient.shm.record import Shape
from logclient_backend.collector.tokens import EVERYBODY
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.scan import Gap
from tests.backend.store.samples import columns as rows
from tests.served import backing, made_store, serving

from .chart_data import SECOND, START_NS, columns, compact, loaded, pixels, process, put, until
from .conftest import Watched

LONG = 1_000_000
SPIKE, DIP, NAN = LONG // 3, LONG // 2, 2 * LONG // 3
MANY = 2_261
HOSTILE = 'x/"><img src=x onerror=alert(1)>'
SEEDS = 5


def _fill(store: Any) -> None:
    step = np.arange(LONG)
    wave = np.sin(step / LONG * 20)
    wave[SPIKE], wave[DIP], wave[NAN] = 8.0, -8.0, math.nan
    put(store, "long", [columns({"wave": wave}, step, time_ns=START_NS + step * (SECOND // 1000))])
    few = np.arange(50)
    names = [f"layer{at // 20:03d}/norm{at % 20}" for at in range(MANY - 1)]
    put(store, "many", [columns({name: few * 0.5 + at for at, name in enumerate([*names, HOSTILE])}, few)])
    compact(store)
    step = np.arange(200)
    odd = 1.0 + step / 100
    odd[20], odd[21], odd[40], odd[60] = math.nan, math.nan, math.inf, -math.inf
    signed = np.where(step % 50 == 10, -1.0, 10.0 ** (step / 50))
    spiky = np.sin(step.astype(float))
    spiky[[70, 90]], spiky[120] = 1e6, -1e6
    texts = StreamColumns(b"t" * 16, process(), 5, rows(Shape(("checkpoint",), "s"), [1], [["saved to a/b"]]))
    alert = {
        "time": START_NS + 150 * SECOND,
        "level": "warning",
        "title": "spike loss",
        "text": "9 is too high",
    }
    put(
        store,
        "odd",
        [columns({"odd": odd, "signed": signed, "spiky": spiky, "a/plain": step * 1.0}, step), texts],
        more={"alerts": [alert]},
    )
    few = np.arange(20)
    limits = {
        "large": np.where(few % 2, -sys.float_info.max, sys.float_info.max),
        "tiny": np.full(20, 5e-324),
        "wide": 10.0 ** np.linspace(-300, 300, 20),
        "near": 1e15 + few * 0.125,
    }
    put(store, "limits", [columns(limits, 2**53 + few, time_ns=START_NS + few * SECOND)])
    part = columns({"loss": np.arange(100.0)}, np.arange(100))
    rest = columns({"loss": np.arange(140.0, 200)}, np.arange(140, 200), seq=141)
    lost = Gap(part.stream, part.process, 1, 101, 140, "forgotten")
    put(store, "gap", [part, rest], gaps=[lost])
    ranked = [
        columns({"loss": np.full(100, 10.0 * rank)}, np.arange(100), lane=rank + 1, rank=rank)
        for rank in range(3)
    ]
    put(store, "ranks", ranked, ranks=(0, 1, 2))
    first = columns({"loss": np.zeros(80)}, np.arange(80), of=1)
    second = columns({"loss": np.ones(60)}, np.arange(50, 110), lane=2, of=2)
    put(store, "again", [first, second], attempts={process(1).hex(): 1, process(2).hex(): 2})
    for size, run in ((16, "small"), (2048, "large")):
        each = np.arange(0, 1000 if size == 16 else 100)
        epochs = each[each >= 10][::10]
        batches = [columns({"loss": 1 / (1 + each)}, each), columns({"epoch": epochs * 1.0}, epochs, lane=2)]
        put(store, run, batches, config={"batch": size})
    for seed in range(SEEDS):
        length = 1000 if seed else 700
        series = {"loss": np.full(length, float(seed)), "lr": np.full(length, 0.1)}
        put(store, f"seed{seed}", [columns(series, np.arange(length))], group="seeds", config={"seed": seed})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with made_store(tmp_path_factory.mktemp("charts") / "data") as store:
        _fill(store)
        with serving(backing(store, check=lambda token: EVERYBODY)) as found:
            yield found


@pytest.fixture(scope="module")
def shared(browser: Browser) -> Iterator[Watched]:
    """One page for many tests: it is loaded once."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, accept_downloads=True)
    context.set_default_timeout(30_000)
    found = Watched(context.new_page())
    found.expected.append("willReadFrequently")  # `pixels` reads canvases
    yield found
    context.close()


class Charts:
    """The view of some runs."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url

    def open(self, *runs: str, count: int = 1, **params: str) -> Charts:
        query = "&".join(
            [f"run={quote(run)}" for run in runs]
            + [f"{name}={quote(value)}" for name, value in params.items()]
        )
        self.page.goto(f"{self.url}/#/charts?{query}")
        loaded(self.page, count)
        return self

    def card(self, key: str) -> Locator:
        return self.page.get_by_role("figure", name=key, exact=True)

    def notes(self, key: str) -> Locator:
        return self.card(key).locator(".notes")

    def params(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.page.url).fragment.partition("?")[2])

    def readout(self, key: str, share: float) -> Locator:
        """Move the pointer to that share of the plot's width."""
        over = self.card(key).locator(".u-over")
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        assert box is not None
        self.page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
        found = self.card(key).locator(".readout")
        expect(found).to_be_visible()
        return found

    def labels(self, key: str) -> list[str]:
        """Return the texts of the ticks of both axes, from the picture."""
        _, body = self.saved(key, "SVG")
        texts = ElementTree.fromstring(body.decode()).findall(".//{http://www.w3.org/2000/svg}text")
        return [text for each in texts if re.fullmatch(r"-?[\d.]+(e-?\d+)?[kMGT]?", text := each.text or "")]

    def saved(self, key: str, choice: str) -> tuple[str, bytes]:
        self.card(key).get_by_role("button", name=f"Save {key}").click()
        with self.page.expect_download() as found:
            self.page.get_by_role("menuitem", name=choice).click()
        return found.value.suggested_filename, Path(found.value.path()).read_bytes()


@pytest.fixture
def charts(shared: Watched, url: str) -> Iterator[Charts]:
    shared.page.goto("about:blank")
    yield Charts(shared.page, url)
    shared.check()
    shared.faults.clear()


def test_spike_dip_and_nan_of_a_million_points_are_in_the_pixels(charts: Charts) -> None:
    """Each is a single point; a column of pixels stands for thousands."""
    charts.open("long")
    found = pixels(charts.page, "wave")
    ink, height = found["ink"], found["height"]
    usual = sorted(high for high, _, count in ink if count)[len(ink) // 8]
    spike, dip, nan = (round(step / LONG * found["width"]) for step in (SPIKE, DIP, NAN))

    def near(column: int) -> list[tuple[int, int, int]]:
        return [each for each in ink[column - 3 : column + 4] if each[2]]

    assert min(high for high, _, _ in near(spike)) < height * 0.1 < usual
    assert max(low for _, low, _ in near(dip)) > height * 0.9
    assert max(low for _, low, _ in near(nan)) > height * 0.93
    expect(charts.notes("wave")).to_contain_text("1 NaN")
    label = charts.card("wave").locator("canvas").get_attribute("aria-label")
    assert label is not None
    assert "min -8, max 8" in label


def test_thousands_of_keys_are_sections_of_which_only_what_is_near_is_drawn(charts: Charts) -> None:
    """R2-12: charts come as they scroll into view and go when they are far away; a key is text, whatever it holds."""
    charts.open("many", count=6)
    page = charts.page
    assert page.locator(".section").count() == 1 + math.ceil((MANY - 1) / 20)
    canvases = "document.querySelectorAll('canvas').length"
    assert 6 <= page.evaluate(canvases) < 40
    for _ in range(12):
        page.mouse.wheel(0, 3000)
        page.evaluate("() => new Promise(requestAnimationFrame)")
    last = page.locator("figure").filter(has_text="onerror")
    until(lambda: page.evaluate("scrollTo(0, document.body.scrollHeight)") or last.count())
    loaded(page)
    assert page.evaluate(canvases) < 60
    charts.page.get_by_label("Filter keys").fill("norm7 112")
    expect(page.locator("figure")).to_have_count(1)
    expect(page.locator(".section .count")).to_have_text("1")
    page.get_by_label("Filter keys").fill("/norm1$/")
    until(lambda: page.locator(".section").count() == math.ceil((MANY - 1) / 20))
    page.get_by_label("Filter keys").fill("/[/")
    expect(page.get_by_text("This is no regular expression")).to_be_visible()
    page.get_by_label("Filter keys").fill("layer00")
    page.locator("summary").first.click()
    until(lambda: charts.params().get("closed") == ["layer000"])
    page.reload()
    loaded(page)
    assert page.locator(".section").count() == 10
    assert page.locator(".section[open]").count() == 9


def test_points_that_are_not_finite_are_marked_and_counted(charts: Charts) -> None:
    """NaN and both infinities, each by its sign and number; the line is interrupted."""
    charts.open("odd", count=4)
    expect(charts.notes("odd")).to_have_text("× 2 NaN▲ 1 +inf▼ 1 −inf")
    ink = pixels(charts.page, "odd")
    column = round(40 / 199 * ink["width"])
    assert any(high < ink["height"] * 0.1 for high, _, count in ink["ink"][column - 3 : column + 4] if count)
    charts.readout("odd", 20.2 / 199)
    expect(charts.card("odd").locator(".readout-value")).to_have_text("NaN")


def test_log_axis_counts_what_it_cannot_show(charts: Charts) -> None:
    """Values of 0 and below lie at the lower edge; powers of ten are a straight line."""
    charts.open("odd", count=4, logy="1")
    expect(charts.notes("signed")).to_have_text("▽ 4 ≤ 0")
    ink = pixels(charts.page, "signed")
    tops = [
        next(high for high, _, count in ink["ink"][round(step / 199 * ink["width"]) :] if count)
        for step in (25, 75, 125, 175)
    ]
    steps = [a - b for a, b in pairwise(tops)]
    assert max(steps) - min(steps) <= 4
    charts.page.get_by_label("Log x").check()
    expect(charts.notes("signed")).to_contain_text("1 at x ≤ 0 not shown")


def test_all_finite_values_are_drawn_with_labels_that_differ(charts: Charts) -> None:
    """The largest and smallest floats, 600 decades on a log axis, steps from 2**53 on, and values a float apart."""
    charts.open("limits", count=4)
    for key in ("large", "tiny", "wide", "near"):
        assert sum(1 for _, _, count in pixels(charts.page, key)["ink"] if count) > 5, key
        labels = charts.labels(key)
        assert len(labels) == len(set(labels)) >= 5, labels
    expect(charts.card("large").locator(".legend-value")).to_have_text("-1.8e308")
    charts.open("limits", count=4, logy="1", smooth="20")
    for key in ("large", "tiny", "wide"):
        assert sum(1 for _, _, count in pixels(charts.page, key)["ink"] if count) > 5, key
    assert {"1e-200", "1", "1e200"} <= set(charts.labels("wide"))


def test_outliers_at_the_edge_are_arrows_with_a_count(charts: Charts) -> None:
    """The bulk gets the room, and nothing is hidden silently."""
    charts.open("odd", count=4)
    expect(charts.notes("spiky")).to_have_text("")
    charts.page.get_by_label("Outliers at the edge").check()
    expect(charts.notes("spiky")).to_have_text("▲ 2 above▼ 1 below")
    ink = pixels(charts.page, "spiky")
    tops = sorted(high for high, _, count in ink["ink"] if count)
    assert tops[len(tops) * 9 // 10] - tops[len(tops) // 10] > ink["height"] / 5
    assert charts.params()["y"] == ["robust"]


def test_smoothing_keeps_the_raw_line_in_sight(charts: Charts) -> None:
    """More ink, not other ink: the line behind is still there, and the address has the share."""
    charts.open("odd", count=4)
    before = sum(count for _, _, count in pixels(charts.page, "spiky")["ink"])
    charts.page.get_by_label("Smoothing").fill("4")
    until(lambda: charts.params().get("smooth") == ["2"])
    loaded(charts.page)
    assert sum(count for _, _, count in pixels(charts.page, "spiky")["ink"]) > before / 2
    expect(charts.page.locator("output")).to_have_text("2 %")


def test_zoom_by_drag_shows_raw_points_in_all_charts_until_a_double_click(charts: Charts) -> None:
    """The range is in the address and survives a reload; `+`, `-` and Escape do the same by keys."""
    charts.open("long")
    over = charts.card("wave").locator(".u-over")
    box = over.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    for left, right in ((0.3300, 0.3366), (0.4, 0.6)):
        charts.page.mouse.move(box["x"] + box["width"] * left, middle)
        charts.page.mouse.down()
        charts.page.mouse.move(box["x"] + box["width"] * right + 6, middle)
        charts.page.mouse.up()
        loaded(charts.page)
    low, high = map(float, charts.params()["zoom"][0].split(","))
    assert high - low < 20_000
    charts.page.reload()
    loaded(charts.page)
    assert list(map(float, charts.params()["zoom"][0].split(","))) == [low, high]
    plot = charts.card("wave").locator(".plot")
    plot.focus()
    for _ in range(7):
        charts.page.keyboard.press("+")
    loaded(charts.page)
    charts.page.keyboard.press("ArrowRight")
    expect(charts.card("wave").locator(".readout-row")).to_have_count(1)
    expect(charts.card("wave").locator(".readout-more")).to_have_text("")  # one point: raw
    charts.page.keyboard.press("Escape")
    charts.page.keyboard.press("Escape")
    until(lambda: "zoom" not in charts.params())
    charts.page.keyboard.press("+")
    until(lambda: "zoom" in charts.params())
    over.dblclick()
    until(lambda: "zoom" not in charts.params())


def test_x_may_be_time_or_another_key_and_says_what_it_leaves_out(charts: Charts) -> None:
    """R2-44: curves of two batch sizes overlay over epochs; points before the first epoch are counted."""
    charts.open("small", "large", count=2)
    select = charts.page.get_by_label("X axis")
    select.focus()
    select.select_option("key:epoch")
    loaded(charts.page)
    expect(charts.notes("loss")).to_have_text("20 left out: x unknown")
    assert charts.params()["x"] == ["key:epoch"]
    charts.readout("loss", 0.5)
    expect(charts.card("loss").locator(".readout-row")).to_have_count(2)
    for kind in ("relative", "time", "step"):
        select.select_option(kind)
        loaded(charts.page)
        expect(charts.notes("loss")).to_have_text("")
        assert charts.params().get("x", ["step"]) == [kind]
        charts.page.reload()
        loaded(charts.page)
        expect(select).to_have_value(kind)


def test_gap_and_events_are_marked_with_their_text(charts: Charts) -> None:
    """Records that were dropped are hatched and counted; alerts, checkpoints and attempts have a flag and a text."""
    charts.open("gap")
    expect(charts.notes("loss")).to_have_text("▨ 40 records missing")
    expect(charts.readout("loss", 120 / 199)).to_contain_text("40 records dropped")
    charts.open("odd", count=4)
    expect(charts.readout("spiky", 150 / 199)).to_contain_text("alert: spike loss: 9 is too high")
    charts.open("again")
    expect(charts.readout("loss", 50 / 109)).to_contain_text("attempt 2 begins")
    charts.page.get_by_label("Events").uncheck()
    assert charts.params()["events"] == ["0"]


def test_attempts_and_ranks_are_the_newest_and_the_main_one_until_asked(charts: Charts) -> None:
    """Where attempts overlap the newest counts; all ranks are a spread."""

    def values() -> str:
        return charts.card("loss").locator("canvas").get_attribute("aria-label") or ""

    charts.open("again")
    charts.readout("loss", 60 / 109)
    expect(charts.card("loss").locator(".readout-value")).to_have_text("1")
    charts.page.get_by_label("Attempts", exact=True).select_option("all")
    until(lambda: "2 points" in charts.readout("loss", 60.2 / 109).inner_text())
    charts.open("ranks")
    assert "last 0, min 0, max 0" in values()
    charts.page.get_by_label("Ranks", exact=True).select_option("all")
    until(lambda: "min 0, max 20" in values())


def test_readout_stays_in_the_window(charts: Charts) -> None:
    """The readout of a long series has a range and a count, and is whole wherever the pointer is."""
    charts.open("long")
    for width in (480, 1280):
        charts.page.set_viewport_size({"width": width, "height": 800})
        loaded(charts.page)
        for share in (0.03, 0.45, 0.55, 0.97):
            box = charts.readout("wave", share).bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width


def test_readout_has_every_run_sorted_with_all_digits(charts: Charts) -> None:
    """By pointer and by arrow keys; hidden runs are left out, in the address too."""
    charts.open("seed0", "seed2", "seed1", count=2)
    charts.readout("loss", 0.3)
    expect(charts.card("loss").locator(".readout-name")).to_have_text(["seed2", "seed1", "seed0"])
    expect(charts.card("lr").locator(".u-cursor-x")).to_be_visible()
    charts.card("lr").locator(".plot").focus()
    charts.page.keyboard.press("End")
    expect(charts.card("lr").locator(".readout-value")).to_have_text(["0.1"] * 3)
    charts.page.get_by_role("button", name="seed1", exact=True).click()
    until(lambda: charts.params().get("hide") == ["seed1"])
    loaded(charts.page)
    expect(charts.card("loss").locator(".legend-item")).to_have_count(2)


def test_group_is_a_band_and_each_of_its_runs_one_click_away(charts: Charts) -> None:
    """Mean with quartiles or range over the runs; where runs end, the number that is left is marked."""
    charts.open(*(f"seed{seed}" for seed in range(SEEDS)), count=2)
    charts.page.get_by_label("Group runs").select_option("group")
    expect(charts.card("loss").locator(".legend-item")).to_have_text("seeds (5)2.5")
    charts.readout("loss", 0.2)
    expect(charts.card("loss").locator(".readout-value")).to_have_text("2")
    expect(charts.card("loss").locator(".readout-more")).to_have_text("1 to 3, 5 runs")
    charts.page.get_by_label("Band").select_option("range")
    loaded(charts.page)
    until(lambda: "0 to 4, 5 runs" in charts.readout("loss", 0.21).inner_text())
    charts.page.get_by_role("button", name="group = seeds").click()
    expect(charts.card("loss").locator(".legend .dim")).to_have_text(
        "+3"
    )  # one band, and five lines of which two are below the chart
    assert charts.params()["members"] == ["seeds"]


def test_csv_holds_the_values_of_the_api_digit_by_digit(charts: Charts, url: str) -> None:
    """R2-42: all points, in the order of the API; what is drawn is another file, which says so."""
    charts.open("odd", count=4)
    name, body = charts.saved("odd", "CSV: all points")
    assert name == "odd.points.csv"
    found = list(csv.DictReader(io.StringIO(body.decode())))
    answer = requests.get(f"{url}/api/v1/run/series", {"run": "odd", "key": "odd"}, timeout=60)
    assert [row["value"] for row in found] == [
        value if isinstance(value, str) else repr(value) for value in answer.json()["value"]
    ]
    assert [int(row["step"]) for row in found] == answer.json()["step"]
    assert [int(row["time_ns"]) for row in found] == answer.json()["time_ns"]
    name, body = charts.saved("odd", "CSV: what is drawn")
    assert name == "odd.visible.csv"
    shown = list(csv.DictReader(io.StringIO(body.decode())))
    assert (len(shown), shown[20]["last"], shown[40]["infs"]) == (200, "nan", "1")


def test_pictures_are_saved_with_title_and_legend(charts: Charts) -> None:
    """SVG has lines and texts of its own; PNG is larger than the canvas."""
    charts.open("odd", count=4)
    name, body = charts.saved("spiky", "SVG")
    text = body.decode()
    assert name == "spiky.svg"
    assert text.startswith("<svg")
    assert ">spiky</text>" in text
    assert ">odd</text>" in text
    drawn = ElementTree.fromstring(text)
    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}path")) > 10
    name, body = charts.saved("spiky", "PNG")
    assert name == "spiky.png"
    assert body.startswith(b"\x89PNG")
    assert int.from_bytes(body[20:24], "big") > charts.card("spiky").locator("canvas").evaluate(
        "it => it.height"
    )


def test_one_chart_fills_the_window_and_the_whole_view_is_in_the_address(
    charts: Charts, browser: Browser
) -> None:
    """A link opened by somebody else shows the same picture; Escape closes the large chart."""
    charts.open("seed0", "seed1", count=2)
    page = charts.page
    page.get_by_label("Smoothing").fill("3")
    page.get_by_label("Log y").check()
    page.get_by_label("Size of charts").select_option("l")
    page.get_by_role("button", name="seed1", exact=True).click()
    page.get_by_label("Filter keys").fill("l")
    charts.card("loss").get_by_role("button", name="Show loss in the full window").click()
    loaded(page, 2)
    expect(page.get_by_role("dialog", name="loss")).to_be_visible()
    kept = charts.params()
    assert kept == {
        "run": ["seed0", "seed1"], "smooth": ["1"], "logy": ["1"], "size": ["l"], "hide": ["seed1"], "find": ["l"],
        "chart": ["loss"],
    }  # fmt: skip
    other = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    other.goto(page.url)
    loaded(other, 2)
    picture = "it => it.toDataURL()"
    until(
        lambda: (
            other.locator(".chart-window canvas").evaluate(picture)
            == page.locator(".chart-window canvas").evaluate(picture)
        )
    )
    other.context.close()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert "chart" not in charts.params()


def test_charts_are_a_tab_of_the_page_of_a_run(charts: Charts) -> None:
    """The same view, of that run alone; its address keeps what is set up there."""
    charts.page.goto(f"{charts.url}/#/run/odd/charts?find=spiky")
    loaded(charts.page)
    expect(charts.page.locator("figure")).to_have_count(1)
    charts.page.get_by_label("Log y").check()
    expect(charts.notes("spiky")).to_contain_text("≤ 0")
    assert "/run/odd/charts?" in charts.page.url
    assert charts.params() == {"find": ["spiky"], "logy": ["1"]}


def test_every_control_has_a_name_and_both_themes_have_ink(charts: Charts) -> None:
    """A screen reader has words for each chart, and lines stand out from the paper."""
    charts.open("seed0", "seed1", count=2)
    page = charts.page
    nameless = page.locator("button, input, select, canvas, [tabindex='0']").evaluate_all(
        """(all) => all.filter((it) => it.checkVisibility() && !(it.ariaLabel || it.textContent.trim()
          || it.labels?.length)).map((it) => it.outerHTML)"""
    )
    assert nameless == []
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        loaded(page, 2)
        until(lambda: sum(count for _, _, count in pixels(page, "loss")["ink"]) > 300)

"""Media values on a run's page: images, histograms, tables and texts over steps, and nothing of them that runs here."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from logclient_backend.collector.blobs import Blobs
from logclient_backend.collector.tokens import EVERYBODY
from logclient_backend.collector.web import plotly_frame
from logclient_backend.wire.blobs import Piece
from tests.backend.runs.build import simple_run
from tests.served import backing, made_store, serving, take_in

from . import pictures
from .conftest import Watched

MARKDOWN = (
    "# Head\n\n**bold** <img src=x onerror=alert(1)> [link](https://a.example) ![i](https://a.example/i.png) "
    "[bad](javascript:alert(1))"
)
PAGE = (
    "<h1 id=h>mine</h1><script>h.textContent = 'script ran'; parent.document.title = 'taken'</script>"
    "<img src=https://a.example/x>"
)
FIGURE = {
    "data": [
        {"type": "scatter", "y": [1, 3, 2], "name": "<b>run</b>"},
        {"type": "scattergl", "y": [2, 2, 2]},
    ],
    "layout": {
        "title": {
            "text": "</script><script>parent.document.title = 'taken'</script><img src=x onerror=alert(1)>"
        },
        "annotations": [{"text": "<a href='javascript:alert(1)'>link</a>", "x": 1, "y": 2}],
        "images": [{"source": "https://a.example/x.png", "x": 0, "y": 0, "sizex": 1, "sizey": 1}],
        "template": {"layout": {"title": {"text": "<!--<script>"}}},
    },
    "config": {"plotlyServerURL": "https://a.example"},
}
PROGRAM = """
import sys
import numpy as np
import logclient

folder, name, markdown, page, figure = sys.argv[1:]

class Plotly:
    def __init__(self, text):
        self.to_json = self.to_plotly_json = lambda: text

run = logclient.init(project="p", name=name, dir=folder, quiet=True)
for step in range(5):
    run.log(step, {
        "loss": 1.0,
        "image": logclient.Image(np.full((8, 8, 3), 50 * step, "u1"), f"after {step}"),
        "weights": logclient.Histogram(np.random.default_rng(step).normal(size=1000)),
    })
    assert run.flush(60)
pixels, gone = np.full((16, 24), 90, "u1"), logclient.Image("/none/such.png")
rows = [[at, f"row {at}", at % 7] for at in range(120)]
run.log(5, {
    "table": logclient.Table(rows, columns=["number", "name", "rest"]),
    "film": logclient.Video(np.full((8, 32, 48, 3), 99, "u1"), "grey", fps=4),
    "pictures": logclient.Table([[at, logclient.Image(pixels, f"cell {at}")] for at in range(9)] + [[9, gone]]),
    "broken": logclient.Table([[logclient.Image(b"notanimage")]]),
    "note": logclient.Markdown(markdown),
    "page": logclient.Html(page),
    "plot": logclient.Figure(Plotly(figure)),
    "plot of a map": logclient.Figure(Plotly('{"data": [{"type": "scattergeo", "lat": [1], "lon": [2]}]}')),
    "plain": logclient.Text("<b>text</b>"),
    "lost": logclient.File("/none/such"),
    "report": logclient.File(b"a,b", "rows <b>1</b>.csv"),
})
for step, size in ((0, 3000), (1, 20)):
    run.log(step, {"weights file": logclient.File(bytes(size), f"model-{step}.bin")})
assert run.finish(60)
"""


class Served:
    """Address of the page, and ids of its runs by name."""

    def __init__(self, url: str, ids: dict[str, str]) -> None:
        self.url = url
        self.ids = ids

    def media(self, query: str = "") -> str:
        return self.tab(f"media{query}")

    def tab(self, name: str, run: str = "one") -> str:
        return f"{self.url}/#/run/{self.ids[run]}/{name}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    base = tmp_path_factory.mktemp("media")
    for name in ("one", "two"):
        words = [sys.executable, "-c", PROGRAM, str(base / "runs"), name, MARKDOWN, PAGE, json.dumps(FIGURE)]
        subprocess.run(words, check=True, timeout=100)
    simple_run(base / "runs", "bare", 3)
    blobs = Blobs(str(base / "data"))
    ids = {"bare": "bare"}
    with made_store(base / "data" / "store") as store:
        for found in take_in(store, base / "runs"):
            ids[found.run_name] = found.id
            for path in (base / "runs").glob(f"{found.id}/*/media/??/*"):
                data = path.read_bytes()
                blobs.take(found.id, "n", Piece(hashlib.sha256(data).hexdigest(), len(data), 0, data))
        with serving(backing(store, blobs=blobs, check=lambda token: EVERYBODY)) as address:
            yield Served(address, ids)


@pytest.fixture(autouse=True)
def refused(watched: Watched) -> None:
    """Faults of the page that was logged as HTML: all that it tries is refused."""
    watched.expected += [
        "GL Driver Message",
        "topojson",
        "Content Security Policy",
        "Blocked a frame",
        "cross-origin frame",
    ]


def files(page: Page) -> list[str]:
    """Names in the list of files, in their order."""
    return [text.strip() for text in page.locator("table.files tbody td:first-child").all_inner_texts()]


def panel(page: Page, key: str) -> Locator:
    return page.get_by_role("region", name=key, exact=True)


def shown(page: Page, key: str) -> Locator:
    """Panel of a key, in sight: it loads then."""
    found = panel(page, key)
    found.scroll_into_view_if_needed()
    return found


def test_slider_goes_over_the_steps_of_a_key(page: Page, served: Served) -> None:
    """The newest at first; the step is in the link."""
    page.goto(served.media())
    images = panel(page, "image")
    expect(images.get_by_role("img", name="after 4")).to_be_visible()
    images.get_by_role("slider").fill("1")
    shown = images.get_by_role("img", name="after 1")
    expect(shown).to_be_visible()
    expect(shown).to_have_js_property("naturalWidth", 8)
    page.reload()
    expect(panel(page, "image").get_by_role("img", name="after 1")).to_be_visible()


def test_histograms_are_bars_and_a_heat_map_over_steps(page: Page, served: Served) -> None:
    """Each with its range as a text for who does not see it."""
    page.goto(served.media("?media=weights"))
    weights = panel(page, "weights")
    expect(weights.get_by_role("img", name="1000 values")).to_be_visible()
    expect(weights.get_by_role("img", name="Heat map of 5 histograms from step 0 to 4")).to_be_visible()
    expect(panel(page, "image")).to_be_hidden()


def test_table_is_sorted_filtered_and_paged(page: Page, served: Served) -> None:
    """Numbers sort as numbers."""
    page.goto(served.media("?media=table"))
    table = panel(page, "table")
    expect(table.get_by_role("row")).to_have_count(51)
    table.get_by_role("button", name="Next page").click()
    expect(table.get_by_role("row").nth(1)).to_contain_text("row 50")
    table.get_by_role("button", name="number").click()
    table.get_by_role("button", name="number").click()
    table.get_by_role("button", name="Previous page").click()
    expect(table.get_by_role("row").nth(1)).to_contain_text("row 119")
    table.get_by_role("searchbox").fill("row 7")
    expect(table.get_by_role("row")).to_have_count(12)  # 7 and 70 to 79, below the head


def test_frames_are_a_film(page: Page, served: Served) -> None:
    """That the browser plays."""
    pytest.importorskip("av")
    page.goto(served.media("?media=film"))
    film = panel(page, "film").get_by_label("grey")
    film.scroll_into_view_if_needed()
    expect(film).to_have_js_property("videoWidth", 48)
    expect(film).to_have_js_property("duration", 2)


def test_images_in_cells_are_thumbnails(page: Page, served: Served, tmp_path: Path) -> None:
    """With their captions, which the filter finds; one that was not stored says why."""
    page.goto(served.media("?media=pictures"))
    table = panel(page, "pictures")
    expect(table.get_by_role("img")).to_have_count(9)
    expect(table.get_by_role("img", name="cell 3", exact=True)).to_have_js_property("naturalWidth", 24)
    expect(table.get_by_role("row").last).to_contain_text("Not stored: '/none/such.png'")
    for _ in pictures.take(page, "run-table", tmp_path):
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    table.get_by_role("searchbox").fill("cell 7")
    expect(table.get_by_role("row")).to_have_count(2)
    page.get_by_role("searchbox", name="Filter keys").fill("broken")
    expect(panel(page, "broken").get_by_role("row").last).to_contain_text(
        "This browser cannot show the image."
    )


def test_nothing_that_was_logged_runs_on_the_page(page: Page, served: Served, watched: Watched) -> None:
    """Markdown becomes harmless elements; a page runs in a frame without rights, and loads nothing."""
    page.goto(served.media())
    note = shown(page, "note")
    expect(note.get_by_role("heading", name="Head")).to_be_visible()
    expect(note.get_by_text("<img src=x onerror=alert(1)>")).to_be_visible()
    expect(note.get_by_role("link", name="link")).to_have_attribute("rel", "noopener noreferrer")
    assert note.locator("img, script").count() == 0
    assert note.locator("a[href^=javascript]").count() == 0
    expect(shown(page, "plain").get_by_text("<b>text</b>")).to_be_visible()
    framed = shown(page, "page").frame_locator("iframe")
    expect(framed.locator("#h")).to_have_text("script ran")
    expect(page).not_to_have_title("taken")
    expect(shown(page, "lost")).to_contain_text("Not stored:")
    assert {host for host in watched.hosts if "example" in host} == set()


def test_figures_of_plotly_are_drawn_in_a_frame_without_rights(
    page: Page, served: Served, watched: Watched, tmp_path: Path
) -> None:
    """Nothing of the figure's JSON runs anywhere, and nothing is loaded from elsewhere."""
    pytest.importorskip("plotly")
    page.goto(served.media("?media=plot"))
    plot = panel(page, "plot")
    drawn = plot.frame_locator("iframe")
    expect(drawn.locator(".scatterlayer .trace")).to_have_count(1)
    expect(drawn.get_by_text("parent.document.title")).to_be_visible()
    expect(plot.get_by_role("link", name="Download plot-5.json")).to_be_visible()
    for _ in pictures.take(page, "run-plotly", tmp_path):
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(page).not_to_have_title("taken")
    outline = panel(page, "plot of a map").frame_locator("iframe")
    expect(outline.get_by_text("cannot be drawn")).to_be_visible()
    assert drawn.locator("img, a[href^=javascript]").count() == 0
    assert drawn.locator("script").count() == 3
    assert {host for host in watched.hosts if "example" in host or "plot" in host} == set()
    whole = page.request.get(plot.locator("iframe").evaluate("(frame) => frame.src"))
    assert "unsafe-inline" not in whole.headers["content-security-policy"].partition("style-src")[0]


def test_without_plotly_a_sentence_stands_beside_the_download(
    page: Page, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector needs no plotly."""
    monkeypatch.setattr(plotly_frame, "frame", lambda: None)
    page.goto(served.media("?media=plot"))
    expect(panel(page, "plot")).to_contain_text("pip install plotly")
    expect(panel(page, "plot").get_by_role("link", name="Download plot-5.json")).to_be_visible()


def test_runs_are_side_by_side_at_the_same_step(page: Page, served: Served) -> None:
    """Below the tables of a comparison."""
    page.goto(f"{served.url}/#/compare?run={served.ids['one']}&run={served.ids['two']}")
    images = panel(page, "image")
    images.scroll_into_view_if_needed()
    expect(images.get_by_role("img", name="after 4")).to_have_count(2)
    images.get_by_role("slider").fill("0")
    expect(images.get_by_role("img", name="after 0")).to_have_count(2)


def test_files_are_a_list_with_downloads(page: Page, served: Served, tmp_path: Path) -> None:
    """By any column, also in the link; each is an attachment under its name; without any, it says how to log one."""
    page.goto(served.tab("files"))
    link = page.get_by_role("link", name="Download rows <b>1</b>.csv", exact=True)
    expect(link).to_be_visible()
    assert files(page)[:2] == ["model-0.bin", "model-1.bin"] and len(files(page)) == 4
    expect(page.get_by_role("row", name="such")).to_contain_text("Not stored:")
    for _ in pictures.take(page, "run-files", tmp_path):
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    with page.expect_download() as waited:
        link.click()
    assert waited.value.suggested_filename.endswith(".csv")
    assert Path(waited.value.path()).read_bytes() == b"a,b"
    page.get_by_role("button", name="Size").click()
    page.get_by_role("button", name="Size ↑").click()
    expect(page.get_by_role("columnheader", name="Size")).to_have_attribute("aria-sort", "descending")
    page.reload()
    expect(page.get_by_role("row").nth(1)).to_contain_text("model-0.bin")
    page.get_by_role("searchbox").fill("rows")
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_role("searchbox").fill("")
    page.get_by_label("Which values").select_option("all")
    expect(page.get_by_role("link", name="Download image-4.png")).to_be_visible()
    shown = page.request.get(f"{served.url}/api/v1/run/blob", params=blob_of(page, served, "image"))
    assert shown.headers["content-disposition"] == "attachment; filename*=UTF-8''a_b_exe.png"
    page.goto(served.tab("files", "bare"))
    expect(page.get_by_text('logclient.File("config.yaml")')).to_be_visible()


def blob_of(page: Page, served: Served, key: str) -> dict[str, str | float | bool]:
    """Parameters of the bytes of a value, under a name that is to mislead."""
    run = served.ids["one"]
    found = page.request.get(f"{served.url}/api/v1/run/media", params={"run": run, "key": key}).json()
    return {"run": run, "sha256": found["media"][0]["sha256"], "name": "a/b\\\u202eexe.png"}

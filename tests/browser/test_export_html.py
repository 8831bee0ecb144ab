"""`logclient export --html`: a page that anybody may open, whatever the run holds."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from playwright.sync_api import Page, expect

from logclient.shm.side_stream import CONSOLE, MEDIA
from logclient_backend.agent.media.pixels import png, wav
from logclient_backend.cli import cli
from logclient_backend.runs.html import console
from logclient_backend.runs.media_reference import FOLDER, Reference, blob_path
from tests.backend.runs.build import NOW_NS, NodeMaker, Rec, rec, side_number, simple_run
from tests.served import sample_runs

from .conftest import Watched

HOSTILE = "</title></style><script>fetch('https://a.example')</script><img src=https://a.example/x onerror=alert(1)>"


def export(folder: Path, run: str, out: Path, *more: str) -> Result:
    words = ["export", run, "--dir", str(folder), "--html", str(out), *more]
    return CliRunner().invoke(cli, words, prog_name="logclient")


def test_page_shows_values_curves_and_what_is_missing(tmp_path: Path, page: Page) -> None:
    """Keys in sections by prefix; a gap and points that are not finite are marked."""
    sample_runs(tmp_path / "runs")
    done = export(tmp_path / "runs", "mixed", tmp_path / "mixed.html")
    assert done.exit_code == 0, done.output
    page.goto((tmp_path / "mixed.html").as_uri())
    expect(page.get_by_role("heading", level=1)).to_have_text("every type")
    expect(page.get_by_role("row", name="deep::a::b::0 1")).to_be_visible()
    expect(page.get_by_role("row", name="overwritten before they were stored 3")).to_be_visible()
    chart = page.get_by_role("figure").filter(has_text=re.compile("^x"))
    expect(chart.locator(".gap").first).to_be_visible()
    expect(chart.locator(".odd").first).to_be_visible()
    assert page.get_by_role("figure").count() == 5  # x, big, t, f and ../etc


def test_single_spike_among_many_points_is_drawn(tmp_path: Path, page: Page) -> None:
    """A column reaches from the lowest to the highest of its points."""
    made = NodeMaker(tmp_path / "runs", "spike")
    made.process(1)
    spike = 33_333
    made.segment(
        {(1, 1, 0): [rec(seq, step=seq, loss=1000.0 if seq == spike else 1.0) for seq in range(1, 50_001)]}
    )
    made.save()
    assert export(tmp_path / "runs", "spike", tmp_path / "spike.html").exit_code == 0
    page.goto((tmp_path / "spike.html").as_uri())
    path = page.locator(".curve").get_attribute("d") or ""
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path)]
    assert heights.count(min(heights)) == 1 and min(heights) < 30  # near the upper edge, one column wide


SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20" onload="fetch(\'https://a.example/svg\')">'
    '<script>fetch("https://a.example/in-svg")</script><rect width="40" height="20" fill="red"/>'
    '<image href="https://a.example/x.png" width="9" height="9"/><foreignObject width="9" height="9">'
    '<img xmlns="http://www.w3.org/1999/xhtml" src="https://a.example/y.png"/></foreignObject></svg>'
)


class Kept:
    """A run with what is beside its records: media values, captured output, variables."""

    def __init__(self, folder: Path, run: str) -> None:
        self.made = NodeMaker(folder, run)
        self._references: list[Rec] = []
        self._pieces: list[Rec] = []

    def media(self, kind: str, data: str | bytes, mime: str, step: int = 1, **fields: Any) -> None:
        stored = data.encode() if isinstance(data, str) else data
        sha256 = hashlib.sha256(stored).hexdigest()
        path = Path(blob_path(f"{self.made.path}/{FOLDER}", sha256))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stored)
        self.reference(step, Reference(kind, sha256, len(stored), mime, "", fields))

    def reference(self, step: int, reference: Reference) -> None:
        seq = len(self._references) + 1
        key = f"{reference.kind}/{HOSTILE}"
        self._references.append(Rec(seq, seq, step, NOW_NS + seq, ((key, "s", reference.text()),)))

    def printed(self, stream: str, text: str) -> None:
        seq = len(self._pieces) + 1
        self._pieces.append(Rec(seq, seq, seq, NOW_NS + seq, ((stream, "s", text),)))

    def save(self, environment: dict[str, Any] | None = None) -> None:
        for side, records in ((MEDIA, self._references), (CONSOLE, self._pieces)):
            if records:
                self.made.segment({(side_number(side), side_number(side), 0): records})
        self.made.save(self.made.content() | ({"environment": environment} if environment else {}))


def test_nothing_of_a_hostile_run_runs_or_loads(tmp_path: Path, page: Page, watched: Watched) -> None:
    """Names, keys, config, texts, media, output and variables are shown as they are; no request leaves the page."""
    kept = Kept(tmp_path / "runs", "hostile")
    told = {
        "config": {HOSTILE: HOSTILE},
        "summary": {"s": [HOSTILE]},
        "about": {"name": HOSTILE, "tags": [HOSTILE], "notes": HOSTILE, "group": HOSTILE},
        "state": {
            "state": "failed",
            "exception": {"type": HOSTILE, "text": HOSTILE, "last_lines": [HOSTILE]},
        },
    }
    kept.made.process(1, documents=told)
    values = ((f"{HOSTILE}/{HOSTILE}", "d", math.nan), ("t", "s", HOSTILE))
    kept.made.segment({(1, 1, 0): [Rec(1, 1, 1, 1, values), Rec(2, 2, 2, 2, values)]})
    kept.media("image", SVG, "image/svg+xml", caption=HOSTILE)
    kept.media("html", HOSTILE, "text/html")
    kept.media(
        "markdown", f"{HOSTILE} ![i](https://a.example/i.png) [bad](javascript:alert(1))", "text/markdown"
    )
    kept.media("text", HOSTILE, "text/plain")
    kept.media(
        "table", json.dumps({"columns": [HOSTILE], "rows": [[HOSTILE], [[HOSTILE]], 5]}), "application/json"
    )
    kept.media("figure", json.dumps({"data": [HOSTILE]}), "application/json")
    kept.media("file", HOSTILE, "application/octet-stream", name=HOSTILE)
    kept.media("image", HOSTILE, "text/html")  # another type than its kind's
    kept.media("video", "#EXTM3U\nhttps://a.example/v.ts", "application/vnd.apple.mpegurl")
    kept.reference(2, Reference("image", lost=HOSTILE))
    kept.reference(
        2, Reference("histogram", fields={"low": 0, "high": math.inf, "counts": [math.nan, 10**400]})
    )
    kept.printed("stdout", f"{HOSTILE}\n")
    kept.printed("stderr", f"\x1b]0;title\x07{HOSTILE}\n")
    kept.save({"environment": {"command": {"variables": {HOSTILE: HOSTILE}}, "code": {"commit": HOSTILE}}})
    done = export(tmp_path / "runs", "hostile", tmp_path / "hostile.html", "--console", "--variables")
    assert done.exit_code == 0, done.output
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((tmp_path / "hostile.html").as_uri())
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    assert page.locator("script, iframe, link, object, embed, video, audio, a, foreignObject").count() == 0
    picture = page.get_by_role("img", name=HOSTILE, exact=True)
    expect(picture).to_have_js_property("naturalWidth", 40)  # it is drawn, and as an image of its own
    assert page.locator("img").count() == 1
    for summary in ("Console (2 lines)", "Environment variables (1)", "Media (11 values of 9 keys)"):
        expect(page.get_by_text(summary)).to_be_visible()
    expect(page.locator(".console b")).to_have_text(HOSTILE)
    expect(page.get_by_text("[bad](javascript:alert(1))")).to_be_visible()
    expect(page.get_by_role("cell", name=HOSTILE).last).to_be_visible()
    expect(page.get_by_text("HTML (text/html,")).to_contain_text("is not part of this page")
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert watched.faults == []


def test_page_has_media_within_its_budget_and_the_rest_only_if_asked_for(tmp_path: Path, page: Page) -> None:
    """Pictures, sounds, bars, cells and texts; what is left out is counted. Output and variables need their options."""
    kept = Kept(tmp_path / "runs", "rich")
    kept.made.process(1)
    kept.made.segment({(1, 1, 0): [rec(seq) for seq in range(1, 5)]})
    for step in range(100):
        pixels, _ = png(bytes([step] * 64), "u1", [8, 8], "HW", None, 6)
        kept.media("image", pixels, "image/png", step, caption=f"after {step}")
    kept.reference(3, Reference("histogram", fields={"low": 0.0, "high": 1.0, "counts": [1, 2, 3]}))
    wide = json.dumps({"low": 0, "high": 8, "counts": [4, 4], "edges": [0, 2, 8], "values": 8})
    kept.media("histogram", wide, "application/json", 4)
    kept.media("table", json.dumps({"columns": ["a", "b"], "rows": [[1, "x"]] * 300}), "application/json")
    kept.media("text", "word " * 40_000, "text/plain")
    kept.media("audio", wav(bytes(800), "i2", 1, 8000), "audio/wav", caption="a tone")
    kept.media("video", bytes(300_000), "video/mp4")
    kept.reference(200, Reference("figure", "0" * 64, 10, "image/png"))
    for number in range(console.MAX_LINES + 10):
        kept.printed("stdout", f"line {number}\n")
    kept.save({"environment": {"command": {"variables": {"CUDA_DEVICES": "all", "API_KEY": "***"}}}})
    out = tmp_path / "rich.html"
    done = export(tmp_path / "runs", "rich", out, "--console", "--variables", "--media-bytes", "250000")
    assert done.exit_code == 4 and "the blob 000000000000 cannot be read" in done.output
    assert out.stat().st_size < 800_000
    page.goto(out.as_uri())
    expect(page.get_by_text("77 values of 107 left out")).to_be_visible()  # 76 pictures, and the film
    assert page.get_by_role("img", name="after").count() == 24
    assert page.get_by_role("img", name="after").first.get_attribute("alt") == "after 0"
    expect(page.get_by_role("img", name="after 99")).to_have_js_property("naturalWidth", 8)
    expect(page.get_by_role("img", name="Histogram from 0 to 1, 6 values")).to_be_visible()
    expect(page.get_by_role("img", name="Histogram from 0 to 8, 8 values")).to_be_visible()
    expect(page.get_by_text("and 100 rows more")).to_be_visible()
    expect(page.get_by_text("and 100,000 characters more")).to_be_visible()
    expect(page.get_by_label("a tone")).to_have_js_property("duration", 0.05)
    assert page.locator("video").count() == 0
    expect(page.get_by_text("10 earlier lines left out.")).to_be_visible()
    assert "line 10\n" in (page.locator(".console").text_content() or "").replace("  ", "\n")
    expect(page.get_by_role("row", name="API_KEY ***")).to_be_visible()
    plain = tmp_path / "plain.html"
    done = export(tmp_path / "runs", "rich", plain, "--media-bytes", "0")
    assert done.exit_code == 0, done.output
    text = plain.read_text()
    assert "<img" not in text and "line 5000" not in text and "CUDA_DEVICES" not in text
    assert "107 values of 107 left out" in text


def test_images_in_cells_are_pictures_as_far_as_the_budget_goes(tmp_path: Path, page: Page) -> None:
    """Others are left out and counted; one that is lost says why; what is no reference stays text."""
    kept = Kept(tmp_path / "runs", "cells")
    kept.made.process(1)
    kept.made.segment({(1, 1, 0): [rec(1)]})
    cells: list[Any] = []
    for side in (8, 100, 9):
        data = png(bytes(side * side), "u1", [side, side], "HW", None, 0)[0]
        kept.media("image", data, "image/png", side)
        image = {"kind": "image", "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        cells.append({"image": image | {"mime": "image/png", "caption": f"cell {side} {HOSTILE}"}})
    cells += [{"image": {"kind": "image", "lost": "it is gone"}}, {"image": {"kind": HOSTILE}}]
    table = {"columns": ["n", "picture"], "rows": [[at, cell] for at, cell in enumerate(cells)]}
    kept.media("table", json.dumps(table), "application/json")
    kept.save()
    out = tmp_path / "cells.html"
    done = export(tmp_path / "runs", "cells", out, "--media-bytes", "12000")
    assert done.exit_code == 0, done.output
    page.goto(out.as_uri())
    rows = page.locator(".media table tr")
    expect(rows).to_have_count(6)
    expect(rows.nth(1).get_by_role("img", name="cell 8")).to_have_js_property("naturalWidth", 8)
    expect(rows.nth(2)).to_contain_text("image, left out")
    expect(rows.nth(3).get_by_role("img", name="cell 9")).to_have_js_property("naturalWidth", 9)
    expect(rows.nth(4)).to_contain_text("Not stored: it is gone")
    expect(rows.nth(5)).to_contain_text('{"image":')
    expect(page.get_by_text("1 image left out", exact=True)).to_be_visible()


@pytest.mark.parametrize("words", [["--out", "x"], ["--json"], ["--format", "csv"]])
def test_page_takes_no_options_of_points(tmp_path: Path, words: list[str]) -> None:
    """A file that is there is not overwritten either."""
    simple_run(tmp_path / "runs", "one")
    asked = ["export", "one", "--dir", str(tmp_path / "runs"), "--html", str(tmp_path / "one.html")]
    done = CliRunner().invoke(cli, [*asked, *words], prog_name="logclient")
    assert done.exit_code == 2 and "leave --out" in done.output
    (tmp_path / "one.html").write_text("mine")
    done = CliRunner().invoke(cli, asked, prog_name="logclient")
    assert done.exit_code == 2 and (tmp_path / "one.html").read_text() == "mine"


@pytest.mark.parametrize(
    "words", [["--console"], ["--variables"], ["--media-bytes", "5"], ["--html", "x", "--media"]]
)
def test_options_of_the_page_need_the_page(tmp_path: Path, words: list[str]) -> None:
    """Points are exported without them."""
    simple_run(tmp_path / "runs", "one")
    done = CliRunner().invoke(
        cli, ["export", "one", "--dir", str(tmp_path / "runs"), *words], prog_name="logclient"
    )
    assert done.exit_code == 2 and "--html" in done.output

"""`logclient export --html`: a page that anybody may open, whatever the run holds."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from playwright.sync_api import Page, expect

from logclient_backend.cli import cli
from tests.backend.runs.build import NodeMaker, Rec, rec, simple_run
from tests.served import sample_runs

from .conftest import Watched

HOSTILE = "</title></style><script>fetch('https://a.example')</script><img src=https://a.example/x onerror=alert(1)>"


def export(folder: Path, run: str, out: Path) -> Result:
    words = ["export", run, "--dir", str(folder), "--html", str(out)]
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


def test_nothing_of_a_hostile_run_runs_or_loads(tmp_path: Path, page: Page, watched: Watched) -> None:
    """Names, keys, tags, config and texts are shown as they are; no request leaves the page."""
    made = NodeMaker(tmp_path / "runs", "hostile")
    told = {
        "config": {HOSTILE: HOSTILE},
        "summary": {"s": [HOSTILE]},
        "about": {"name": HOSTILE, "tags": [HOSTILE], "notes": HOSTILE, "group": HOSTILE},
        "state": {
            "state": "failed",
            "exception": {"type": HOSTILE, "text": HOSTILE, "last_lines": [HOSTILE]},
        },
    }
    made.process(1, documents=told)
    values = ((f"{HOSTILE}/{HOSTILE}", "d", math.nan), ("t", "s", HOSTILE))
    made.segment({(1, 1, 0): [Rec(1, 1, 1, 1, values), Rec(2, 2, 2, 2, values)]})
    made.save()
    done = export(tmp_path / "runs", "hostile", tmp_path / "hostile.html")
    assert done.exit_code == 0, done.output
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((tmp_path / "hostile.html").as_uri())
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    assert page.locator("script, img, iframe, link").count() == 0
    assert [url for url in requests if not url.startswith("file:")] == []
    assert watched.faults == []


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

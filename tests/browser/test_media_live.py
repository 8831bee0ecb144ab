"""Media and files of a run that goes on: what comes is shown without a reload."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from logclient_backend.agent.media.pixels import png
from logclient_backend.collector.blobs import Blobs
from logclient_backend.collector.tokens import EVERYBODY
from tests.backend.web.media_values import LiveRun
from tests.served import backing, made_store, serving

from .conftest import Watched


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveRun]:
    with made_store(tmp_path / "store") as store:
        yield LiveRun(store, Blobs(str(tmp_path / "data")))


@pytest.fixture
def url(live: LiveRun) -> Iterator[str]:
    with serving(backing(live.store, blobs=live.blobs, check=lambda token: EVERYBODY)) as found:
        yield f"{found}/#/run/{live.run}"


def image(step: int) -> bytes:
    """Bytes of the image of a step."""
    return png(bytes([step]) * 64, "u1", (8, 8), "HW", None, 1)[0]


def log(live: LiveRun, *steps: int, key: str = "image") -> None:
    for step in steps:
        live.arrive(image(step))
        live.log(step, key, image(step))


def test_tabs_follow_a_run_until_it_is_over(watched: Watched, url: str, live: LiveRun) -> None:
    """A slider at its end goes along, another stays; only what is new is asked for, of a run that is over nothing."""
    page = watched.page
    page.clock.install()
    log(live, 0, 1)
    page.goto(f"{url}/media")
    panel = page.get_by_role("region", name="image", exact=True)
    expect(panel.get_by_text("step 1 (2 of 2)")).to_be_visible()
    log(live, 2)
    page.clock.fast_forward(3_000)
    expect(panel.get_by_text("step 2 (3 of 3)")).to_be_visible()
    expect(panel.get_by_role("img", name="image 2")).to_be_visible()
    panel.get_by_role("slider").fill("1")
    asked = len(watched.requests)
    log(live, 3, key="another")
    log(live, 4)
    page.clock.fast_forward(3_000)
    expect(panel.get_by_text("step 1 (2 of 4)")).to_be_visible()
    expect(panel.get_by_role("img", name="image 1")).to_be_visible()
    expect(page.get_by_role("region", name="another").get_by_role("img", name="another 3")).to_be_visible()
    lists = [each.url for each in watched.requests[asked:] if "/run/media?" in each.url]
    assert all("since=" in each or "key=another" in each for each in lists), lists

    page.goto(f"{url}/files")
    expect(page.get_by_text("No file was logged.")).to_be_visible()
    live.arrive(b"weights")
    live.log(5, "weights", b"weights", "file")
    page.clock.fast_forward(3_000)
    expect(page.get_by_role("link", name="Download weights-5")).to_be_visible()
    live.log(6, "weights", b"weights", "file")
    live.end()
    page.clock.fast_forward(3_000)
    expect(page.get_by_role("link", name="Download weights-6")).to_be_visible()
    expect(page.get_by_text("finished", exact=True)).to_be_visible()
    page.goto(f"{url}/media?step=1")
    expect(panel.get_by_text("step 1 (2 of 4)")).to_be_visible()
    asked = len(watched.requests)
    for _ in range(3):
        page.clock.fast_forward(60_000)
        page.evaluate("1")  # events come within calls
    assert [each.url for each in watched.requests[asked:]] == []


def test_bytes_that_have_not_come_are_waited_for(watched: Watched, url: str, live: LiveRun) -> None:
    """Nothing fails meanwhile; when the run is over a sentence says what was not kept."""
    page = watched.page
    cell = {
        "image": {
            "kind": "image",
            "sha256": hashlib.sha256(image(9)).hexdigest(),
            "mime": "image/png",
            "bytes": 1,
        }
    }
    table = json.dumps({"columns": ["picture"], "rows": [[cell]]}).encode()
    live.log(1, "image", image(1))
    live.log(1, "gone", b"gone")
    live.log(1, "table", table, "table")
    page.goto(f"{url}/media")
    panel = page.get_by_role("region", name="image", exact=True)
    gone = page.get_by_role("region", name="gone")
    expect(panel.get_by_text("arriving …")).to_be_visible()
    expect(gone.get_by_text("arriving …")).to_be_visible()
    live.arrive(image(1))
    live.arrive(table)
    shown = panel.get_by_role("img", name="image 1")
    expect(shown).to_have_js_property("naturalWidth", 8)
    cells = page.get_by_role("region", name="table")
    expect(cells.get_by_text("arriving …")).to_be_visible()
    live.arrive(image(9))
    expect(cells.get_by_role("img", name="image of picture")).to_have_js_property("naturalWidth", 8)
    live.end(before_s=3600)
    expect(page.get_by_text("finished", exact=True)).to_be_visible()
    page.reload()
    expect(gone.get_by_text("The image was not kept:")).to_be_visible()
    assert "blob" not in gone.inner_text()
    assert [each.url for each in watched.requests if "/run/blob?" in each.url and each.failure] == []

"""A run's page: what the run is, what its logging did, and requests to stop it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from logclient.shm.side_stream import MARKS, MEDIA
from logclient_backend.collector.tokens import EVERYBODY
from tests.backend.runs.build import NOW_NS, SECOND, NodeMaker
from tests.served import backing, made_store, sample_runs, serving, take_in

from .conftest import Watched

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def failed_run(folder: Path) -> None:
    """A run that ended by an exception, with markup in all that a program may choose."""
    made = NodeMaker(folder, "failed")
    told = {
        "config": {
            "a": {"b": 1},
            "a.b": 2,
            "model": {"layers": [{"width": 64}, {"width": 32}]},
            MARKUP: MARKUP,
        },
        "summary": {"best": 0.25},
        "about": {"name": f"fails {MARKUP}", "tags": [MARKUP], "notes": MARKUP},
        "state": {
            "state": "failed",
            "exception": {"type": "ValueError", "text": MARKUP, "last_lines": ["train.py:8 in <module>"]},
        },
    }
    mark = MARKS[MEDIA].hex()
    media = {"process": mark + "1" * 16, "lane": 0, "accepted": 7, "stored": 4, "damaged": 1}
    made.streams[mark + "0" * 16] = media
    made.process(1, documents=told, end={"time": NOW_NS + SECOND, "alive": False, "exit_code": 1})
    around = {
        "command": {
            "arguments": ["python", "train.py", MARKUP],
            "folder": "/work",
            "variables": {"RANK": "0"},
        },
        "code": {
            "commit": "0123456789abcdef",
            "branch": "main",
            "dirty": True,
            "remote": "https://a.example/r.git",
        },
        "machine": {"processors": 8, "memory_bytes": 1 << 34},
        "packages": [["torch", "2.13.0"]],
    }
    seen = {"process": "", "captured_ns": NOW_NS, "environment": around}
    made.save({**made.content(), "environment": seen})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base = tmp_path_factory.mktemp("run-page")
    sample_runs(base / "runs")
    failed_run(base / "runs")
    with made_store(base / "data") as store:
        take_in(store, base / "runs")
        with serving(backing(store, check=lambda token: EVERYBODY)) as found:
            yield found


def test_overview_shows_config_by_path_and_why_the_run_failed(page: Page, url: str) -> None:
    """Keys that differ only by their nesting are different rows, and no text of a program becomes markup."""
    page.goto(f"{url}/#/run/failed")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"fails {MARKUP}")
    expect(page.get_by_text("ValueError", exact=False).first).to_be_visible()
    config = page.get_by_role("region", name="Config")
    for path, value in (("a::b", "1"), ("a.b", "2"), ("model::layers::1::width", "32")):
        expect(config.get_by_role("row", name=f"{path} {value}", exact=True)).to_be_visible()
    expect(config.get_by_role("row", name=MARKUP)).to_be_visible()
    assert page.locator("main img, main script").count() == 0


def test_rename_elsewhere_is_seen_on_coming_back(page: Page, url: str) -> None:
    """A run that is over is asked for once more then, and not otherwise."""
    page.goto(f"{url}/#/run/mixed")
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_be_visible()
    headers = {"x-logclient": "1", "origin": url}
    answer = page.request.post(
        f"{url}/api/v1/runs/edit", data={"runs": ["mixed"], "name": "renamed"}, headers=headers
    )
    assert answer.ok, answer.text()
    page.evaluate("dispatchEvent(new Event('focus'))")
    expect(heading).to_have_text("renamed")


def test_overview_shows_what_the_program_ran_in(page: Page, url: str) -> None:
    """Command, commit and machine at once; packages and variables when they are asked for."""
    page.goto(f"{url}/#/run/failed")
    around = page.get_by_role("region", name="Environment")
    expect(around).to_contain_text(f"python train.py {MARKUP}")
    expect(around).to_contain_text("0123456789ab, with changes (main)")
    expect(around).to_contain_text("8 x processor, 16.0 GiB")
    around.get_by_text("Packages and variables").click()
    expect(around.get_by_role("row", name="variables::RANK 0")).to_be_visible()
    expect(around.get_by_role("row", name="2.13.0")).to_be_visible()


def test_filter_of_config_answers_while_typing(page: Page, url: str) -> None:
    """It looks in paths and in values."""
    page.goto(f"{url}/#/run/failed")
    config = page.get_by_role("region", name="Config")
    page.get_by_role("searchbox", name="Filter config and summary").fill("width")
    expect(config.get_by_role("row")).to_have_count(2)
    page.get_by_role("searchbox", name="Filter config and summary").fill("none of them")
    expect(config).to_contain_text("None of the 5 values matches.")


def test_logging_tab_counts_what_was_dropped(page: Page, url: str) -> None:
    """Each kind of loss apart, in the words of `logclient show`; the tab is in the link."""
    page.goto(f"{url}/#/run/mixed")
    page.get_by_role("link", name="Logging").click()
    counts = page.get_by_role("region", name="Counts")
    expect(counts.get_by_role("row", name="Forgotten")).to_contain_text("3")
    expect(counts.get_by_role("row", name="Damaged")).to_contain_text("2")
    page.reload()
    expect(counts.get_by_role("row", name="Forgotten")).to_contain_text("3")
    expect(page.get_by_role("region", name="Nodes").get_by_role("row")).to_have_count(2)
    page.goto(f"{url}/#/run/failed/health")
    media = page.get_by_role("region", name="Media values")
    for name, count in (("Accepted", "7"), ("Stored", "4"), ("Forgotten", "2"), ("Damaged", "1")):
        expect(media.get_by_role("row", name=name)).to_contain_text(count)


def test_run_that_is_not_here_is_a_sentence(page: Page, url: str, watched: Watched) -> None:
    """With the name that was asked for."""
    watched.expected.append("404")
    page.goto(f"{url}/#/run/absent")
    expect(page.get_by_role("alert")).to_contain_text("there is no run 'absent' here")

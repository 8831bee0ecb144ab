"""Questions about many runs in one request: configs, extremes, series, groups."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from logclient_backend.collector.web import groups, many_runs
from tests.backend.runs.build import NOW_NS, SECOND, NodeMaker, rec
from tests.served import backing, made_store, sample_runs, serving, take_in


def trial(folder: Path, number: int, **about: Any) -> None:
    """A finished run with a setting, a summary and 20 points."""
    maker = NodeMaker(folder, f"trial-{number}")
    maker.created_ns = NOW_NS + number * SECOND
    config = {"lr": [0.1, 0.2][number % 2], "seed": number}
    summary = {"acc": math.nan if number == 5 else number / 10}
    state = (NOW_NS + 100 * SECOND, {"state": "failed" if number == 1 else "finished", "by": "finish"})
    maker.process(
        1,
        documents={"config": config, "summary": summary, "about": about, "state": state},
        end={"time": NOW_NS + 100 * SECOND, "alive": False, "exit_code": 0},
    )
    maker.segment({(1, 1, 0): [rec(at + 1, step=at, loss=float(number * at)) for at in range(20)]})
    maker.told(1, 1, 20, 20)
    maker.save()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base = tmp_path_factory.mktemp("many")
    sample_runs(base / "runs")
    for number in range(6):
        trial(base / "runs", number, group="one" if number < 4 else "two")
    with made_store(base / "data") as store:
        take_in(store, base / "runs")
        with serving(backing(store)) as url:
            yield url


def ask(url: str, path: str, **asked: Any) -> Any:
    answer = requests.get(
        f"{url}/api/v1{path}", params=asked, headers={"Authorization": "Bearer reads"}, timeout=60
    )
    return json.loads(answer.content)


def test_configs_are_whole_and_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN and infinities are told from texts; what has no room is left for the next question."""
    made = ask(url, "/configs", run=["mixed", "none", "trial-1", "mixed"])
    assert [row["run"] for row in made["runs"]] == ["mixed", "trial-1"]
    assert (
        made["runs"][0]["config"]["odd"] == {"$float": "nan"} and made["runs"][0]["config"]["text"] == "nan"
    )
    assert made["runs"][0]["summary"] == {"best": {"$float": "-inf"}, "big": 2**70}
    assert (made["unknown_runs"], made["left"]) == (["none"], [])
    monkeypatch.setattr(many_runs, "MAX_BYTES", 100)
    made = ask(url, "/configs", run=["mixed", "trial-1", "trial-2"])
    assert ([row["run"] for row in made["runs"]], made["left"]) == (["mixed"], ["trial-1", "trial-2"])


def test_extremes_of_many_runs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is the run's own; runs beyond the limit of one answer are named."""
    asked = ["trial-3", "twice", "mixed", "none"]
    made = ask(url, "/extremes", run=asked, key=["loss", "x"])
    found = {(row["run"], row["key"]): row for row in made["values"]}
    assert set(found) == {("trial-3", "loss"), ("twice", "loss"), ("mixed", "x")}
    for (run, key), row in found.items():
        own = {each["key"]: each for each in ask(url, "/run/extremes", run=run)["keys"]}
        assert {**own[key], "run": run} == row
    assert (made["unknown_runs"], made["left"]) == (["none"], [])
    monkeypatch.setattr(many_runs, "MAX_PAIRS", 2)
    made = ask(url, "/extremes", run=asked, key=["loss", "x"])
    assert ([row["run"] for row in made["values"]], made["left"]) == (["trial-3"], asked[1:])


def test_series_of_many_runs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points are those of `/run/series` in a range of steps; a page that is full says where to go on."""
    made = ask(
        url, "/series", run=["trial-2", "mixed", "twice", "none"], key="loss", first_step=15, last_step=70
    )
    assert [(each["run"], each["step"]) for each in made["series"]] == [
        ("trial-2", [15, 16, 17, 18, 19]),
        ("twice", [*range(15, 71), *range(61, 71)]),
    ]
    assert (made["without_key"], made["unknown_runs"], made["left"]) == (["mixed"], ["none"], [])
    spans = [
        {"attempt": 1, "first_step": 1, "last_step": 90},
        {"attempt": 2, "first_step": 61, "last_step": 120},
    ]
    assert made["series"][1]["spans"] == spans
    monkeypatch.setattr(many_runs, "PAGE_POINTS", 30)
    made = ask(url, "/series", run=["trial-1", "trial-2", "trial-3"], key="loss")
    assert [(each["run"], len(each["step"]), each["is_all"]) for each in made["series"]] == [
        ("trial-1", 20, True),
        ("trial-2", 10, False),
    ]
    assert made["left"] == ["trial-3"]
    rest = ask(url, "/run/series", run="trial-2", key="loss", after=made["series"][1]["next"])
    assert (rest["step"], rest["is_all"]) == (list(range(10, 20)), True)


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_a_range_of_steps_page_by_page(url: str, limit: int) -> None:
    """Each point of the range once, whatever the size of pages; cursors end."""
    for run, first, last in (("twice", 50, 70), ("mixed", -50, 55), ("mixed", 10**6, 10**7)):
        key = "loss" if run == "twice" else "t"
        whole = ask(url, "/run/series", run=run, key=key, limit=1000)
        pairs = list(zip(whole["step"], whole["value"], strict=True))
        expected = [each for each in pairs if first <= each[0] <= last]
        found: list[Any] = []
        after = ""
        for _ in range(200):
            page = ask(
                url,
                "/run/series",
                run=run,
                key=key,
                limit=limit,
                after=after,
                first_step=first,
                last_step=last,
            )
            found += zip(page["step"], page["value"], strict=True)
            after = page["next"]
            if page["is_all"]:
                break
        assert found == expected and page["is_all"]
    assert (
        ask(url, "/run/series", run="twice", key="loss", first_step=2, last_step=1)["error"] == "bad_request"
    )


def test_groups_of_runs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many, their states, and columns as mean and range; those without a group are last, under null."""
    columns = ["last::loss", "summary::acc", "config::seed", "config::none"]
    made = ask(url, "/groups", column=columns)
    assert [(row["value"], row["runs"]) for row in made["groups"]] == [
        ("two", 2),
        ("one", 4),
        ("g", 1),
        (None, 3),
    ]
    assert (made["runs"], made["total"], made["left_out_runs"]) == (10, 4, 0)
    two, one = made["groups"][:2]
    assert one["states"] == {"finished": 3, "failed": 1} and one["created_ns"] == NOW_NS
    assert one["columns"]["last::loss"] == {"runs": 4, "mean": 28.5, "min": 0.0, "max": 57.0}
    assert two["columns"]["summary::acc"] == {
        "runs": 1,
        "mean": 0.4,
        "min": 0.4,
        "max": 0.4,
    }  # the other is NaN
    assert two["columns"]["config::none"] == {"runs": 0, "mean": None, "min": None, "max": None}
    made = ask(url, "/groups", by="config::lr", group="one", column="config::seed")
    assert [(row["value"], row["columns"]["config::seed"]["mean"]) for row in made["groups"]] == [
        (0.2, 2),
        (0.1, 1),
    ]
    pages = [ask(url, "/groups", limit=3), ask(url, "/groups", limit=3, after="3")]
    assert [len(page["groups"]) for page in pages] == [3, 1] and (pages[0]["next"], pages[1]["next"]) == (
        "3",
        "",
    )
    assert {row["value"]: row["runs"] for row in ask(url, "/groups", by="state")["groups"]}["failed"] == 1
    assert ask(url, "/groups", by="loss")["error"] == "bad_request"
    assert ask(url, "/groups", column="loss")["error"] == "bad_request"
    monkeypatch.setattr(groups, "MAX_RUNS", 3)
    monkeypatch.setattr(groups, "MAX_LOOKED_AT", 5)
    made = ask(url, "/groups")
    assert (made["runs"], made["left_out_runs"]) == (6, 4)

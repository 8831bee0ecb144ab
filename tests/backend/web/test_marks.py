"""`/api/v1/run/marks`: where records are missing and where attempts begin; and the rank whose curve is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from logclient_backend.collector.tokens import EVERYBODY
from tests.backend.runs.build import NOW_NS, SECOND
from tests.served import backing, made_store, sample_runs, serving, take_in


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base = tmp_path_factory.mktemp("marks")
    sample_runs(base / "runs")
    with made_store(base / "data") as store:
        take_in(store, base / "runs")
        while store.compact(deadline_s=60.0):
            pass
        with serving(backing(store, check=lambda token: EVERYBODY)) as found:
            yield found


def ask(url: str, path: str, **parameters: Any) -> Any:
    answer = requests.get(f"{url}/api/v1/{path}", parameters, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_gaps_lie_between_the_records_around_them(url: str) -> None:
    """Each has cause, seqs and count, and the steps and times before and after; the longest come first."""
    found = ask(url, "run/marks", run="mixed")
    assert [(gap["cause"], gap["first_seq"], gap["last_seq"], gap["count"]) for gap in found["gaps"]] == [
        ("forgotten", 40, 42, 3),
        ("damaged", 43, 44, 2),
    ]
    for gap in found["gaps"]:
        assert gap["before"] == {"step": 390, "time_ns": NOW_NS + 39 * SECOND // 3}
        assert gap["after"] == {"step": 450, "time_ns": NOW_NS + 45 * SECOND // 3}
    fewer = ask(url, "run/marks", run="mixed", limit=1)
    assert (fewer["gaps"], fewer["left_out_gaps"]) == (found["gaps"][:1], 1)
    assert ask(url, "run/marks", run="plain")["gaps"] == []


def test_attempts_begin_with_their_first_record(url: str) -> None:
    """By the time of that record, over all streams of the attempt."""
    assert ask(url, "run/marks", run="twice")["attempts"] == [
        {"attempt": 1, "first": {"step": 1, "time_ns": NOW_NS + SECOND}},
        {"attempt": 2, "first": {"step": 61, "time_ns": NOW_NS + 201 * SECOND}},
    ]


def test_main_rank_is_the_lowest_that_logged_the_key(url: str) -> None:
    """With records that have no rank; without asking, all ranks are in a curve."""
    asked = {"run": "mixed", "key": "f", "most": 20_000}  # logged with no rank and by the ranks 0, 3 and 7
    (every,) = ask(url, "curves", **asked)["curves"]
    (main,) = ask(url, "curves", ranks="main", **asked)["curves"]
    assert every["rank"] is None
    assert main["rank"] == 0
    series = ask(url, "run/series", run="mixed", key="f", limit=1000)
    assert every["points"] == len(series["rank"])
    assert main["points"] == sum(rank in (0, None) for rank in series["rank"]) < every["points"]

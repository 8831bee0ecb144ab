"""`/api/v1/band`: one key of several runs as mean, range and quantiles, by the rule of `combine/band.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.backend.runs.build import NOW_NS, NodeMaker, Rec
from tests.served import backing, made_store, serving, take_in

LENGTHS = {"seed-0": 100, "seed-1": 100, "seed-2": 60}


def seed(folder: Path, run: str, values: list[tuple[int, str, Any]], group: str = "seeds") -> None:
    """A run of a group: step, code and value of each record."""
    maker = NodeMaker(folder, run)
    maker.process(documents={"about": {"group": group, "name": run.upper()}})
    records = [
        Rec(seq, seq, step, NOW_NS + seq, (("loss", code, value),))
        for seq, (step, code, value) in enumerate(values, 1)
    ]
    maker.segment({(1, 1, 0): records})
    maker.save()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base = tmp_path_factory.mktemp("band")
    runs = base / "runs"
    for number, (run, length) in enumerate(LENGTHS.items()):
        values = [
            (step, "d", 100.0 if (number, step) == (1, 33) else float(number)) for step in range(length)
        ]
        seed(runs, run, values)
    seed(runs, "sparse", [(10, "d", 5.0), (50, "d", math.nan), (90, "d", 7.0)], group="odd")
    seed(runs, "texts", [(1, "s", "x")], group="texts")
    with made_store(base / "data") as store:
        take_in(store, runs)
        with serving(backing(store)) as url:
            yield url


def ask(url: str, path: str = "/band", **asked: Any) -> tuple[int, Any]:
    answer = requests.get(
        f"{url}/api/v1{path}", params=asked, headers={"Authorization": "Bearer reads"}, timeout=60
    )
    return answer.status_code, json.loads(answer.content)


def test_band_of_a_group(url: str) -> None:
    """Every step with its runs: mean and quantiles over them, and where the short one ended."""
    status, made = ask(url, key="loss", group="seeds", quantile=[0.5, 1])
    assert (status, made["method"], made["width"]) == (200, "band", 1)
    assert made["start"] == list(range(100))
    assert made["runs"] == made["finite"] == [3] * 60 + [2] * 40
    assert made["mean"][0] == 1.0 and made["mean"][60] == 0.5
    assert (made["min"], made["max"][33], made["max"][34]) == ([0.0] * 100, 100.0, 2.0)
    assert [each["quantile"] for each in made["quantiles"]] == [0.5, 1.0]
    assert made["quantiles"][0]["value"] == [1.0] * 33 + [2.0] + [1.0] * 26 + [0.5] * 40
    members = {each["run"]: each for each in made["members"]}
    assert {run: each["points"] for run, each in members.items()} == LENGTHS
    assert members["seed-2"]["name"] == "SEED-2" and members["seed-2"]["last_step"] == 59
    assert (made["points"], made["first_step"], made["last_step"]) == (260, 0, 99)
    assert (made["without_key"], made["unknown_runs"], made["left_out_runs"]) == ([], [], 0)


def test_no_width_hides_a_spike(url: str) -> None:
    """The fewest buckets that may be asked for are given."""
    for most in (2, 3, 10, 50):
        _, made = ask(url, key="loss", group="seeds", most=most)
        assert len(made["start"]) <= most
        assert max(made["max"]) == 100.0


def test_a_range_of_steps_has_what_is_carried_into_it(url: str) -> None:
    """A sparse run counts between its points, with its last value; a NaN is counted and in no mean."""
    asked: dict[str, Any] = {"key": "loss", "run": ["sparse", "seed-0", "texts", "not there"]}
    _, made = ask(url, **asked, first_step=20, last_step=59)
    assert made["runs"] == [2] * 40
    assert made["finite"] == [2] * 30 + [1] * 10
    assert made["mean"] == [2.5] * 30 + [0.0] * 10
    assert made["max"] == [5.0] * 30 + [0.0] * 10
    assert (sum(made["nans"]), made["nans"][30]) == (1, 1)
    assert (made["without_key"], made["unknown_runs"], made["leaves_out_texts"]) == (
        ["texts"],
        ["not there"],
        True,
    )
    _, made = ask(url, **asked, first_step=91, last_step=99)
    assert made["runs"] == [1] * 9
    assert [each["points"] for each in made["members"]] == [0, 9]


def test_what_has_no_band_is_refused(url: str) -> None:
    """With a word and a sentence."""
    refused: list[tuple[dict[str, Any], tuple[int, str]]] = [
        ({"key": "none", "group": "seeds"}, (404, "no_key")),
        ({"key": "loss", "group": "no such group"}, (404, "no_key")),
        ({"key": "loss", "group": "texts"}, (400, "no_numbers")),
        ({"key": "loss", "run": "seed-0", "group": "seeds"}, (400, "bad_request")),
        ({"key": "loss", "quantile": 1.5}, (400, "bad_request")),
        ({"key": "loss", "quantile": "nan"}, (400, "bad_request")),
        ({"key": "loss", "first_step": 5, "last_step": 4}, (400, "bad_request")),
        ({"key": "loss", "most": 1}, (400, "bad_request")),
    ]
    for asked, expected in refused:
        status, said = ask(url, **asked)
        assert (status, said["error"]) == expected, asked

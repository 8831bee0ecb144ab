"""Charts of many series at once: the same buckets as one by one, in bounded answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from logclient_backend.collector.web import curves
from tests.served import backing, made_store, sample_runs, serving, take_in

from .test_api import Api

COLUMNS = ("start", "count", "nans", "infs", "neg_infs", "min", "max", "last")
SAME = ("width", "points", "first_step", "last_step", "leaves_out_texts")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    base = tmp_path_factory.mktemp("curves")
    sample_runs(base / "runs")
    with made_store(base / "data") as store:
        take_in(store, base / "runs")
        with serving(backing(store)) as url:
            yield Api(url, store)


@pytest.mark.parametrize("most", [4, 1000])
def test_curves_are_the_buckets_of_each_series(api: Api, most: int) -> None:
    """By number, what is not there left out, empty columns for what says nothing."""
    runs, keys = ["plain", "mixed", "none", "twice"], ["loss", "x", "t", "big"]
    answer = api.get("/curves", run=runs, key=keys, most=most)
    assert answer["unknown_runs"] == ["none"]
    assert answer["next"] == ""
    assert [each["series"] for each in answer["curves"]] == [0, 5, 6, 7, 12]
    for curve in answer["curves"]:
        run, key = runs[curve["series"] // len(keys)], keys[curve["series"] % len(keys)]
        assert (curve["run"], curve["key"]) == (run, key)
        assert len(curve["time_ns"]) == len(curve["start"])
        if key == "t":
            assert (curve["points"], curve["leaves_out_texts"]) == (0, True)
            continue
        one = api.get("/run/buckets", run=run, key=key, most=most)
        assert [curve[name] for name in SAME] == [one[name] for name in SAME]
        whole = {name: curve[name] for name in COLUMNS}
        for name in ("nans", "infs", "neg_infs"):
            whole[name] = whole[name] or [0] * len(curve["start"])
        if not curve["count"]:
            finite = [value if isinstance(value, (int, float)) else "nan" for value in curve["last"]]
            whole |= {"count": [1] * len(finite), "min": finite, "max": finite}
        assert whole == {name: one[name] for name in COLUMNS}


def test_time_of_a_bucket_is_that_of_its_last_point(api: Api) -> None:
    """So a chart by time needs no other question."""
    (curve,) = api.get("/curves", run=["plain"], key=["loss"], most=4)["curves"]
    points = api.get("/run/series", run="plain", key="loss", limit=1000)
    times = dict(zip(points["step"], points["time_ns"], strict=True))
    ends = [*(start - 1 for start in curve["start"][1:]), curve["last_step"]]
    assert curve["time_ns"] == [times[max(step for step in times if step <= end)] for end in ends]


def test_a_long_answer_goes_on(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages hold each series once, and end."""
    monkeypatch.setattr(curves, "PAGE_BUCKETS", 100)
    runs, keys = ["plain", "twice", "mixed"], ["loss", "x"]
    found, after = [], ""
    while True:
        page = api.get("/curves", run=runs, key=keys, after=after)
        found += [each["series"] for each in page["curves"]]
        after = page["next"]
        if not after:
            break
    assert found == [0, 2, 5]


def test_questions_that_make_no_sense_are_refused(api: Api) -> None:
    """With a sentence."""
    many = [f"k{number}" for number in range(150)]
    for parameters in (
        {"run": ["plain", "plain"], "key": "loss"},
        {"run": "plain"},
        {"run": many, "key": many},
        {"run": "plain", "key": "loss", "first_step": 2, "last_step": 1},
        {"run": "plain", "key": "loss", "after": "x"},
    ):
        assert api.refused("/curves", **parameters) == (400, "bad_request")
    assert api.get("/curves", run="plain", key="loss", after="99999999999")["curves"] == []

"""`/api/v1/run/xy`: a key over the values of another one, by the rule of `combine/pairing.py`."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.collector.store.interface import Description, Parcel
from logclient_backend.wal.encoded import StreamColumns
from tests.backend.runs.build import NOW_NS
from tests.backend.store.samples import columns as rows
from tests.served import backing, made_store, serving

LONG = 200_000  # steps; more than the ranges that both keys are read in
SPIKE = 123_457  # step


def columns(lane: int, key: str, step: Any, value: Any) -> StreamColumns:
    """Records of one float, logged by calls of their own."""
    size = len(step)
    seq = array("Q", range(1, size + 1))
    when = array("q", (NOW_NS + np.asarray(step, np.int64) * 1000).tobytes())
    cells: list[Any] = [array("Q", np.asarray(value, np.float64).view(np.uint64).tobytes())]
    steps = array("q", np.asarray(step, np.int64).tobytes())
    made = Columns(Shape((key,), "d"), None, seq, seq, steps, when, cells)
    return StreamColumns(bytes([lane]) * 16, b"p" * 16, lane, made)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base: Path = tmp_path_factory.mktemp("xy")
    step = np.arange(LONG)
    loss = np.where(step == SPIKE, 1e6, 1 / (1 + step))
    few = np.arange(0, 100, 10)
    with made_store(base / "data") as store:
        told = Description(name="long")
        batches = [
            columns(1, "loss", step, loss),
            columns(2, "epoch", step[1000::1000], step[1000::1000] / 1000),
            columns(3, "lr", step[::100], np.cos(step[::100] / 20_000)),
        ]
        store.writer.write([Parcel("long", "node", NOW_NS, batches, (), b"{}", told)])
        x = np.where(few == 50, math.nan, few / 10.0)
        batches = [columns(1, "y", np.arange(5, 105), np.arange(5.0, 105.0)), columns(2, "x", few, x)]
        texts = StreamColumns(b"t" * 16, b"p" * 16, 4, rows(Shape(("t",), "s"), [1], [["x"]]))
        store.writer.write([Parcel("few", "node", NOW_NS, [*batches, texts], (), b"{}", Description())])
        while store.compact(deadline_s=60.0):
            pass
        with serving(backing(store)) as url:
            yield url


def ask(url: str, **asked: Any) -> tuple[int, Any]:
    answer = requests.get(
        f"{url}/api/v1/run/xy", params=asked, headers={"Authorization": "Bearer reads"}, timeout=60
    )
    return answer.status_code, json.loads(answer.content)


def test_exact_while_steps_are_few(url: str) -> None:
    """x of a point is the last known one; where it is NaN its points are left out and counted."""
    _, made = ask(url, run="few", x="x", y="y")
    assert (made["step_width"], made["is_rising"], made["method"]) == (1, True, "last_known")
    assert (made["points"], made["left_out"]) == (90, 10)
    assert made["x"] == made["min_x"] == [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0]
    assert made["min"] == [5.0, 10.0, 20.0, 30.0, 40.0, 60.0, 70.0, 80.0, 90.0]
    assert made["count"] == [5, 10, 10, 10, 10, 10, 10, 10, 15]
    _, made = ask(url, run="few", x="x", y="y", first_x=2.5, last_x=6)
    assert (made["x"], made["points"], made["left_out"]) == ([3.0, 4.0, 6.0], 30, 10)
    _, made = ask(url, run="few", x="y", y="x")  # turned round: x began before y did
    assert (made["points"], made["left_out"], made["nans"]) == (9, 1, [0, 0, 0, 0, 1, 0, 0, 0, 0])


@pytest.mark.parametrize("most", [2, 100, 1500])
def test_long_series_keep_what_sticks_out(url: str, most: int) -> None:
    """The spike and how many points are left out, in each width; not all values are read for it."""
    _, made = ask(url, run="long", x="epoch", y="loss", most=most)
    assert len(made["x"]) <= most
    assert (made["is_rising"], made["left_out"], made["points"]) == (True, 1000, LONG - 1000)
    at = max(range(len(made["max"])), key=made["max"].__getitem__)
    assert (made["max"][at], made["max_x"][at]) == (1e6, 123.0)
    assert made["min"][-1] == 1 / LONG and made["step_width"] > 1


def test_zoom_is_exact_again(url: str) -> None:
    """A range of x is looked for in finer ranges of steps."""
    _, made = ask(url, run="long", x="epoch", y="loss", first_x=120, last_x=125, most=5000)
    assert (made["step_width"], made["points"], made["left_out"]) == (1, 6000, 1000)
    assert made["x"] == [120.0, 121.0, 122.0, 123.0, 124.0, 125.0]
    assert made["max"][3] == 1e6


def test_what_turns_back_is_drawn_as_it_went(url: str) -> None:
    """x that rises and falls: stretches of steps, in their order."""
    _, made = ask(url, run="long", x="lr", y="loss", most=200)
    assert (made["is_rising"], made["left_out"], len(made["x"])) == (False, 0, 200)
    turns = np.sign(np.diff(made["x"]))
    assert 1 <= np.count_nonzero(np.diff(turns[turns != 0])) <= 5
    assert max(made["max"]) == 1e6


def test_what_cannot_be_paired_is_refused(url: str) -> None:
    """With a word and a sentence."""
    refused: list[tuple[dict[str, Any], tuple[int, str]]] = [
        ({"run": "none", "x": "x", "y": "y"}, (404, "no_run")),
        ({"run": "few", "x": "none", "y": "y"}, (404, "no_key")),
        ({"run": "few", "x": "x", "y": "none"}, (404, "no_key")),
        ({"run": "few", "x": "t", "y": "y"}, (400, "no_numbers")),
        ({"run": "few", "x": "x", "y": "y", "first_x": 2, "last_x": 1}, (400, "bad_request")),
        ({"run": "few", "x": "x", "y": "y", "first_x": "nan"}, (400, "bad_request")),
    ]
    for asked, expected in refused:
        status, said = ask(url, **asked)
        assert (status, said["error"]) == expected, asked

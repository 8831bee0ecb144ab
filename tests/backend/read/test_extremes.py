"""Lowest, highest and newest value of each key, for all runs: the same from a folder, a server, `show` and `read`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import logclient
from logclient_backend.cli import cli
from logclient_backend.remote import contents
from tests.backend.runs.build import NOW_NS, SECOND, NodeMaker, Rec, rec
from tests.served import backing, made_store, sample_runs, serving, take_in

RUNS = ["plain", "mixed", "twice", "own", "a/../b%2e?&=+#"]


def own_run(folder: Path) -> None:
    """A program that has stored extremes of its own; ints, bools and texts beside floats."""
    maker = NodeMaker(folder, "own")
    summary = {"loss.min": -5.0, "acc": {"max": 0.99}, "step": 7, "odd.max": [1]}
    maker.process(1, documents={"summary": summary})
    values = [
        (("loss", "d", 1.0), ("acc", "d", 0.5), ("step", "q", 3), ("odd", "d", math.nan)),
        (("loss", "d", 0.5), ("acc", "d", 0.25), ("step", "q", 2), ("odd", "d", 2.0)),
        (("loss", "d", 2.0), ("acc", "d", 0.75), ("step", "q", 1), ("odd", "d", math.nan)),
        (("flag", "b", True), ("text", "s", "x"), ("none", "d", math.nan)),
    ]
    records = [Rec(at + 1, at + 1, 10 * at, NOW_NS + at * SECOND, each) for at, each in enumerate(values)]
    maker.segment({(1, 1, 0): records})
    maker.told(1, 1, 4, 4)
    maker.save()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    base = tmp_path_factory.mktemp("extremes")
    sample_runs(base / "runs")
    own_run(base / "runs")
    with made_store(base / "data") as store:
        take_in(store, base / "runs")
        with serving(backing(store)) as url:
            yield [base / "runs", url]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOGCLIENT_TOKEN", "reads")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def finite(run: Any, key: str) -> list[Any]:
    """The finite numbers of a series, as it is read."""
    return [
        value for value in run.series(key).value.tolist() if not isinstance(value, str) and is_finite(value)
    ]


def is_finite(value: Any) -> bool:
    return isinstance(value, int) or math.isfinite(value)


@pytest.mark.first_is_quick
@pytest.mark.parametrize("run", [run for run in RUNS if run != "own"])
def test_extremes_are_those_of_the_series(sources: list[Any], run: str) -> None:
    """Of the newest attempt where attempts overlap, without NaN and infinities, from the folder and the server."""
    for source in sources:
        found = logclient.read(source)[run]
        extremes = found.extremes
        assert [*extremes] == found.keys()
        for key, each in extremes.items():
            values = finite(found, key)
            expected = (min(values), max(values)) if values else (None, None)
            assert (each.min, each.max) == expected, key


def test_what_the_program_stored_itself_wins(sources: list[Any]) -> None:
    for source in sources:
        extremes = logclient.read(source)["own"].extremes
        assert extremes["loss"] == (2.0, -5.0, 2.0)
        assert extremes["acc"] == (0.75, 0.25, 0.99)
        assert extremes["step"] == (7, 1, 3)
        assert math.isnan(extremes["odd"].last) and extremes["odd"][1:] == (2.0, 2.0)
        assert extremes["text"] == ("x", None, None) and extremes["flag"] == (True, True, True)
        assert math.isnan(extremes["none"].last) and extremes["none"][1:] == (None, None)


def test_show_has_them(sources: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """For people and as JSON; of a large run behind a server, too, whose records are not read."""
    for small in (100_000, 0):
        monkeypatch.setattr(contents, "SMALL_RECORDS", small)
        for source in (("--dir", str(sources[0])), ("--server", sources[1])):
            done = CliRunner().invoke(cli, ("show", "own", "--json", *source))
            keys = json.loads(done.output)["keys"]
            assert (keys["loss"]["last"], keys["loss"]["min"], keys["loss"]["max"]) == (2.0, -5.0, 2.0)
            assert (keys["acc"]["min"], keys["acc"]["max"]) == (0.25, 0.99)
            assert (keys["text"]["min"], keys["none"]["max"]) == (None, None)
            lines = CliRunner().invoke(cli, ("show", "own", *source)).output.splitlines()
            (head,) = (line.split() for line in lines if "POINTS" in line)
            assert head == ["KEY", "LAST", "MIN", "MAX", "STEP", "POINTS"]
            (row,) = (
                line.split() for line in lines if line.split()[:1] == ["acc"] and len(line.split()) == 6
            )
            assert row == ["acc", "0.75", "0.25", "0.99", "20", "3"]


def test_extremes_of_a_run_that_was_resumed_twice(tmp_path: Path) -> None:
    """A spike that a later attempt logged again is gone; one before its steps stays."""
    maker = NodeMaker(tmp_path, "again")
    for number in (1, 2, 3):
        end = {"time": NOW_NS + (number * 100 + 50) * SECOND, "alive": False, "exit_code": 1}
        maker.process(number, created_ns=NOW_NS + number * 100 * SECOND, end=end)
    spans = {1: range(50), 2: range(30, 60), 3: range(40, 70)}
    spikes = {1: {5: 100.0, 35: -1000.0}, 2: {45: 5000.0, 32: 77.0}, 3: {}}
    maker.segment(
        {
            (number, number, 0): [
                rec(
                    at + 1,
                    step=step,
                    time=NOW_NS + (number * 100 + at + 1) * SECOND // 1,
                    loss=spikes[number].get(step, float(number)),
                )
                for at, step in enumerate(steps)
            ]
            for number, steps in spans.items()
        }
    )
    for number, steps in spans.items():
        maker.told(number, number, len(steps), len(steps))
    maker.save()
    run = logclient.read(tmp_path)["again"]
    assert run.about["attempts"] == 3
    values = run.series("loss").value
    assert run.extremes["loss"] == (3.0, values.min(), values.max()) == (3.0, 1.0, 100.0)

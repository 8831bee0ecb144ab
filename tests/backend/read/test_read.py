"""`logclient.read`: what a user gets, the same from a folder and from a server."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import logclient
from logclient_backend.collector.store.embedded.rows import floats_of
from logclient_backend.read.reduce import reals, reduce
from tests.backend.runs.build import NodeMaker, rec
from tests.served import backing, made_store, sample_runs, serving, take_in

RUNS = ["plain", "mixed", "twice", "a/../b%2e?&=+#"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    base = tmp_path_factory.mktemp("read")
    sample_runs(base / "runs")
    with made_store(base / "data") as store:
        take_in(store, base / "runs")
        with serving(backing(store)) as url:
            yield [base / "runs", url]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOGCLIENT_TOKEN", "reads")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def columns(series: Any) -> dict[str, list[Any]]:
    names = ("step", "value", "time", "rank", "attempt")
    found = {name: [repr(value) for value in getattr(series, name).tolist()] for name in names}
    found["stream"] = [series.streams[at] for at in series.stream]
    return found


@pytest.mark.first_is_quick
@pytest.mark.parametrize("run", RUNS)
def test_every_series_is_the_same_from_both(sources: list[Any], run: str) -> None:
    """Steps, values bit by bit, times, ranks, streams; of the newest attempt, and of all."""
    here, there = (logclient.read(source)[run] for source in sources)
    keys = here.keys()
    assert keys == there.keys()
    for key in keys:
        for attempts in ("newest", "all"):
            mine, theirs = here.series(key, attempts=attempts), there.series(key, attempts=attempts)
            assert columns(mine) == columns(theirs)
            assert mine.value.dtype == theirs.value.dtype
            if all(isinstance(value, str) for value in mine.value):
                for each in (here, there):
                    with pytest.raises(logclient.BadArgument, match="holds texts, which have no buckets"):
                        each.series(key, buckets=5, attempts=attempts)
                continue
            reduced = [each.series(key, buckets=5, attempts=attempts) for each in (here, there)]
            assert reduced[0].leaves_out_texts == any(isinstance(value, str) for value in mine.value)
            assert repr(reduced[0]) == repr(reduced[1])
            assert repr(reduced[0].to_pandas().to_dict()) == repr(reduced[1].to_pandas().to_dict())


def test_what_a_run_says_of_itself(sources: list[Any]) -> None:
    """Config and summary as they were given: NaN is a NaN, also from a server."""
    for source in sources:
        run = logclient.read(source)["mixed"]
        assert math.isnan(run.config["odd"])
        assert run.config["deep"] == {"a::b": [1, {"x": math.inf}]}
        assert run.summary == {"best": -math.inf, "big": 2**70}
        assert (run.id, run.name, run.project) == ("mixed", "every type", "digits")
        assert run.tags == ("base", "line")
        assert run.created is not None and run.created.year == 2023
        assert run.about["notes"] == "n"
        assert run.about["counts"]["stored"] == 132
        assert str(run.created.tzinfo) == "UTC"


def test_runs_are_a_list_and_found_by_name(sources: list[Any]) -> None:
    """By position, id, name, a part of an id; what is not there is told, with what there is."""
    for source in sources:
        runs = logclient.read(source)
        assert len(runs) == 4
        assert {run.id for run in runs} == set(RUNS)
        assert runs["mlp"].id == runs["plai"].id == "plain"
        assert runs[-1].id == list(runs)[-1].id
        assert [run.id for run in runs[:2]] == [run.id for run in list(runs)[:2]]
        with pytest.raises(logclient.NoRun, match="there are: "):
            runs["nothing"]
        with pytest.raises(logclient.NoRun, match="part of 3 ids"):
            runs["i"]


def test_the_newest_attempt_counts(sources: list[Any]) -> None:
    """Of the older one what lies within the steps of the newer is left out, and given on request."""
    for source in sources:
        run = logclient.read(source)["twice"]
        newest = run.series("loss")
        assert newest.step.tolist() == list(range(1, 121))
        assert newest.value.tolist() == [float(n) for n in range(1, 61)] + [1000.0 + n for n in range(1, 61)]
        assert newest.attempt.tolist() == [1] * 60 + [2] * 60
        every = run.series("loss", attempts="all")
        assert len(every) == 150
        assert every.step.tolist() == sorted(every.step.tolist())
        assert run.about["attempts"] == 2


def test_values_have_the_type_that_holds_them(sources: list[Any]) -> None:
    """float64, bool, objects for texts and for ints beyond 64 bits or beyond what a float holds beside floats."""
    for source in sources:
        run = logclient.read(source)["mixed"]
        assert logclient.read(source)["plain"].series("loss").value.dtype == np.float64
        assert run.series("f").value.dtype == np.bool_
        assert run.series("t").value.dtype == object
        assert set(run.series("big").value.tolist()) == {2**70}
        mixed = run.series("x")
        assert mixed.value.dtype == object  # an int of 2**60 among floats
        assert 2**60 in mixed.value.tolist()
        assert [math.copysign(1, value) for value in run.series("../etc").value] == [-1.0] * len(
            run.series("../etc")
        )
        assert set(run.series("x").rank.tolist()) == {-1, 0, 3, 7}


def test_pandas(sources: list[Any]) -> None:
    """A row per point, or a column per key over the union of steps; a step that came twice shows its newest value."""
    for source in sources:
        run = logclient.read(source)["twice"]
        assert run.series("loss").to_pandas().shape == (120, 6)
        frame = run.frame(["loss"])
        assert frame.index.name == "step"
        assert frame.loc[61, "loss"] == 1001.0
        assert run.series("loss", attempts="all").to_pandas()["stream"].nunique() == 2
        both = logclient.read(source)["mixed"].series(["f", "t"])
        assert both["f"].dtype == object
        assert both["f"][~both.has("f")].tolist() == [None] * int((~both.has("f")).sum())


def test_what_makes_no_sense_says_so(sources: list[Any], tmp_path: Path) -> None:
    """A key that is not there, and the like."""
    run = logclient.read(sources[0])["plain"]
    for wrong in (
        lambda: run.series("nothing"),
        lambda: run.series(["loss", "nothing"]),
        lambda: run.series("loss", buckets=0),
        lambda: run.series("loss", attempts="best"),  # type: ignore[call-overload]
        lambda: run.series(["loss"], buckets=5),  # type: ignore[call-overload]
        lambda: logclient.read(sources[0], token="x"),
        lambda: logclient.read("ftp://host"),
        lambda: logclient.read("http://user:secret@host"),
    ):
        with pytest.raises((logclient.BadArgument, logclient.NoRun)) as caught:
            wrong()
        assert "secret" not in str(caught.value)
    with pytest.raises(logclient.BadArgument, match="http:// or https://"):
        logclient.read("ftp://host")
    with pytest.raises(logclient.NoRun):
        logclient.read(tmp_path / "nowhere")
    with pytest.raises(logclient.LogclientError, match="token"):
        logclient.read(sources[1], token="wrong")


def test_one_run_s_own_folder_can_be_read(sources: list[Any]) -> None:
    """A copied folder of one run is that run."""
    runs = logclient.read(sources[0] / "twice")
    assert [run.id for run in runs] == ["twice"]
    assert len(runs[0].series("loss")) == 120


def test_buckets_lose_nothing_that_sticks_out() -> None:
    """A spike, a NaN, a stray step, all NaN; widths are powers of two."""
    step = np.arange(10_000, dtype=np.int64)
    value = np.zeros(10_000)
    value[7_001], value[3_002] = 1e9, math.nan
    found = reduce(step, value, 100)
    assert (found.max.max(), int(found.nans.sum()), int(found.count.sum())) == (1e9, 1, 10_000)
    assert found.width == 128
    assert (found.start % 128 == 0).all()
    stray = reduce(np.append(step, 10_000_000), np.append(value, 5.0), 100)
    assert len(stray.start) > 25  # the stray step does not squeeze all others into one bucket
    assert stray.max[-1] == 5.0
    odd = reduce(np.array([-5, -5, 3], np.int64), np.full(3, math.nan), 10)
    assert np.isnan(odd.min).all()
    assert odd.nans.tolist() == odd.count.tolist()
    assert len(reduce(np.empty(0, np.int64), np.empty(0), 5).start) == 0


@pytest.mark.slow
@pytest.mark.timeout(60)  # at the default pace: a reduction that never ended was the fault
@given(
    steps=st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3), min_size=1, max_size=20),
    most=st.integers(1, 4),
)
@example(steps=[-1, 1], most=1)
@example(steps=[-(1 << 63), (1 << 63) - 1], most=1)
def test_never_more_buckets_than_were_asked_for(steps: list[int], most: int) -> None:
    """Also where steps lie on both sides of 0; each step lies in the bucket that counts it."""
    step = np.array(sorted(steps), np.int64)
    found = reduce(step, np.zeros(len(step)), most)
    assert 1 <= len(found.start) <= most
    starts = [int(start) for start in found.start]
    inside = [sum(start <= each < start + found.width for each in steps) for start in starts]
    assert inside == found.count.tolist()
    assert found.width.bit_count() == 1


def test_infinities_are_counted_and_hide_no_extreme() -> None:
    """Of either sign, beside NaN, and where a bucket holds nothing else."""
    value = np.array([1.0, math.inf, -2.0, -math.inf, -math.inf, math.nan, math.inf, math.nan])
    found = reduce(np.array([0, 0, 1, 1, 2, 2, 3, 3], np.int64), value, 4)
    assert [found.max[0], found.min[0], found.max[1], found.min[1]] == [1.0, 1.0, -2.0, -2.0]
    assert np.isnan(found.min[2:]).all()
    assert np.isnan(found.max[2:]).all()
    assert found.infs.tolist() == [1, 0, 0, 1]
    assert found.neg_infs.tolist() == [0, 1, 1, 0]
    assert found.nans.tolist() == [0, 0, 1, 1]
    assert found.count.tolist() == [2, 2, 2, 2]


@pytest.mark.slow
def test_a_question_about_a_key_reads_nothing_again_until_something_changes(tmp_path: Path) -> None:
    """Many keys: each costs a small part of what the first does, and what comes later is there."""
    maker = NodeMaker(tmp_path, "many")
    keys = [f"k{number}" for number in range(2_000)]
    for block in range(20):
        rows = [
            rec(10 * block + at + 1)._replace(values=tuple((key, "d", at / 3) for key in keys))
            for at in range(10)
        ]
        maker.segment({(1, 1, 0): rows})
    maker.process()
    maker.told(1, 1, 200, 200)
    maker.save()
    run = logclient.read(tmp_path)["many"]
    took = []
    for key in keys[:200]:
        begun = time.perf_counter()
        assert len(run.series(key)) == 200
        took.append(time.perf_counter() - begun)
    assert 10 * sorted(took[1:])[100] < took[0], "each key was read from the segments again"
    maker.segment({(1, 1, 0): [rec(201, k7=5.0)]})
    assert run.series("k7").value[-1] == 5.0
    assert len(run.series(["k7", "k8"]).step) == len({*run.series("k7").step, *run.series("k8").step})


def test_ints_beyond_a_float_are_infinite_as_the_store_has_them() -> None:
    """An int of any size can be logged; a chart of it is the same from both."""
    numbers = [10**400, -(10**400), 2**70, 5]
    cells = [number.to_bytes(180, "little", signed=True) for number in numbers]
    found = reals(np.array(numbers, object))
    assert found.tolist() == floats_of("i", cells).tolist() == [math.inf, -math.inf, float(2**70), 5.0]


def test_without_numpy_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    """numpy is not a dependency of the base install."""
    script = "import sys; sys.modules['numpy'] = None\nimport logclient\nlogclient.read('.')"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "BadArgument: logclient.read needs numpy: pip install numpy" in done.stderr

"""Many runs with `logclient.read`: chosen, as a table, one key of all, as a band; the same from folder and server."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import logclient
from logclient_backend.collector.web import many_runs
from logclient_backend.remote.server import Server
from tests.backend.runs.build import NOW_NS, SECOND, NodeMaker, Rec, rec
from tests.served import backing, made_store, sample_runs, serving, take_in

SEEDS = 4
ODD = {"a": {"b": 1}, "a.b": 2, "a/b": 3, "enc": ["x", {"y": 4}], "5": 6}  # R2-57


def seed(folder: Path, number: int) -> None:
    """A run of the group `seeds`; each is 10 steps shorter than the one before."""
    maker = NodeMaker(folder, f"seed-{number}")
    maker.created_ns = NOW_NS + number * SECOND
    config = {"lr": 0.1 * (number % 2 + 1), "seed": number, "opt": {"name": "adam", "betas": [0.9, 0.99]}}
    if number == 3:
        config["only"] = 2**60 + 1
    about = {"group": "seeds", "tags": ["base", f"s{number}"], "name": f"run {number}"}
    documents = {"config": config, "summary": {"acc": 0.5 + number / 10}, "about": about}
    state = {
        "state": (NOW_NS + 100 * SECOND, {"state": "failed" if number == 0 else "finished", "by": "finish"})
    }
    end = {"time": NOW_NS + 100 * SECOND, "alive": False, "exit_code": 0}
    maker.process(1, documents={**documents, **state}, end=end)
    length = 50 - 10 * number
    values = [100.0 if (number, at) == (1, 7) else float(number) for at in range(length)]
    maker.segment({(1, 1, 0): [rec(at + 1, step=at, loss=value) for at, value in enumerate(values)]})
    maker.told(1, 1, length, length)
    maker.save()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    base = tmp_path_factory.mktemp("many")
    sample_runs(base / "runs")
    for number in range(SEEDS):
        seed(base / "runs", number)
    maker = NodeMaker(base / "runs", "odd")
    maker.process(documents={"config": ODD})
    maker.segment({(1, 1, 0): [Rec(1, 1, 5, NOW_NS, (("loss", "s", "text"),))]})
    maker.save()
    with made_store(base / "data") as store:
        take_in(store, base / "runs")
        with serving(backing(store)) as url:
            yield [base / "runs", url]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOGCLIENT_TOKEN", "reads")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the questions that are put to the server."""
    paths: list[str] = []
    data = Server._data

    def noted(self: Server, method: str, path: str, parameters: dict[str, Any]) -> bytes:
        paths.append(path)
        return data(self, method, path, parameters)

    monkeypatch.setattr(Server, "_data", noted)
    return paths


def ids(runs: Any) -> list[str]:
    return sorted(run.id for run in runs)


def test_runs_are_chosen(sources: list[Any]) -> None:
    """By field, tag, config, summary; as values, sets, functions and texts; all conditions hold together."""
    for source in sources:
        runs = logclient.read(source)
        assert ids(runs.where(group="seeds")) == ["seed-0", "seed-1", "seed-2", "seed-3"]
        assert ids(runs.where(group="seeds", state="finished")) == ["seed-1", "seed-2", "seed-3"]
        assert ids(runs.where(name=["run 1", "mlp"])) == ["plain", "seed-1"]
        assert ids(runs.where(tags="base")) == ["mixed", "seed-0", "seed-1", "seed-2", "seed-3"]
        assert ids(runs.where(tags=["base", "s2"])) == ["seed-2"]
        assert ids(runs.where(config={"lr": 0.2})) == ["seed-1", "seed-3"]
        assert ids(runs.where(config={"seed": {1, 2}})) == ["seed-1", "seed-2"]
        assert ids(runs.where(config={"seed": lambda seed: seed > 1})) == ["seed-2", "seed-3"]
        assert ids(runs.where(config={"opt": {"name": "adam"}}, summary={"acc": 0.5})) == ["seed-0"]
        assert ids(
            runs.where(config={"opt.betas": [0.9, 0.99], "opt.betas.1": 0.99, "opt::name": "adam"})
        ) == [f"seed-{number}" for number in range(SEEDS)]
        assert ids(runs.where("config.lr < 0.2", "summary.acc >= 0.6")) == ["seed-2"]
        assert ids(runs.where("config.seed != 1", group="seeds")) == ["seed-0", "seed-2", "seed-3"]
        assert ids(runs.where("tags contains s3")) == ["seed-3"] == ids(runs.where("name contains 'n 3'"))
        assert ids(runs.where(f"config.only = {2**60 + 1}")) == ["seed-3"]
        assert ids(runs.where(f"config.only = {2**60}")) == []
        assert ids(runs.where("created < 2000-01-01")) == []
        assert len(runs.where("created >= 2023-11-14T22:00", "state = finished")) == 6
        assert ids(runs.where("config.seed = '1'")) == ids(runs.where("config.seed = true")) == []
        assert len(runs.where()) == len(runs) and runs.where(group="seeds")[-1].id == "seed-3"


def test_each_odd_name_is_found_under_the_path_it_was_given(sources: list[Any]) -> None:
    """R2-57: three different keys stay three, to filter, to group and in the table."""
    names = {"a::b": 1, "a.b": 2, "a/b": 3, "enc::0": "x", "enc::1::y": 4, "5": 6}
    for source in sources:
        runs = logclient.read(source)
        (row,) = runs.where(config={"a/b": 3}).rows()
        assert {name.partition(".")[2]: row[name] for name in row if name.startswith("config.")} == names
        for name, value in names.items():
            assert ids(runs.where(config={name: value})) == ["odd"]
            assert ids(runs.where(f"config.{name} = {value}")) == ["odd"]
            assert ids(runs.where(config={name: "other"})) == []
            assert ids(runs.by(f"config.{name}")[value]) == ["odd"]
        assert ids(runs.where(config={"a": {"b": 1}, "enc.1.y": 4})) == ["odd"]


def test_what_is_no_condition_says_so(sources: list[Any]) -> None:
    """With a sentence that shows how one is written."""
    runs = logclient.read(sources[0])
    for wrong in (
        lambda: runs.where("lr < 0.1"),
        lambda: runs.where("config.lr"),
        lambda: runs.where("created < yesterday"),
        lambda: runs.where(lambda run: True),  # type: ignore[arg-type]
        lambda: runs.where(project=3),  # type: ignore[arg-type]
        lambda: runs.where(tags={"a": 1}),
        lambda: runs.where(config="lr"),  # type: ignore[arg-type]
        lambda: runs.by("loss"),
        lambda: runs.band("loss", quantiles=[2]),
        lambda: runs.series("loss", first_step=2, last_step=1),
        lambda: runs.series("loss", first_step=1.5),  # type: ignore[arg-type]
        lambda: runs.series(["loss"]),  # type: ignore[arg-type]
    ):
        with pytest.raises(logclient.BadArgument):
            wrong()


def test_names_are_asked_for_as_in_a_dict(sources: list[Any]) -> None:
    """`in` is true where `runs[...]` gives a run; NoRun is a LookupError, a part of the list is a list of runs."""
    for source in sources:
        runs = logclient.read(source)
        assert "mlp" in runs and "plai" in runs and "run 2" in runs and runs[0] in runs
        assert "nothing" not in runs and "seed" not in runs and 3 not in runs  # of "seed" there are several
        with pytest.raises(LookupError):
            runs["nothing"]
        assert ids(runs[-2:].where(group="seeds")) == ids(run for run in runs[-2:] if run.group == "seeds")


def test_one_table_of_all_runs(sources: list[Any]) -> None:
    """Config, summary, and last, lowest and highest value of keys; no number is rounded; the same from both."""
    frames = []
    for source in sources:
        runs = logclient.read(source)
        frame = runs.table(["loss", "none"])
        frames.append(frame.sort_index())
        assert frame.index.name == "id" and set(frame.index) == {run.id for run in runs}
        assert list(frame.columns[:8]) == [
            "name",
            "project",
            "group",
            "tags",
            "state",
            "created",
            "active_s",
            "attempts",
        ]
        assert frame.loc["seed-1", "max.loss"] == 100.0 and frame.loc["seed-1", "last.loss"] == 1.0
        assert frame.loc["seed-1", "config.opt::name"] == "adam" and frame.loc["seed-2", "summary.acc"] == 0.7
        assert frame.loc["seed-3", "config.only"] == 2**60 + 1 and frame.loc["mixed", "summary.big"] == 2**70
        assert math.isnan(frame.loc["mixed", "config.odd"]) and frame.loc["mixed", "config.text"] == "nan"
        assert frame["config.lr"].dtype == np.float64 and frame["created"].dt.year.eq(2023).all()
        assert frame.loc["odd", "last.loss"] == "text" and math.isnan(frame.loc["odd", "min.loss"])
        assert "last.none" not in frame.columns
        (row,) = runs.where(name="run 3").rows("loss")
        assert row["config.seed"] == 3 and row["max.loss"] == 3.0 and row["tags"] == ["base", "s3"]
        assert (
            runs.where(group="no such").table().shape == (0, 0) or runs.where(group="no such").table().empty
        )
    assert frames[0].drop(columns="active_s").equals(frames[1][frames[0].columns].drop(columns="active_s"))


def test_a_table_of_a_server_takes_few_questions(sources: list[Any], asked: list[str]) -> None:
    """Not one request per run: neither for configs, nor for extremes, nor for series."""
    runs = logclient.read(sources[1])
    assert len(runs) == 9
    del asked[:]
    runs.rows(["loss", "x"])
    assert asked == ["/configs", "/extremes"]
    del asked[:]
    assert len(runs.where("config.seed >= 0")) == SEEDS
    assert asked == []  # they are kept
    runs.series("loss")
    assert asked == ["/series"]
    runs = logclient.read(sources[1])
    del asked[:]
    assert [run.config.get("seed") for run in runs if run.config.get("seed") is not None] == [0, 1, 2, 3]
    assert len(asked) < 5 and set(asked) == {"/configs"}
    del asked[:]
    assert len(runs["seed-0"].series("loss", first_step=3, last_step=9)) == 7
    assert asked == ["/run/series"]


def test_an_older_collector_is_asked_run_by_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    """One that has no questions about many runs: the same answers, in more requests."""
    monkeypatch.setattr(many_runs.router, "routes", [])
    for number in range(2):
        seed(tmp_path / "runs", number)
    with made_store(tmp_path / "data") as store:
        take_in(store, tmp_path / "runs")
        with serving(backing(store)) as url:
            answers = []
            for source in (tmp_path / "runs", url):
                runs = logclient.read(source)
                rows = [{**row, "active_s": 0} for row in runs.rows("loss")]
                band = runs.band("loss", first_step=5, last_step=8)
                found = runs.where("config.seed > 0").series("loss", first_step=6, last_step=7)
                answers.append((rows, band.mean.tolist(), found["seed-1"].value.tolist()))
    assert answers[0] == answers[1]
    assert asked.count("/configs") == 1 and asked.count("/run/documents") == 2


@pytest.mark.first_is_quick
@pytest.mark.parametrize("key", ["loss", "x", "t", "f", "big", "../etc"])
def test_one_key_of_many_runs(sources: list[Any], key: str) -> None:
    """Each run's series is what the run itself gives, also of a range of steps, of the newest attempt and of all."""
    for source in sources:
        runs = logclient.read(source)
        steps: dict[str, Any]
        for steps in ({}, {"first_step": 20, "last_step": 77}, {"last_step": -100}):
            attempts: Any
            for attempts in ("newest", "all"):
                found = runs.series(key, attempts=attempts, **steps)
                assert [run.id for run in found.runs] == list(found)
                assert ids([*found.runs, *found.without]) == ids(runs)
                for id, series in found.items():
                    whole = logclient.read(sources[0])[id].series(key, attempts=attempts)
                    inside = (whole.step >= steps.get("first_step", -(10**9))) & (
                        whole.step <= steps.get("last_step", 10**9)
                    )
                    for name in ("step", "value", "time", "rank", "attempt"):
                        mine, theirs = getattr(series, name), getattr(whole, name)[inside]
                        assert list(map(repr, mine.tolist())) == list(map(repr, theirs.tolist())), (id, name)
                    one: Any = runs[id].series(key, attempts=attempts, **steps)
                    assert repr(one.value.tolist()) == repr(series.value.tolist())


def test_one_key_as_a_frame(sources: list[Any]) -> None:
    """A row per point, or a column per run over the union of steps; buckets of a range of steps."""
    for source in sources:
        runs = logclient.read(source).where(group="seeds")
        long = runs.frame("loss")
        assert long.shape == (140, 6) and list(long.columns[:3]) == ["run", "step", "value"]
        assert long.groupby("run", observed=True)["value"].max().to_dict()["seed-1"] == 100.0
        wide = runs.frame("loss", wide=True, first_step=5, last_step=24)
        assert list(wide.columns) == ["seed-0", "seed-1", "seed-2", "seed-3"] and len(wide) == 20
        assert wide["seed-3"].notna().sum() == 15
        assert runs.frame("none").empty
        few = runs["seed-1"].series("loss", buckets=4, first_step=0, last_step=15)
        assert (few.points, few.width, few.max.max()) == (16, 4, 100.0)
        assert runs["seed-1"].frame(["loss"], first_step=8).index[0] == 8


def test_band_over_a_group(sources: list[Any]) -> None:
    """Exact, step by step: mean and quantiles of the runs that are there, the range, and how many count."""
    for source in sources:
        runs = logclient.read(source)
        band = runs.where(group="seeds").band("loss", quantiles=[0.5])
        assert band.members == ("seed-0", "seed-1", "seed-2", "seed-3")
        assert band.step.tolist() == list(range(50))
        assert band.runs.tolist() == [4] * 20 + [3] * 10 + [2] * 10 + [1] * 10
        assert band.mean[0] == 1.5 and band.mean[7] == 105 / 4 and band.mean[49] == 0.0
        assert (band.max[7], band.min[7], band.quantiles[0.5][7]) == (100.0, 0.0, 2.5)
        frame = band.to_pandas()
        assert list(frame.columns) == ["runs", "finite", "mean", "min", "max", "q0.5"]
        part = runs.where(group="seeds").band("loss", first_step=7, last_step=8)
        assert part.mean.tolist() == [105 / 4, 1.5]
        assert len(runs.where(name="odd").band("loss")) == 0  # texts are no points
        groups = runs.by("group")
        assert ids(groups["seeds"]) == ids(runs.where(group="seeds")) and set(groups) == {"", "g", "seeds"}


def test_without_pandas_a_sentence_says_what_to_install(sources: list[Any]) -> None:
    """Rows are dicts and need none."""
    script = (
        "import sys; sys.modules['pandas'] = None\nimport logclient\n"
        f"runs = logclient.read({str(sources[0])!r})\nassert runs.rows('loss')\nruns.table()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "BadArgument: this needs pandas: pip install pandas" in done.stderr

"""Searches: a run for each trial, in the search's group, whoever makes the callbacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.integrations import guard, searches
from logclient.run import why_closed
from tests.integrations.example import Callback
from tests.lanes import ROOT, opened, wait_until

optuna = pytest.importorskip("optuna", reason="needs Optuna")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks


@pytest.fixture(autouse=True)
def _silent() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def search(objective: Any, trials: int = 3, **settings: Any) -> Any:
    """A study over one number, which is given to the objective with the trial."""
    study = optuna.create_study(study_name="the search", **settings)
    study.optimize(lambda trial: objective(trial, trial.suggest_float("lr", 0, 1)), n_trials=trials)
    return study


def train(callback: Callback, lr: float) -> Any:
    """What a framework does, as long as it takes; returns the run."""
    callback.begin()
    callback.step(1)
    run: Any = callback._tie.run
    guard.add_fit(run, {"lr": lr})
    return run


def stored(run_dir: Path) -> list[Any]:
    """All runs on disk, in the order of their trials; none is open."""
    wait_until(lambda: all(run.state == "finished" for run in logclient.read(run_dir)), "the ends", 60)
    return sorted(logclient.read(run_dir), key=lambda run: run.config.get("trial", {}).get("number", 99))


@pytest.mark.first_is_quick
@pytest.mark.parametrize("name", [None, "mlp"])
def test_one_callback_for_all_trials(run_dir: Path, name: str | None) -> None:
    """Each trial has a run, with its parameters, in the search's group; the one before is finished."""
    callback, runs = Callback(project="search", quiet=True, name=name), []

    def objective(trial: Any, lr: float) -> float:
        run = train(callback, lr)
        assert train(callback, lr) is run
        runs.append(run)
        assert [bool(each._session.closed) for each in runs] == [True] * trial.number + [False]
        return lr

    study = search(objective)
    train(callback, 0.5)  # the best one once more, in no trial
    assert logclient.finish(60)
    *read, last = stored(run_dir)
    assert len({run.id for run in (*read, last)}) == 4
    for run, trial in zip(read, study.trials, strict=True):
        described = {"number": trial.number, "name": str(trial.number), "params": trial.params}
        assert run.config["trial"] == described and run.about["group"] == "the search"
        assert [fit["trial"] for fit in run.config["fits"]] == [trial.number] * 2
        assert run.name == (f"mlp-{trial.number}" if name else run.id)
    assert "trial" not in last.config and "trial" not in last.config["fits"][0] and not last.about["group"]


def test_a_callback_for_each_trial(run_dir: Path) -> None:
    """Its name and group are as it says; what is drawn after its run began is in the config, too."""

    def objective(trial: Any) -> float:
        callback = Callback(project="search", quiet=True, name=f"try {trial.number}", group="mine")
        callback.begin()
        lr = float(trial.suggest_float("lr", 0, 1))
        train(callback, lr)
        callback._tie.run.finish(60)  # type: ignore[union-attr]
        return lr

    study = optuna.create_study()
    study.optimize(objective, n_trials=2)
    read = stored(run_dir)
    assert [run.name for run in read] == ["try 0", "try 1"]
    assert [run.config["trial"]["params"] for run in read] == [trial.params for trial in study.trials]
    assert {run.about["group"] for run in read} == {"mine"}


def test_trials_side_by_side(run_dir: Path) -> None:
    """In threads of one process, with a callback for each."""

    def objective(trial: Any, lr: float) -> float:
        run = train(Callback(project="search", quiet=True), lr)
        together.wait(60)
        assert run.config["trial"]["number"] == trial.number
        run.finish(60)
        return lr

    together = threading.Barrier(2)
    study = optuna.create_study(study_name="the search")
    study.optimize(lambda trial: objective(trial, trial.suggest_float("lr", 0, 1)), n_trials=2, n_jobs=2)
    read = stored(run_dir)
    assert [run.config["trial"]["params"] for run in read] == [trial.params for trial in study.trials]


def test_a_run_of_the_users_takes_all_trials(run_dir: Path) -> None:
    """So does one that an id names; each training says which trial it is."""
    for given in ({}, {"id": "this-one"}):
        with opened("search", **given) as (run, _):
            callback = Callback(**given)
            search(lambda trial, lr, callback=callback, run=run: 0.0 * (train(callback, lr) is run))
            assert [fit["trial"] for fit in run.config["fits"]] == [0, 1, 2] and "trial" not in run.config


def test_a_trial_is_none_of_another_thread(run_dir: Path) -> None:
    """A thread that logs by a callback, beside the search, goes on in the trial's run."""
    callback = Callback(project="search", quiet=True, finish_timeout_s=0.05)

    def objective(trial: Any, lr: float) -> float:
        run = train(callback, lr)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(callback._here).result() is run
        assert not why_closed(run)
        return lr

    search(objective)
    logclient.finish()


def test_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside one; in a function that has the same name; where the library fails."""
    assert searches.current() is None

    def _run_trial(trial: object) -> object:
        return searches.current()

    assert _run_trial(None) is None
    theirs: dict[str, Any] = {"__name__": "optuna.study._optimize", "call": searches.current}
    exec("def _run_trial(trial):\n    return call()", theirs)
    assert theirs["_run_trial"](object()) is None


RAY = """
import ray
from ray import tune
from tests.integrations.example import Callback
from tests.integrations.test_searches import train

def objective(config):
    made_here = config["callback"] is None
    train(Callback(project="search", quiet=True) if made_here else config["callback"], config["lr"])
    logclient.finish(60)
    tune.report({"loss": config["lr"]})

if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    callback = None if sys.argv[1] == "in trials" else Callback(project="search", quiet=True, name="mlp")
    space = {"lr": tune.grid_search([0.1, 0.2]), "callback": callback}
    run_config = tune.RunConfig(name="the search", storage_path=os.getcwd())
    results = tune.Tuner(objective, param_space=space, run_config=run_config).fit()
    print(json.dumps([os.getpid(), len(results.errors)]))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("made", ["in trials", pytest.param("before", marks=pytest.mark.long)])
def test_ray_tune(run_dir: Path, tmp_path: Path, made: str) -> None:
    """Processes that are no children of the program's: made there or handed over, callbacks begin a run for each."""
    pytest.importorskip("ray.tune", reason="needs Ray Tune")
    script = tmp_path / "search.py"
    script.write_text(
        f"import json, os, sys\nsys.path[:0] = {[str(ROOT), str(ROOT / 'backend')]!r}\nimport logclient\n{RAY}"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'backend'}", "RAY_DEDUP_LOGS": "0"}
    del environment["LOGCLIENT_DIR"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), made],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])[1] == 0, done.stdout
    read = stored(tmp_path / "logclient-runs")
    assert [run.config["trial"]["number"] for run in read] == [0, 1]
    assert [run.config["fits"][0]["lr"] for run in read] == [0.1, 0.2]
    assert {run.about["group"] for run in read} == {"the search"}
    assert all(run.name.startswith("mlp-") == (made == "before") for run in read)

"""The guard that all integrations share: what it swallows and lets through, what a copy is, which run it logs to."""

from __future__ import annotations

import copy
import ctypes
import inspect
import json
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import BadArgument, NullRun, Run
from logclient.integrations import guard
from tests.integrations.example import Callback, Stop
from tests.interrupts import interrupted
from tests.lanes import Script, by_pid, opened


@pytest.fixture
def begun(run_dir: Path) -> Iterator[tuple[Callback, Any, Any]]:
    """A callback in training, its run, and the lanes."""
    with opened() as (run, file):
        made = Callback()
        made.begin()
        yield made, run, file


def test_failures_are_swallowed_counted_and_said_once_per_hook(begun: tuple[Callback, Any, Any]) -> None:
    """A failing hook answers None; each failure counts as a refused record; one notice names each hook."""
    callback, run, file = begun
    for _ in range(3):
        assert callback.broken() is None
    assert callback.step(1, lambda: dict[str, int]()["missing"]) is None
    assert callback.step(2) == 2
    status = run.status()
    assert status["refused"] == 4 and [record.step for record in file.read()] == [2]
    about = [line for line in status["notices"] if "failed" in line]
    assert len(about) == 2, status["notices"]
    assert "Callback.broken failed" in about[0] and "_nowhere" in about[0]
    assert "Callback.step failed" in about[1] and "KeyError" in about[1]


def test_a_hook_of_a_broken_callback(begun: tuple[Callback, Any, Any]) -> None:
    """Whatever of its state is missing or nonsense."""
    callback, run, _ = begun
    for state in ({}, {"_tie": None}, {"_tie": 5, "_off": object()}):
        callback.__dict__.clear()
        callback.__dict__.update(state)
        callback.begin()
        callback.step(1)
        callback.broken()
    assert run.status()["refused"] >= 7


def test_without_a_run_it_is_counted_and_said(run_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The count is there for the run that comes."""
    for _ in range(2):
        Callback().broken()
    assert logclient.status()["refused"] >= 2


@pytest.mark.parametrize("source", ["1 / 0", "assert False", "import nowhere_at_all", "missing_name"])
def test_every_failure_of_our_own_code_is_swallowed(begun: tuple[Callback, Any, Any], source: str) -> None:
    """Kinds that `log` itself never raises, in a frame of this package."""
    callback, run, _ = begun
    ours: dict[str, Any] = {"__name__": "logclient.integrations.example"}
    exec(f"def fail():\n    {source}", ours)
    assert callback.step(1, ours["fail"]) is None
    assert run.status()["refused"] == 1


def test_what_is_not_ours_passes(begun: tuple[Callback, Any, Any]) -> None:
    """Control exceptions, what ends a program, and our own answers to bad arguments."""
    callback, run, _ = begun

    def raises(error: BaseException) -> Any:
        def fail() -> None:
            raise error

        return fail

    for error in (Stop("epoch"), KeyboardInterrupt(), SystemExit(3), BadArgument("mode")):
        with pytest.raises(type(error)):
            callback.step(1, raises(error))
    assert run.status()["refused"] == 0


def test_what_a_signal_handler_raises_passes(begun: tuple[Callback, Any, Any]) -> None:
    """Also where it is of a kind that our own code raises."""
    callback, run, _ = begun

    def handler(number: int, frame: Any) -> None:
        raise AttributeError("the user's")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(AttributeError, match="the user's"):
            callback.step(1, lambda: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert run.status()["refused"] == 0


def test_what_is_injected_into_the_thread_passes(begun: tuple[Callback, Any, Any]) -> None:
    """As notebooks and time limits do it."""
    callback, run, _ = begun

    def inject() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(threading.get_ident()), ctypes.py_object(TimeoutError)
        )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:  # it comes up soon, in this frame
            pass

    with pytest.raises(TimeoutError):
        callback.step(1, inject)
    assert run.status()["refused"] == 0


def test_what_is_raised_between_any_two_instructions_passes(begun: tuple[Callback, Any, Any]) -> None:
    """The same record may be there or not; nothing else is counted."""
    callback, run, file = begun
    at = 1
    while interrupted(callback.step, at, at=at):
        at += 1
    assert at > 3 and run.status()["refused"] == 0
    assert callback.step(10**6) == 10**6 and file.read()[-1].step == 10**6


def test_strict_mode_raises(run_dir: Path) -> None:
    """LOGCLIENT_STRICT=1 hides nothing."""
    with opened(strict=True):
        callback = Callback()
        callback.begin()
        with pytest.raises(BadArgument, match=r"Callback\.broken failed"):
            callback.broken()


def test_a_hook_looks_like_the_method() -> None:
    """Frameworks look at names, signatures and docstrings."""
    assert list(inspect.signature(Callback.step).parameters) == ["self", "number", "what"]
    assert Callback.step.__name__ == "step" and Callback.step.__doc__ == "What the framework sees."


def test_switched_off_no_line_of_a_hook_runs(run_dir: Path) -> None:
    """mode="disabled"; and a later training with a real run is logged again."""
    logclient.init("p", mode="disabled")
    callback = Callback()
    callback.begin()
    ran: list[int] = []
    assert callback.step(1, lambda: ran.append(1)) is None and not ran
    with opened() as (_, file):
        callback.begin()
        callback.step(1, lambda: ran.append(1))
        assert ran and len(file.read()) == 1


def test_which_run(run_dir: Path) -> None:
    """The one given; else the current one; else one that is started, and a new one where that is over."""
    with opened(name="given") as (given, _), opened(name="current") as (current, _):
        for callback, run in ((Callback(given), given), (Callback(project="other"), current)):
            callback.begin()
            assert callback._tie.run is run and not callback._tie.started
    with opened() as (run, _):
        pass  # over
    callback = Callback(project="started", quiet=True, finish_timeout_s=0.05)
    callback.begin()
    tie: Any = callback._tie
    first = tie.run
    try:
        assert tie.started and first.project == "started" and logclient._run is first
        callback.begin()
        assert tie.run is first
    finally:
        first.finish()
    callback.begin()
    second = tie.run
    logclient.finish()
    assert type(second) is Run and second is not first


def test_a_new_callback_begins_a_new_run(run_dir: Path) -> None:
    """Whatever it names, where an earlier callback began the run that is open; its own trainings go on in one."""
    settings: dict[str, Any] = {"project": "loop", "quiet": True, "finish_timeout_s": 0.05}
    made = [Callback(**settings, name=name) for name in ("one", "two", "two", None)]
    runs: list[Any] = []
    try:
        for callback in made:
            callback.begin()
            runs.append(callback._tie.run)
            callback.begin()
            assert callback._tie.run is runs[-1] is logclient._run and callback._tie.started
        assert [run.name for run in runs[:3]] == ["one", "two", "two"] and len(set(runs)) == 4
        joins = Callback(**settings, id=runs[-1].id)  # names the run itself
        joins.begin()
        assert joins._tie.run is runs[-1] and not joins._tie.started
    finally:
        for run in runs:
            run.finish()


def test_a_script_that_lightning_runs_again_has_one_run(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child knows no run that the first process begins later, so there is none; a launcher's ranks find each."""
    settings: dict[str, Any] = {"quiet": True, "finish_timeout_s": 0.05}
    first, second, ranked = Callback(**settings), Callback(**settings), Callback(**settings)
    first.begin()
    monkeypatch.setenv("LOCAL_RANK", "0")
    second.begin()
    assert second._tie.run is first._tie.run and not second._tie.started
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "29500")):
        monkeypatch.setenv(name, value)
    ranked.begin()
    assert ranked._tie.run is not first._tie.run
    for callback in (first, ranked):
        callback._tie.run.finish()  # type: ignore[union-attr]


def test_two_callbacks_of_a_training_share_the_run_that_one_began(run_dir: Path) -> None:
    """As when a notebook's cell that adds one is run again; one that names another run begins that."""
    settings: dict[str, Any] = {"quiet": True, "finish_timeout_s": 0.05}
    first, second, other = Callback(**settings), Callback(**settings), Callback(**settings, name="other")
    training = object()
    try:
        for callback in (first, second, other, first, second):
            callback._open(training)
        assert first._tie.run is second._tie.run is not other._tie.run
        assert (first._off, second._off, other._off) == (False, True, False)
        second._open(object())  # alone
        assert not second._off and second._tie.run is first._tie.run
    finally:
        for callback in (first, other):
            callback._tie.run.finish()  # type: ignore[union-attr]


def test_one_of_two_in_a_training_logs_it(run_dir: Path) -> None:
    """The first; said once. Another training, another run or the first one's end: the other logs, too."""
    first, second, training = Callback(), Callback(), object()
    with opened() as (run, file):
        for _ in range(2):
            for callback in (first, second):
                callback._open(training)
                callback.step(1)
        assert len(file.read()) == 2
        assert [line for line in run.status()["notices"] if "twice" in line] == [
            "Callback is there twice in a training: one of them logs it"
        ]
        with opened() as (_, other):
            third = Callback(logclient._run)
            third._open(training)
            third.step(1)
            assert len(other.read()) == 1
        second._open(object())
        second.step(1)
        del first, callback
        second._open(training)
        second.step(1)
        assert len(file.read()) == 2


@pytest.mark.parametrize("disabled", [False, True])
def test_a_copy_that_logs_nothing_says_so_once(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, disabled: bool
) -> None:
    """As `sklearn.base.clone` makes one of a model's settings; what is switched off keeps quiet."""
    said: list[str] = []
    monkeypatch.setattr(guard, "_warned", set())
    monkeypatch.setattr(guard, "write_stderr", said.append)
    for made in (Callback(mode="disabled" if disabled else None), Callback()):
        for _ in range(2):
            copied = pickle.loads(pickle.dumps(copy.deepcopy(made)))
            copied.begin()
            assert copied.step(1) is None
        monkeypatch.setenv("LOGCLIENT_MODE", "disabled" if disabled else "online")
    assert len(said) == (0 if disabled else 1)
    assert disabled or said[0].startswith("Callback: a copy whose run is not open in a parent")


def test_bad_settings_are_said_at_once(run_dir: Path) -> None:
    """Where the training begins."""
    with pytest.raises(BadArgument):
        callback = Callback(mode="onlien")
        callback.begin()


def test_a_copy_is_inert(begun: tuple[Callback, Any, Any]) -> None:
    """Pickled or deep: settings, no run, lock or file; its hooks do nothing, in silence; a copy of a copy, too."""
    callback, run, file = begun
    copied = pickle.loads(pickle.dumps(callback))
    for made in (copied, copy.deepcopy(callback), pickle.loads(pickle.dumps(copied)), copy.deepcopy(copied)):
        assert made.every == 3 and set(vars(made)) == {"every", "_tie"}
        made.begin()
        assert made.step(1) is None
        assert type(made._tie.run) is NullRun
    assert not file.read() and run.status()["refused"] == 0
    assert callback.step(2) == 2


CHILD = """
import multiprocessing
from tests.integrations.example import Callback

class Witness:
    def __reduce__(self):
        from logclient.integrations import guard
        return bool, (guard.is_spawning(),)

def train(callback, is_spawning):
    assert type(callback) is Callback and callback.every == 3
    assert is_spawning is True or sys.argv[1] == "fork"
    callback.begin()
    callback.step(7)

if __name__ == "__main__":
    run = logclient.init("copies")
    callback = Callback()
    callback.begin()
    assert callback.step(6) == 6
    if sys.argv[2] == "over":
        run.finish()
    context = multiprocessing.get_context(sys.argv[1])
    child = context.Process(target=train, args=(callback, Witness()))
    child.start()
    child.join()
    print(json.dumps([os.getpid(), child.pid, child.exitcode]))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_copy_in_a_child_logs_to_the_live_run(run_dir: Path, tmp_path: Path, method: str) -> None:
    """It came pickled, or with the memory of its parent; an integration can tell that it is on its way to a child."""
    parent, child, code = Script(tmp_path, CHILD, method, "live").result(timeout_s=90)
    assert code == 0
    found = by_pid()
    assert [record.step for record in found[parent][1]] == [6]
    assert [record.step for record in found[child][1]] == [7]
    assert found[parent][0].path.parent == found[child][0].path.parent


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_copy_in_a_child_of_a_finished_run_is_inert(run_dir: Path, tmp_path: Path, method: str) -> None:
    """Nobody starts a run in its place; said once."""
    out, err = Script(tmp_path, CHILD, method, "over").process.communicate(timeout=90)
    parent, _, code = json.loads(out.splitlines()[-1])
    assert code == 0 and list(by_pid()) == [parent]
    assert len(err.splitlines()) == 1 and "logs nothing" in err


def test_is_spawning_is_false_elsewhere() -> None:
    """Of any other pickle."""
    assert not guard.is_spawning()


def test_copy_made_before_a_training_belongs_to_the_run_that_is_open(run_dir: Path) -> None:
    """What is handed to a launcher was mostly never used in the parent."""
    with opened() as (run, _):
        copied = pickle.loads(pickle.dumps(Callback()))
        assert copied._tie._copied == (os.getpid(), run._session.shm_dir.path)

"""`Run.progress`: what it leaves in the lane file, how it ends, and what it never does."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient_backend.runs.live import DeclaredPhase, LiveLanes
from tests.lanes import LaneFile, Script, opened


def phase_of(file: LaneFile) -> DeclaredPhase | None:
    """As `logclient why` reads it, from the file."""
    return LiveLanes(str(file.path.parent), file.path.name).phase(time.monotonic_ns())


def test_phase_ends_with_the_next_record(run_dir: Path) -> None:
    """Or with its time, whichever is first; the newest declaration counts."""
    with opened() as (run, file):
        assert phase_of(file) is None
        run.progress(600, "checkpoint")
        found = phase_of(file)
        assert found is not None and found.what == "checkpoint" and 590 < found.left_s <= 600
        run.log(1, {"a": 1.0})
        assert phase_of(file) is None
        run.progress(0.0)
        assert phase_of(file) is None
        run.progress(math.inf, "for ever")  # a day at most
        found = phase_of(file)
        assert found is not None and found.left_s <= 86_400
        run.progress(60, "evaluation")
        found = phase_of(file)
        assert found is not None and found.what == "evaluation"


def test_block_ends_the_phase_and_the_one_around_it_goes_on(run_dir: Path) -> None:
    """Records inside do not end it; exceptions pass."""
    with opened() as (run, file):
        with run.progress(600, "outer"):
            run.log(1, {"a": 1.0})
            with pytest.raises(KeyError), run.progress(60, "inner"):
                run.log(2, {"a": 1.0})
                found = phase_of(file)
                assert found is not None and found.what == "inner"
                raise KeyError
            run.log(3, {"a": 1.0})
            found = phase_of(file)
            assert found is not None and found.what == "outer" and found.left_s > 500
        assert phase_of(file) is None
        assert run.status()["accepted"] == 3


@pytest.mark.parametrize(
    "what",
    ["x" * 100, "ü☃" * 20, "\0", "", 7, None, object()],
    ids=["long", "wide", "NUL", "empty", "int", "None", "object"],
)
def test_any_name_is_shown_as_far_as_it_goes(what: Any, run_dir: Path) -> None:
    """32 bytes of it, whatever it is."""
    with opened() as (run, file):
        run.progress(600, what)
        found = phase_of(file)
        assert found is not None and len(found.what) <= 32
        if type(what) is str and what.isascii() and what.isprintable():
            assert found.what == what[:32]


@pytest.mark.parametrize(
    "wrong", ["soon", None, object(), math.nan, [1]], ids=["text", "None", "object", "NaN", "list"]
)
def test_what_is_no_number_of_seconds_declares_nothing(wrong: Any, run_dir: Path) -> None:
    """It is said once, and works as a context manager all the same."""
    with opened() as (run, file):
        for _ in range(3):
            with run.progress(wrong, "checkpoint"):
                assert phase_of(file) is None
        assert sum("takes a number of seconds" in line for line in run.status()["notices"]) == 1


def test_numbers_of_other_types_and_below_zero(run_dir: Path) -> None:
    """Bools and large ints are numbers; below zero is no time."""
    with opened() as (run, file):
        run.progress(10**30)
        assert phase_of(file) is not None
        run.progress(-5)
        assert phase_of(file) is None


def test_finished_disabled_and_no_run(run_dir: Path) -> None:
    """Nothing happens, and nothing is raised."""
    with opened() as (run, _):
        run.finish(0)
        with run.progress(60, "late"):
            pass
    null = logclient.init("p", mode="disabled")
    with null.progress(60, "nothing"):
        pass
    with logclient.progress(60):
        pass


def test_forked_child_declares_for_itself(run_dir: Path, tmp_path: Path) -> None:
    """Also inside the parent's block: the parent's words stay as they are."""
    source = """
    run = logclient.init("phases")
    run.log(0, {"a": 1.0})
    with run.progress(600, "parent"):
        pid = os.fork()
        if pid == 0:
            with run.progress(60, "child"):
                run.log(1, {"a": 1.0})
                open("inside", "w").close()
                while not os.path.exists("looked"): time.sleep(0.01)
            os._exit(0)
        while not os.path.exists("inside"): time.sleep(0.01)
        from logclient_backend.runs.live import look
        found = {each.pid: each.phase(time.monotonic_ns()) for each in look(run._session.shm_dir.path).processes}
        open("looked", "w").close()
        os.waitpid(pid, 0)
        after = {each.pid: each.phase(time.monotonic_ns()) for each in look(run._session.shm_dir.path).processes}
    print(json.dumps([found[os.getpid()].what, found[pid].what, after[os.getpid()].what]))
    """
    assert Script(tmp_path, source).result() == ["parent", "child", "parent"]

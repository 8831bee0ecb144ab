"""Device values: the record counts at the call, its values come when the device is that far, and nobody waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import logclient
from logclient.run import Run
from logclient.session.final_line import final_line
from logclient.shm.cells import FULL_BYTES
from logclient_backend.cli import cli, status
from logclient_backend.cli.status import describe
from logclient_backend.runs import live
from tests.devices import ArrayImpl, Arrived
from tests.interrupts import interrupted
from tests.lanes import wait_until

from .. import scripts

NEVER = float("inf")


def the_series(run_dir: Path, key: str) -> tuple[list[int], list[Any]]:
    (found,) = logclient.read(run_dir)
    series = found.series(key)
    return series.step.tolist(), series.value.tolist()


@pytest.mark.slow
def test_values_come_later_and_all_of_a_record_is_of_the_call(run_dir: Path) -> None:
    """Types keep their kind, host values and texts stay beside them, repeated use of cells mixes nothing."""
    run = logclient.init("device", quiet=True)
    for step in range(3000):
        if step % 500 == 0:
            wait_until(lambda: run.flush(60), "cells are free again", 90)
        soon = Arrived(at=time.monotonic() + 0.01)
        row = {"f": ArrayImpl(step + 0.5, soon), "host": float(step), "text": f"t{step}"}
        run.log(
            step, row | {"n": ArrayImpl(-step, soon, "int64"), "b": ArrayImpl(step % 2 == 0, soon, "bool")}
        )
    assert run.finish(120), run.status()
    status = run.status()
    assert (status["accepted"], status["left_out"], status["forgotten"]) == (3000, 0, 0)
    steps = list(range(3000))
    assert the_series(run_dir, "f") == (steps, [step + 0.5 for step in steps])
    assert the_series(run_dir, "n") == (steps, [-step for step in steps])
    assert the_series(run_dir, "b") == (steps, [step % 2 == 0 for step in steps])
    assert the_series(run_dir, "host") == (steps, [float(step) for step in steps])
    assert the_series(run_dir, "text") == (steps, [f"t{step}" for step in steps])


def test_device_that_hangs_holds_up_no_other_record(run_dir: Path) -> None:
    """Host records are durable meanwhile; `flush` says by its deadline that some are not; then the device goes on."""
    run = logclient.init("device", quiet=True)
    hang = Arrived(at=NEVER)
    run.log(0, {"loss": ArrayImpl(1.5, hang)})
    for step in range(1, 101):
        run.log(step, {"lr": 0.1})
    wait_until(lambda: run.status()["durable"] == 100 or run.flush(0), "host records are durable", 60)
    status = run.status()
    assert (status["accepted"], status["durable"], status["device"]["in_flight"]) == (101, 100, 1)
    assert run.flush(0.2) is False
    hang.at = 0.0
    assert run.flush(60)
    assert run.status()["device"]["in_flight"] == 0
    assert run.finish(60)
    assert the_series(run_dir, "loss") == ([0], [1.5])


def test_device_that_hangs_is_no_trouble_of_the_disk(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`logclient status` and the last line tell what waits for the device apart, with the process to look at."""
    run = logclient.init("device", quiet=True)
    assert isinstance(run, Run)
    hang = Arrived(at=NEVER)
    for step in range(3):
        run.log(step, {"loss": ArrayImpl(1.5, hang), "lr": 0.1})
        run.log(step, {"lr": 0.1})

    def found() -> dict[str, Any]:
        live_dir = live.look(run._session.shm_dir.path)
        assert live_dir is not None
        return describe(live_dir)

    wait_until(lambda: run.flush(0) or found()["lag_records"] == 0, "host records are durable", 60)
    assert found()["device_records"] == 3 and found()["device_s"] > 0
    assert found()["problems"] == [] and found()["lag_s"] == 0
    monkeypatch.setattr(status, "_DEVICE_S", 0.0)
    (problem,) = found()["problems"]
    assert f"process {os.getpid()}" in problem and "device" in problem
    assert "3 records wait for its values" in CliRunner().invoke(cli, ["status"]).stdout
    said = final_line(run._session, run.status(), {}, run.flush(0), 0.0, "")
    assert "3 records wait for values of a device" in said and "not on disk" not in said
    hang.at = 0.0
    assert run.finish(60)


def test_more_on_their_way_than_there_is_room_for_are_left_out_and_counted(run_dir: Path) -> None:
    """Of a device that hangs: every record is stored, each value too, or left out; memory is bounded."""
    run = logclient.init("device", quiet=True)
    hang = Arrived(at=NEVER)
    for step in range(5000):
        run.log(step, {"loss": ArrayImpl(step, hang), "lr": 0.5})
    status = run.status()
    assert status["accepted"] == 5000
    assert 0 < status["left_out"] < 5000
    assert status["device"]["in_flight"] == 5000 - status["left_out"]
    shm_dir = Path(run._session.shm_dir.path)  # type: ignore[union-attr]
    assert sum(path.stat().st_size for path in shm_dir.glob("*.device")) <= FULL_BYTES + 8192
    hang.at = 0.0
    assert run.finish(60), run.status()
    status = run.status()
    steps, values = the_series(run_dir, "loss")
    assert values == [float(step) for step in steps]
    assert len(steps) == 5000 - status["left_out"]
    assert the_series(run_dir, "lr")[0] == list(range(5000))


@pytest.mark.slow
def test_wide_records_have_cells_of_their_size(run_dir: Path) -> None:
    """A few hundred and a few thousand values in one call arrive; beyond that they are left out with one warning."""
    run = logclient.init("device", quiet=True)
    for step, width in enumerate((1, 200, 3000, 9000)):
        run.log(step, {f"w{width}/{index}": ArrayImpl(index) for index in range(width)})
        assert run.flush(60)
    assert run.status()["left_out"] == 9000
    assert sum("in one call" in notice for notice in run.status()["notices"]) > 0
    assert run.finish(60)
    for width in (1, 200, 3000):
        assert the_series(run_dir, f"w{width}/{width - 1}")[1] == [width - 1.0]


def test_value_that_was_given_away_is_left_out_and_its_record_kept(run_dir: Path) -> None:
    """JAX donates buffers: the value is gone before it was read, and counted."""
    run = logclient.init("device", quiet=True)
    hang = Arrived(at=NEVER)
    gone, kept = ArrayImpl(1.0, hang), ArrayImpl(2.0, hang)
    run.log(1, {"gone": gone, "kept": kept, "host": 3.0})
    gone.donated = True
    hang.at = 0.0
    assert run.finish(60)
    assert run.status()["left_out"] == 1
    (found,) = logclient.read(run_dir)
    assert sorted(found.keys()) == ["host", "kept"]
    assert the_series(run_dir, "kept") == ([1], [2.0])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (ArrayImpl([1.0, 2.0]), "shape (2,)"),
        (ArrayImpl(1.0, dtype="complex64"), "complex64"),
        (ArrayImpl(1, dtype="uint64"), "uint64"),
    ],
    ids=["shape", "complex", "uint64"],
)
def test_what_no_cell_holds_is_left_out_and_said(value: ArrayImpl, reason: str, run_dir: Path) -> None:
    run = logclient.init("device", quiet=True)
    run.log(1, {"bad": value, "good": ArrayImpl(1.0), "host": 2.0})
    assert run.finish(60)
    assert run.status()["left_out"] == 1
    assert any("'bad'" in line and reason in line for line in run.status()["notices"])
    assert the_series(run_dir, "good") == ([1], [1.0])
    assert the_series(run_dir, "host") == ([1], [2.0])


TRAINER = """
import os, sys, time
import logclient
from tests.devices import ArrayImpl, Arrived
run = logclient.init("device", quiet=True)
hang = Arrived(at=float("inf"))
for step in range(10):
    run.log(step, {"come": ArrayImpl(step), "lr": 0.5})
while run.status()["device"]["in_flight"]:
    time.sleep(0.001)
for step in range(10, 20):
    run.log(step, {"pending": ArrayImpl(step, hang), "lr": 0.5})
run.log(20, {"only": ArrayImpl(20.0, hang)})
"""


def trainer(folder: Path, code: str) -> subprocess.Popen[str]:
    path = folder / "train.py"
    path.write_text(TRAINER + textwrap.dedent(code))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    env["LOGCLIENT_FINISH_TIMEOUT_S"] = "3"  # what hangs is waited for until then
    return subprocess.Popen(
        [sys.executable, str(path)], cwd=folder, env=env, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.first_is_quick
@pytest.mark.parametrize("how", ["SIGKILL", "exit", "exception"])
def test_values_of_a_dead_process_are_counted_and_the_rest_of_their_records_kept(
    how: str, run_dir: Path, tmp_path: Path
) -> None:
    """Nothing of the device comes any more: 11 values are left out, 21 records stored, those that came complete."""
    ends = {"SIGKILL": "print('ready', flush=True); time.sleep(600)", "exit": "sys.exit(0)"}
    process = trainer(tmp_path, ends.get(how, "raise ValueError('told')"))
    with process:
        if how == "SIGKILL":
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            process.kill()
        process.communicate(timeout=120)

    def counts() -> dict[str, int]:
        found = scripts.runs(run_dir)
        return found[0].counts() if found else {"stored": 0, "left_out": 0}

    wait_until(lambda: counts()["stored"] == 21 and counts()["left_out"], "all is stored and told", 60)
    told = counts()
    assert (told["left_out"], told["damaged"], told["forgotten"]) == (11, 0, 0)
    (found,) = logclient.read(run_dir)
    assert the_series(run_dir, "come") == (list(range(10)), [float(step) for step in range(10)])
    assert the_series(run_dir, "lr")[0] == list(range(20))
    assert sorted(found.keys()) == ["come", "lr"]


def test_worker_killed_while_records_wait_loses_and_repeats_nothing(run_dir: Path) -> None:
    """Its successor finds them in their lane and cells, again and again."""
    run = logclient.init("device", quiet=True)
    hang = Arrived(at=NEVER)
    for round_ in range(3):
        run.log(round_, {"loss": ArrayImpl(round_, hang)})
        run.log(round_, {"lr": 0.5})
        worker = wait_until(lambda: run.status()["agent"]["worker"], "a worker is there", 60)  # never 0
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: run.status()["agent"]["worker"] not in (0, worker), "another worker", 60)  # noqa: B023
    hang.at = 0.0
    assert run.finish(60), run.status()
    assert the_series(run_dir, "loss") == ([0, 1, 2], [0.0, 1.0, 2.0])
    assert the_series(run_dir, "lr")[0] == [0, 1, 2]


def test_fork_with_copies_on_their_way_leaves_them_to_the_parent(run_dir: Path) -> None:
    """The child logs, device values too, in lanes and cells of its own; the parent's values arrive."""
    run = logclient.init("device", quiet=True)
    hang = Arrived(at=NEVER)
    for step in range(50):
        run.log(step, {"parent": ArrayImpl(step, hang)})
    child = os.fork()
    if not child:
        code = 1
        try:
            run.log(7, {"host": 1.0})
            run.log(7, {"child": ArrayImpl(7.0)})
            code = 0 if run.flush(60) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    hang.at = 0.0
    assert run.finish(60), run.status()
    assert the_series(run_dir, "parent") == (list(range(50)), [float(step) for step in range(50)])
    assert the_series(run_dir, "host") == ([7], [1.0])
    assert scripts.the_run(run_dir).state.name == "finished"


@pytest.mark.slow
@pytest.mark.parametrize(("is_given_away", "is_seen"), [(False, False), (False, True), (True, True)])
def test_interrupt_at_any_point_leaves_no_record_waiting(
    is_given_away: bool, is_seen: bool, run_dir: Path
) -> None:
    """A handler that raises, in calls that complete earlier ones: each value is moved to its own record, and once."""
    run: Any = logclient.init("jax", quiet=True)
    at, step, was_reached, given_away = 1, 0, True, set()
    while was_reached:
        value = ArrayImpl(float(step))
        run.log(step, {"value": value, "host": float(step)})
        if is_given_away and step % 4 == 2:
            value.donated = True
            given_away.add(step)
        time.sleep(0.002)
        if is_seen:
            run.status()
            time.sleep(0.006)
        other = {"value": ArrayImpl(step + 1.0), "host": step + 1.0}
        was_reached = interrupted(run.log, step + 1, other, at=at)
        at, step = at + 1, step + 2
    assert at > 50
    assert run.finish(60), run.status()
    assert not run.status()["forgotten"], run.status()
    (found,) = logclient.read(run_dir)
    for key in ("value", "host"):
        series = found.series(key)
        assert (series.value == series.step).all() and len(set(series.step.tolist())) == len(series.step)
    assert set(range(0, step, 2)) - given_away <= set(found.series("value").step.tolist())
    assert len(given_away) <= run.status()["left_out"] <= len(given_away) + at


@pytest.mark.slow
def test_handler_that_logs_at_any_point_of_moving_values(run_dir: Path) -> None:
    """It finds a copy that is half moved to the next stage: it goes by, and does not look at it for ever."""
    run: Any = logclient.init("jax", quiet=True)
    at, step, was_reached = 1, 0, True
    while was_reached:
        for _ in range(2):
            run.log(step, {"value": ArrayImpl(float(step)), "host": float(step)})
            step += 1
            time.sleep(0.003)
        row = {"value": ArrayImpl(float(step)), "host": float(step)}
        inner = {"value": ArrayImpl(step + 1.0), "host": step + 1.0}
        was_reached = interrupted(run.log, step, row, at=at, action=partial(run.log, step + 1, inner))
        at, step = at + 1, step + 2
    assert at > 50 and run.finish(60), run.status()
    (found,) = logclient.read(run_dir)
    for key in ("value", "host"):
        series = found.series(key)
        assert (series.value == series.step).all() and len(set(series.step.tolist())) == len(series.step)
    assert run.status()["left_out"] == run.status()["forgotten"] == 0, run.status()

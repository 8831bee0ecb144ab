"""The XLA callback on one device of this process: values as at the time of the call, counts, and failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

import logclient
from logclient.integrations import xla
from logclient.integrations.xla import LogclientXLACallback
from tests.interrupts import interrupted
from tests.lanes import opened, wait_until


@pytest.fixture(autouse=True, params=["async", "sync"])
def closures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """As torch_xla's own thread runs them, and where it cannot, because of a setting that it reads wrongly."""
    if request.param == "sync":
        monkeypatch.setenv("XLA_MAX_ASYNC_QUEUE", "50")
    xla._may_be_async.cache_clear()
    assert xla._may_be_async() == (request.param == "async")
    yield request.param
    xla._may_be_async.cache_clear()


@pytest.fixture
def device() -> torch.device:
    return torch.device("xla")


def stored(file: Any, callback: LogclientXLACallback) -> list[tuple[int, dict[str, Any]]]:
    assert callback.flush(60)
    return [(record.step, record.values) for record in file.read()]


def test_value_is_that_of_the_call(run_dir: Path, device: torch.device) -> None:
    """Case R2-55: overwritten in place at once, the only reference dropped, logged twice in a step, on the host."""
    with opened() as (run, file):
        callback = LogclientXLACallback(run)
        total, host = torch.zeros((), device=device), torch.zeros(())
        wanted: list[tuple[int, dict[str, float]]] = []
        for step in range(xla.MAX_STEPS - 2):  # more may be refused where the closures come late
            total += 1
            host += 1
            row = {"in place": total, "dropped": total * 2, "host": host, "deep": {"x": total[None]}}
            callback.log(step, row)
            del row
            total.add_(100)
            host.add_(100)
            callback.log(step, {"again": total})
            total.sub_(100)
            host.sub_(100)
            torch_xla.sync()
            now = step + 1.0
            wanted.append((step, {"in place": now, "dropped": 2 * now, "host": now, "deep::x": now}))
            wanted.append((step, {"again": now + 100}))
        assert stored(file, callback) == wanted
        status = run.status()
    assert (status["accepted"], status["refused"], status["left_out"]) == (len(wanted), 0, 0)


def test_nothing_is_run_or_read_before_the_sync(run_dir: Path, device: torch.device) -> None:
    """Neither a transfer from the device nor a graph is caused by `log`, with tensors or a plain run."""
    with opened() as (run, file):
        callback = LogclientXLACallback(run)
        met.clear_all()
        loss = torch.ones((), device=device) * 3
        torch_xla.sync()
        wait_until(lambda: met.metric_data("ExecuteTime") is not None, "the first graph is through", 60)
        met.clear_all()
        loss = loss + 1
        callback.log(1, {"loss": loss})
        run.log(1, {"loss": loss})
        assert met.metric_data("ExecuteTime") is None and met.metric_data("TransferFromDeviceTime") is None
        assert run.status()["left_out"] == 1
        (notice,) = run.status()["notices"]
        assert "logclient.integrations.xla" in notice
        run.log(2, {"loss": loss})
        assert len(run.status()["notices"]) == 1 and run.status()["left_out"] == 2
        file.read()
        torch_xla.sync()
        assert stored(file, callback) == [(1, {"loss": 4.0})]


def test_record_without_xla_tensors_is_stored_at_once(run_dir: Path) -> None:
    """Numbers, texts and tensors on the host need no step."""
    with opened() as (run, file):
        LogclientXLACallback(run).log(1, {"a": 1.5, "b": "x", "c": torch.tensor(2.5)})
        assert [record.values for record in file.read()] == [{"a": 1.5, "b": "x", "c": 2.5}]


def test_dtypes_and_what_is_no_value(run_dir: Path, device: torch.device) -> None:
    """Each dtype as the library stores it from the host; a tensor of several values is left out, not transferred."""
    dtypes = [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int32,
        torch.int64,
        torch.bool,
    ]
    with opened() as (run, file):
        callback = LogclientXLACallback(run)
        row = {str(dtype): torch.ones((), dtype=dtype, device=device) for dtype in dtypes}
        weight = torch.ones((), device=device, requires_grad=True)
        callback.log(1, {**row, "graph": weight * 2, "several": torch.ones(3, device=device)})
        torch_xla.sync()
        ((_, values),) = stored(file, callback)
        assert values == {**{str(dtype): 1 for dtype in dtypes}, "graph": 2.0}
        assert type(values["torch.bool"]) is bool and type(values["torch.int64"]) is int
        assert run.status()["left_out"] == 1 and "(3,)" in run.status()["notices"][0]


@pytest.mark.parametrize("closures", ["async"], indirect=True)  # else they run in the training's thread
def test_steps_under_way_are_bounded(run_dir: Path, device: torch.device) -> None:
    """Where torch_xla's thread hangs in a closure of the user's, records are counted as refused and nobody waits."""
    go_on = threading.Event()
    with opened() as (run, file):
        callback = LogclientXLACallback(run)
        try:
            xm.add_step_closure(go_on.wait, args=(60,), run_async=True)
            for step in range(xla.MAX_STEPS + 8):
                callback.log(step, {"x": torch.ones((), device=device) * step})
                torch_xla.sync()
            assert run.status()["refused"] == 8 and not callback.flush(0)
            assert "steps wait" in run.status()["notices"][0]
        finally:
            go_on.set()
        assert [step for step, _ in stored(file, callback)] == list(range(xla.MAX_STEPS))
        callback.log(100, {"x": torch.ones((), device=device)})
        torch_xla.sync()
        assert stored(file, callback) == [(100, {"x": 1.0})]


def test_loop_without_a_sync_is_counted_and_told(run_dir: Path, device: torch.device) -> None:
    """What waits for the end of a step that never comes is bounded, too."""
    with opened() as (run, file):
        callback = LogclientXLACallback(run)
        value = torch.ones((), device=device)
        for step in range(xla.MAX_RECORDS + 5):
            callback.log(step, {"x": value})
        assert run.status()["refused"] == 5 and "torch_xla.sync()" in run.status()["notices"][0]
        torch_xla.sync()
        assert len(stored(file, callback)) == xla.MAX_RECORDS


@pytest.mark.parametrize("closures", ["async"], indirect=True)
def test_closure_of_the_user_that_raises(run_dir: Path, device: torch.device) -> None:
    """torch_xla ends its thread, forgets closures and raises at a later sync: each record is stored or counted."""

    def fail() -> None:
        raise ValueError("of the user")

    with opened() as (run, file):
        callback = LogclientXLACallback(run)
        xm.add_step_closure(fail, run_async=True)
        step, raised = 0, False
        while not raised:
            for _ in range(2):
                callback.log(step, {"x": torch.ones((), device=device) * step})
            try:
                torch_xla.sync()
            except RuntimeError as error:
                assert "of the user" in str(error.__cause__)
                raised = True
            else:
                assert callback.flush(0.02) or step < xla.MAX_STEPS
            step += 1
        torch_xla.sync()
        callback.log(step, {"x": torch.ones((), device=device) * step})
        torch_xla.sync()
        records = stored(file, callback)
        assert all(row == {"x": float(at)} for at, row in records) and records[-1][0] == step
        assert len(records) + run.status()["refused"] == 2 * step + 1


FAULTS = {
    "no tie": lambda callback, run: callback.__dict__.pop("_tie"),
    "broken state": lambda callback, run: setattr(callback, "_local", 5),
    "dead lanes": lambda callback, run: run._session.lanes.detach(),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("when", ["before the first", "later"])
def test_failure_of_ours_ends_no_training(fault: str, when: str, run_dir: Path, device: torch.device) -> None:
    """Case R2-38: broken state in `log`, `flush` and the closure; torch_xla's own closures go on."""
    others: list[int] = []
    with opened() as (run, _):
        callback = LogclientXLACallback(run)
        for step in range(4):
            if step == (0 if when == "before the first" else 2):
                FAULTS[fault](callback, run)
            callback.log(step, {"x": torch.ones((), device=device)})
            xm.add_step_closure(others.append, args=(step,), run_async=True)
            torch_xla.sync()
        callback.flush(0.1)
        wait_until(lambda: others == [0, 1, 2, 3], "the user's closures")


@pytest.mark.parametrize("method", ["_store", "_deliver"])
def test_failure_in_the_closure_is_counted(
    method: str, run_dir: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record each, said once; the steps after it are stored."""
    with opened() as (run, file):
        callback = LogclientXLACallback(run)
        broken = torch.ones((), device=device)
        steps = callback._thread().steps
        if method == "_store":
            monkeypatch.setattr(torch.Tensor, "cpu", None)
        else:
            callback._thread().steps = None  # type: ignore[assignment]
        callback.log(0, {"x": broken})
        torch_xla.sync()
        wait_until(lambda: run.status()["refused"] == 1, "it is counted")
        monkeypatch.undo()
        callback._thread().steps = steps
        callback._thread().step = None
        callback.log(1, {"x": broken + 1})
        torch_xla.sync()
        assert (1, {"x": 2.0}) in stored(file, callback)
        assert len([line for line in run.status()["notices"] if method in line or "log" in line]) == 1


def test_disabled_adds_no_closure(
    run_dir: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Switched off means that no line of ours runs."""
    callback = LogclientXLACallback(logclient.init("off", mode="disabled"))
    callback.log(0, {"x": torch.ones((), device=device)})

    def none(*args: object, **more: object) -> None:
        raise AssertionError("a closure was added")

    monkeypatch.setattr(xm, "add_step_closure", none)
    callback.log(1, {"x": torch.ones((), device=device)})
    assert callback.flush(0)


def test_run_that_ended_refuses_and_counts(run_dir: Path, device: torch.device) -> None:
    """In the closure, too: the step ended after the run did."""
    with opened() as (run, _):
        callback = LogclientXLACallback(run)
        callback.log(0, {"x": torch.ones((), device=device)})
        run.finish(0)
        torch_xla.sync()
        assert callback.flush(60)
        callback.log(1, {"x": 1.0})
        wait_until(lambda: run.status()["refused"] == 2, "both are counted")


def test_interrupt_at_any_point_passes_and_blocks_nothing(run_dir: Path, device: torch.device) -> None:
    """What a signal's handler raises inside `log` is the user's; no step is left that waits for a closure for ever."""
    value = torch.ones((), device=device)
    with opened() as (run, file):
        callback = LogclientXLACallback(run)
        callback.log(0, {"x": value})
        at, was_reached = 1, True
        while was_reached:
            torch_xla.sync()
            was_reached = interrupted(callback.log, at, {"x": value, "deep": {"y": value}}, at=at)
            at += 1
        torch_xla.sync()
        records = stored(file, callback)
        assert records[-1] == (at - 1, {"x": 1.0, "deep::y": 1.0}) and not callback._thread().steps
        assert run.status()["accepted"] == len(records) and run.status()["refused"] == 0

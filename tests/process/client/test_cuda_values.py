"""The way of CUDA tensors through `log`, with a GPU in software (R2-55); `tests/gpu` has the same on a real one.

Whether the driver locks memory and lets a kernel write there is a parameter: all ways give the same values.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import logclient
from tests.conftest import Pace
from tests.interrupts import interrupted
from tests.lanes import opened, wait_until
from tests.software_gpu import Torch, installed

WAYS = {
    "registered": {},
    "registered, not mapped": {"maps": False},
    "pinned": {"locks": False},
}


@pytest.fixture(params=list(WAYS))
def torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Torch:
    return installed(monkeypatch, **WAYS[request.param])


def checked(run: Any, run_dir: Path, wanted: int) -> dict[str, Any]:
    """All that was asked of the device is done: each value is its step's, all others are counted."""
    assert run.finish(60), run.status()
    status: dict[str, Any] = run.status()
    assert status["accepted"] == wanted and status["forgotten"] == 0
    (found,) = logclient.read(run_dir)
    series = found.series("value")
    assert (series.value == series.step).all()
    assert len(series.step) == wanted - status["left_out"]
    assert (found.series("host").value == found.series("host").step).all()
    assert len(found.series("host").step) == wanted
    return status


def overwritten(torch: Torch, run: Any, step: int, side: Any) -> None:
    value = torch.full(step)
    run.log(step, {"value": value, "host": float(step)})
    value.add_(1_000_000)


def dropped(torch: Torch, run: Any, step: int, side: Any) -> None:
    run.log(step, {"value": torch.full(step), "host": float(step)})
    torch.full(-1.0)
    with torch.gpu.stream(side):
        torch.full(-2.0)


def from_side_stream(torch: Torch, run: Any, step: int, side: Any) -> None:
    """Made on the default stream, dropped at once, its memory used again there while the other has yet to read it."""
    value = torch.full(step)
    side.wait_stream(torch.gpu.default[0])
    with torch.gpu.stream(side):
        run.log(step, {"value": value, "host": float(step)})
    del value
    torch.full(-1.0)
    torch.gpu.default[0].run()


@pytest.mark.first_is_quick
@pytest.mark.parametrize("form", [overwritten, dropped, from_side_stream])
@pytest.mark.parametrize("lag", [1, 7, 300])
def test_each_step_has_its_own_value(
    form: Callable[..., None], lag: int, torch: Torch, run_dir: Path, pace: Pace
) -> None:
    """However far the device is behind."""
    run = logclient.init("cuda", quiet=True)
    side = torch.gpu.new_stream()
    steps = pace.count(10_000, least=1_000)
    for step in range(steps):
        form(torch, run, step, side)
        if step % lag == 0:
            torch.gpu.run()
    torch.gpu.run()
    status = checked(run, run_dir, steps)
    assert status["left_out"] == 0
    assert status["device"]["way"] == ("registered" if torch.gpu.locks else "pinned")
    assert bool(status["device"]["trouble"]) != torch.gpu.locks


def test_one_launch_a_record_where_a_kernel_can_write(monkeypatch: pytest.MonkeyPatch, run_dir: Path) -> None:
    """Of values of one type, whatever that is: what `log` costs is what the driver is asked for."""
    torch = installed(monkeypatch)
    run = logclient.init("cuda", quiet=True)
    for step in range(3):
        values = {str(index): torch.full(step) for index in range(5)}
        before = torch.gpu.launches
        run.log(step, values)
        assert torch.gpu.launches == before + 1
    torch.gpu.run()
    assert run.finish(60)


@pytest.mark.first_is_quick
def test_device_that_hangs_is_bounded_and_counted(torch: Torch, run_dir: Path) -> None:
    """What is logged meanwhile goes without device values; all else of every record is stored."""
    run = logclient.init("cuda", quiet=True)
    for step in range(3_000):
        run.log(step, {"value": torch.full(step), "host": float(step)})
        if step % 100 == 0:
            run.flush(0)
    status = run.status()
    assert 0 < status["left_out"] < 3_000
    assert status["device"]["in_flight"] == 3_000 - status["left_out"]
    assert run.flush(0.2) is False
    torch.gpu.run()
    wait_until(lambda: run.flush(60) and not run.status()["device"]["in_flight"], "the values came", 90)
    assert run.finish(60)
    (found,) = logclient.read(run_dir)
    series = found.series("value")
    assert (series.value == series.step).all()
    assert len(series.step) + run.status()["left_out"] == 3_000
    assert found.series("host").step.tolist() == list(range(3_000))
    assert run.status()["forgotten"] == 0


@pytest.mark.first_is_quick
@pytest.mark.parametrize(
    ("values", "least"), [(1, 1400), (2, 1350), (10, 800), (124, 120), (1000, 8), (4000, 4), (4092, 1)]
)
def test_so_many_records_wait_at_once(
    values: int, least: int, monkeypatch: pytest.MonkeyPatch, run_dir: Path
) -> None:
    """As docs/devices.md says; one record more, and one value more than 4,092, go without."""
    torch = installed(monkeypatch)
    run = logclient.init("cuda", quiet=True)
    row = {str(index): torch.full(1.0) for index in range(values)}
    for step in range(least):
        run.log(step, {**row, "lr": 0.1})
    assert run.status()["left_out"] == 0
    assert run.status()["device"]["in_flight"] == least
    run.log(least, {str(index): torch.full(1.0) for index in range(4093)})
    assert run.status()["left_out"] == 4093
    torch.gpu.run()
    assert run.finish(60)
    assert run.status()["forgotten"] == 0


def test_types_and_shapes(torch: Torch, run_dir: Path) -> None:
    """Each exactly, by records that are described anew and by those that follow."""
    run = logclient.init("cuda", quiet=True)
    wanted: dict[str, Any] = {
        "float64": 1 / 3, "float32": 0.5, "float16": 0.25, "int64": 2**60 + 1, "int32": -7, "uint8": 255, "bool": True,
    }  # fmt: skip
    for step in range(3):
        row = {name: torch.full(value, name) for name, value in wanted.items()}
        row["one element"] = torch.full(2.5, shape=(1, 1))
        row["history"] = torch.full(6.0)
        row["history"].requires_grad = True
        run.log(step, {**row, "lr": 0.1, "text": "t", "vector": torch.full(0.0, shape=(3,))})
        torch.gpu.run()
    assert run.finish(60)
    assert run.status()["left_out"] == 3
    (found,) = logclient.read(run_dir)
    for name, value in {**wanted, "one element": 2.5, "history": 6.0, "lr": 0.1, "text": "t"}.items():
        got = found.series(name).value.tolist()
        assert got == [value] * 3 and type(got[0]) is type(value), name


def test_values_of_several_devices(torch: Torch, run_dir: Path) -> None:
    """In one record and in records that take turns."""
    run = logclient.init("cuda", quiet=True)
    for step in range(100):
        one, other = torch.full(step, index=0), torch.full(step, index=1)
        row = {"value": other, "other": one} if step % 3 == 0 else {"value": (one, other)[step % 3 - 1]}
        run.log(step, {**row, "host": float(step)})
        one.add_(1)
        other.add_(1)
        if step % 10 == 0:
            torch.gpu.run()
    torch.gpu.run()
    assert checked(run, run_dir, 100)["left_out"] == 0


def test_types_that_change_are_those_of_their_step(torch: Torch, run_dir: Path) -> None:
    """Under the same keys: tensors, numbers, tensors of another dtype, shape or device."""
    run = logclient.init("cuda", quiet=True)
    makers: list[Callable[[int], Any]] = [
        torch.full,
        float,
        lambda step: torch.full(step, "int64"),
        lambda step: torch.full(step, shape=(1,)),
        lambda step: torch.full(step, index=1),
        lambda step: torch.nn.Parameter(torch.gpu, *parts(torch.full(step))),
    ]
    steps = 20 * len(makers) ** 2
    for step in range(steps):
        one = makers[step % len(makers)](step)  # each after each other
        value = makers[step // len(makers) % len(makers)](step)
        run.log(step, {"value": value, "other": one, "host": float(step) if step % 7 else step})
        if step % 20 == 0:
            torch.gpu.run()
    run.log(1 << 63, {"value": torch.full(1), "other": torch.full(1), "host": 1.0})
    torch.gpu.run()
    assert run.status()["refused"] == 1
    assert checked(run, run_dir, steps)["left_out"] == 0
    (found,) = logclient.read(run_dir)
    other = found.series("other")
    assert len(other.step) == steps and (other.value == other.step).all()


def parts(tensor: Any) -> tuple[Any, ...]:
    home, tensor._home = tensor._home, None
    return tensor._data, tensor.dtype, tensor.get_device(), home


def test_launch_that_fails_costs_its_value_and_no_cell(torch: Torch, run_dir: Path) -> None:
    """A kernel that torch does not have for some dtype, say: what is known to fail is not tried that way again."""
    run: Any = logclient.init("cuda", quiet=True)
    run.log(0, {"value": torch.full(0.0), "host": 0.0})
    tries = []

    def fails(*_: object) -> None:
        tries.append(1)
        raise RuntimeError("not implemented for 'Half'")

    run._session.encoder.device._cuda._gather = fails
    for step in range(1, 500):
        run.log(step, {"value": torch.full(step), "host": float(step)})
        torch.gpu.run()
    assert len(tries) <= 1
    assert checked(run, run_dir, 500)["left_out"] == 0


HOSTS: dict[str, tuple[Any, Any, Any]] = {
    "bool": (True, False, 7),
    "int": (1, 2**62, 2**70),
    "int, then text": (1, "text", None),
    "numpy bool": (np.True_, np.False_, np.True_),
    "numpy int": (np.int64(1), np.int64(2**62), np.uint64(2**63)),
    "numpy float": (np.float32(0.1), np.float64(0.1), np.float16(0.5)),
    "numpy array": (np.array(1.0), np.array(2**60 + 1), np.array([1, 2])),
    "masked": (np.ma.masked_array(1.0), np.ma.masked_array(1.0, True), np.ma.masked_array(2.0)),
    "complex": (np.array(1.5), np.array(1 + 2j), np.array(object())),
    "Decimal": (Decimal("0.5"), Decimal("0.1"), Decimal("sNaN")),
    "Fraction": (Fraction(1, 2), Fraction(1, 3), Fraction(10**400, 3)),
}


@pytest.mark.first_is_quick
@pytest.mark.parametrize("kind", HOSTS)
def test_other_values_of_the_record_are_as_they_are_without_it(
    kind: str, monkeypatch: pytest.MonkeyPatch, run_dir: Path
) -> None:
    """Whatever they are, and when their kind changes: what is known of one record is no guess at the next."""
    torch = installed(monkeypatch)
    left_out = []
    for name in ("beside", "alone"):
        run = logclient.init("cuda", name=name, quiet=True)
        for step, value in enumerate(HOSTS[kind] * 3):
            row = {"x": value, "after": 1.5}
            run.log(step, {"loss": torch.full(step), **row} if name == "beside" else row)
        torch.gpu.run()
        assert run.finish(60), run.status()
        left_out.append(run.status()["left_out"])
        assert run.status()["refused"] == 0, run.status()["notices"]
    assert left_out[0] == left_out[1]
    found = {each.name: each for each in logclient.read(run_dir)}
    for key in ("x", "after"):
        one, other = (found[name].series(key) for name in ("beside", "alone"))
        assert one.step.tolist() == other.step.tolist()
        assert [(type(value), value) for value in one.value.tolist()] == [
            (type(value), value) for value in other.value.tolist()
        ]


def test_tensor_of_the_host_that_becomes_one_of_a_device_is_not_waited_for(
    torch: Torch, run_dir: Path
) -> None:
    """And the other way round: both have one type, and reading the second (here: an error) would be a wait."""
    run = logclient.init("cuda", quiet=True)
    for step in range(40):
        value = torch.full(step)
        if step % 3 == 0:
            value = type(value)(torch.gpu, np.array(step, "f4"), value.dtype, -1)
        run.log(step, {"value": value, "loss": torch.full(step), "host": float(step)})
    torch.gpu.run()
    assert checked(run, run_dir, 40)["left_out"] == 0


@pytest.mark.first_is_quick
def test_launches_that_fail_cost_no_cell(torch: Torch, run_dir: Path) -> None:
    """The device is out of memory for a while, say; more often than there are cells."""
    run = logclient.init("cuda", quiet=True)
    run.log(0, {"value": torch.full(0.0), "host": 0.0})
    torch.gpu.run()
    works = torch.stack

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    torch.stack = fails  # type: ignore[method-assign, assignment]
    for step in range(3_000):
        run.log(step, {"other": torch.full(step), "text": "not the short way"})
    torch.stack = works  # type: ignore[method-assign]
    assert run.status()["left_out"] == 3_000
    assert run.status()["device"]["in_flight"] == 0
    for step in range(1, 500):
        run.log(step, {"value": torch.full(step), "host": float(step), "text": "not the short way"})
        torch.gpu.run()
    assert run.finish(60)
    (found,) = logclient.read(run_dir)
    assert found.series("value").step.tolist() == list(range(500))
    assert run.status()["left_out"] == 3_000


def test_steps_that_no_record_holds_ask_nothing_of_the_device(torch: Torch, run_dir: Path) -> None:
    run = logclient.init("cuda", quiet=True)
    for step in range(3):
        run.log(step, {"value": torch.full(step), "host": float(step)})
    values = {"value": torch.full(0.0), "host": 0.0}
    before = torch.gpu.launches
    for _ in range(3_000):
        run.log(1 << 63, values)
    assert torch.gpu.launches == before and run.status()["refused"] == 3_000
    torch.gpu.run()
    assert checked(run, run_dir, 3)["left_out"] == 0


def test_awaited_records_are_not_forgotten_for_later_ones(
    monkeypatch: pytest.MonkeyPatch, run_dir: Path
) -> None:
    """One device is done and the other hangs, and nobody takes records: those of the one are between the other's."""
    torch = installed(monkeypatch)
    run: Any = logclient.init("cuda", quiet=True)
    wait_until(lambda: run.status()["agent"]["worker"], "the agent runs", 60)
    agent = [run.status()["agent"][name] for name in ("supervisor", "worker")]
    try:
        for pid in agent:
            os.kill(pid, signal.SIGSTOP)
        for step in range(4_000):
            run.log(step, {"value": torch.full(step, index=step % 2), "host": float(step)})
            torch.gpu.default[0].run()
    finally:
        for pid in agent:
            os.kill(pid, signal.SIGCONT)
    torch.gpu.run()
    assert run.finish(60), run.status()
    status = run.status()
    (found,) = logclient.read(run_dir)
    series = found.series("value")
    assert (series.value == series.step).all()
    assert status["left_out"] > 0
    assert len(series.step) + status["left_out"] + status["forgotten"] == 4_000
    awaited = [step for step in series.step.tolist() if step % 2]
    assert awaited == list(range(1, 2 * len(awaited), 2))  # what was on its way came before what was left out


def test_first_values_of_several_threads_at_once(torch: Torch, run_dir: Path) -> None:
    """Locking takes a while: one call does it, and the others go without their device values meanwhile."""
    register = torch.cudaHostRegister

    def slow(*arguments: int) -> int:
        time.sleep(0.1)
        return register(*arguments)

    torch.cudaHostRegister = slow  # type: ignore[method-assign, assignment]
    run = logclient.init("cuda", quiet=True)
    threads = [
        threading.Thread(target=run.log, args=(step, {"value": torch.full(step), "host": float(step)}))
        for step in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for step in range(2, 300):
        run.log(step, {"value": torch.full(step), "host": float(step)})
        torch.gpu.run()
    status = checked(run, run_dir, 300)
    assert status["left_out"] <= 1
    assert len(torch.gpu.locked) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["logclient.shm.cells", "logclient.encode.device_copy", "logclient.encode.device"]
)
@pytest.mark.parametrize("is_handler_logging", [False, True])
def test_first_value_interrupted_at_any_point(
    is_handler_logging: bool, module: str, monkeypatch: pytest.MonkeyPatch, run_dir: Path
) -> None:
    """By a handler that raises, or logs a device value itself: the next values are those of their steps."""
    at, was_reached = 1, True
    while was_reached:
        torch = installed(monkeypatch)
        with opened() as (run, _):
            row = {"value": torch.full(1.0)}
            action = partial(run.log, 2, {"value": torch.full(2.0)}) if is_handler_logging else None
            was_reached = interrupted(run.log, 1, row, at=at, module=module, action=action)
            for step in range(3, 6):
                run.log(step, {"value": torch.full(step)})
                torch.gpu.run()
            status = run.status()
            assert status["left_out"] <= 1, (at, status)
            assert status["device"] == {"way": "registered", "trouble": "", "in_flight": 0}, (at, status)
            area: Any = run._session.encoder.device._cells
            area.words[500] = at  # of the first page, which nobody reads there
            with open(area.path, "rb") as file:  # what the agent opens
                assert file.read()[4000:4008] == at.to_bytes(8, "little"), at
            assert not area.claims and not os.path.exists(f"{area.path}.new"), at
        shutil.rmtree(run._session.shm_dir.path)  # no agent does: each start would look through all of them
        at += 1
    assert at > 20


@pytest.mark.slow
@pytest.mark.parametrize("row", [1, 2])
def test_interrupt_at_any_point_loses_no_lane_no_cell_and_nothing_else(
    row: int, torch: Torch, run_dir: Path
) -> None:
    """A handler that raises, at each point of log() where one can run; what was committed is whole."""
    run: Any = logclient.init("cuda", quiet=True)

    def values(step: int) -> dict[str, Any]:
        return {str(number): torch.full(step) for number in range(row)} | {"host": float(step)}

    for step in range(3):
        run.log(step, values(step))
    at, step, was_reached = 1, 3, True
    while was_reached:
        was_reached = interrupted(run.log, step, values(step), at=at)
        torch.gpu.run()
        at, step = at + 1, step + 1
        assert not run._session.encoder.device._cells.claims, at
    assert at > 20
    run._session.lanes.find_lost()
    assert (len(run._session.lanes.first), len(run._session.lanes.device)) == (1, 2)
    run.log(step, values(step))
    torch.gpu.run()
    assert run.finish(60), run.status()
    assert run.status()["left_out"] <= row * at
    assert run.status()["device"]["in_flight"] == 0
    (found,) = logclient.read(run_dir)
    for key in ("0", "host"):
        series = found.series(key)
        assert (series.value == series.step).all() and len(set(series.step.tolist())) == len(series.step)
    assert found.series("0").step.tolist()[-1] == step


@pytest.mark.slow
def test_handler_that_logs_device_values_itself_at_any_point(torch: Torch, run_dir: Path) -> None:
    """Each of both records has its own values, whichever is committed first."""
    run = logclient.init("cuda", quiet=True)
    for step in range(3):
        run.log(step, {"value": torch.full(step), "host": float(step)})
    at, was_reached, step = 1, True, 3
    while was_reached:

        def handler(of: int = step + 1) -> None:
            run.log(of, {"value": torch.full(of), "host": float(of)})

        of_step = {"value": torch.full(step), "host": float(step)}
        was_reached = interrupted(run.log, step, of_step, at=at, action=handler)
        torch.gpu.run()
        at, step = at + 1, step + 2
    assert at > 20 and run.finish(60), run.status()
    assert run.status()["forgotten"] == run.status()["left_out"] == 0, run.status()
    (found,) = logclient.read(run_dir)
    series = found.series("value")
    assert (series.value == series.step).all()
    assert sorted(series.step.tolist()) == list(range(step - 1))  # the last call was not interrupted


def test_what_is_captured_is_left_out(torch: Torch, run_dir: Path) -> None:
    """Nothing is launched into a graph; with a record that is known and with a new one."""
    run = logclient.init("cuda", quiet=True)
    value = torch.full(1.0)
    run.log(1, {"value": value, "host": 1.0})
    before = torch.gpu.launches
    with torch.gpu.captured(torch.gpu.new_stream()):
        run.log(2, {"value": value, "host": 2.0})
        run.log(3, {"other": value})
    assert torch.gpu.launches == before
    run.log(4, {"value": value, "host": 4.0})
    torch.gpu.run()
    assert run.finish(60)
    assert run.status()["left_out"] == 2
    assert any("graph" in line for line in run.status()["notices"])
    (found,) = logclient.read(run_dir)
    assert found.series("value").step.tolist() == [1, 4]
    assert found.series("host").step.tolist() == [1, 2, 4]


def test_first_value_while_a_graph_is_captured_locks_no_memory_yet(torch: Torch, run_dir: Path) -> None:
    """That would end the capture, and so would asking for an event: both are done later."""
    run = logclient.init("cuda", quiet=True)
    side = torch.gpu.new_stream()
    value = torch.full(1.0)
    with torch.gpu.captured(side):
        run.log(1, {"value": value, "host": 1.0})
    assert not torch.gpu.locked and run.status()["device"]["way"] == ""
    run.log(2, {"value": torch.full(2.0), "host": 2.0})
    with torch.gpu.captured(side):
        run.log(3, {"host": 3.0})
        run.log(4, {"value": value, "host": 4.0})
        assert run.flush(0.01) is False and run.status()["left_out"] == 2
    torch.gpu.run()
    assert run.finish(60), run.status()
    (found,) = logclient.read(run_dir)
    assert found.series("value").step.tolist() == [2] and found.series("value").value.tolist() == [2.0]
    assert found.series("host").step.tolist() == [1, 2, 3, 4]


@pytest.mark.first_is_quick
def test_fork_with_copies_pending(torch: Torch, run_dir: Path) -> None:
    """They stay the parent's; the child logs to lanes of its own and touches none of the parent's memory."""
    run = logclient.init("cuda", quiet=True)
    for step in range(200):
        run.log(step, {"value": torch.full(step), "host": float(step)})
        if step % 50 == 25:
            child = os.fork()
            if not child:
                code = 1
                try:
                    run.log(step, {"child": 1.0, "value": torch.full(step)})
                    code = 0 if run.status()["refused"] == 0 else 2
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    torch.gpu.run()
    assert run.finish(60)

    def of_children() -> list[int]:
        (found,) = logclient.read(run_dir)
        return found.series("child").step.tolist() if "child" in found.keys() else []  # noqa: SIM118

    wait_until(lambda: len(of_children()) == 4, "what dead children left is stored", 60)
    assert of_children() == [25, 75, 125, 175]
    (found,) = logclient.read(run_dir)
    series = found.series("value")
    assert (series.value == series.step).all() and len(series.step) == 200


@pytest.mark.first_is_quick
def test_memory_is_unlocked_when_its_run_is_over(torch: Torch, run_dir: Path) -> None:
    """Not before: with the first value of the next run."""
    for number in range(3):
        run = logclient.init("cuda", quiet=True)
        run.log(1, {"value": torch.full(1.0)})
        torch.gpu.run()
        assert run.finish(60)
        assert len(torch.gpu.locked) <= 1, number

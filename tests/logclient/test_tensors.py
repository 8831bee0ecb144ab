"""Tensors on the CPU: the value of plain ones, at little cost; any other kind is left out and named, never misread."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logclient.session.recorder import Recorder
from tests.lanes import opened

torch: Any = pytest.importorskip("torch")


class Half:
    """A subclass whose storage holds half of what it stands for."""

    @staticmethod
    def make(whole: float) -> Any:
        return torch.tensor(whole / 2).as_subclass(_half())


def _half() -> type:
    class HalfTensor(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(f"asked for {function}")

    return HalfTensor


def _wrapper() -> Any:
    class Wrapper(torch.Tensor):  # type: ignore[misc]
        @staticmethod
        def __new__(cls) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, ())

        @classmethod
        def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(f"asked for {function}")

    return Wrapper()


def _fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        return mode.from_tensor(torch.tensor(3.0))


def _quantized() -> Any:
    return torch.quantize_per_tensor(torch.tensor([0.5]), 0.1, 0, torch.qint8)


def _freed() -> Any:
    """A parameter as FSDP leaves it between two forward passes: the storage is given back."""
    value = torch.ones(1)
    value.untyped_storage().resize_(0)
    return value


@pytest.fixture(autouse=True)
def _no_warnings_of_torch() -> Iterator[None]:
    """Quantized and nested tensors are announced as to be removed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Half.make(3.0), "a subclass of torch.Tensor is not read"),
        (_wrapper, "a subclass of torch.Tensor is not read"),
        (_fake, "FakeTensor: a subclass of torch.Tensor is not read"),
        (_quantized, "a quantized tensor: log value.dequantize()"),
        (lambda: torch.tensor([5.0]).to_sparse(), "log value.to_dense()"),
        (lambda: torch.nested.nested_tensor([torch.tensor([1.0])]), "a nested tensor"),
        (lambda: torch.empty((), device="meta"), "it holds no value"),
        (lambda: torch.nn.parameter.UninitializedParameter(), "a subclass of torch.Tensor is not read"),
        (_freed, "could not be read"),
        (lambda: torch.ones(2), "a tensor of shape (2,)"),
        (lambda: torch.tensor(1 + 2j), "holds complex"),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_what_holds_its_value_elsewhere_is_left_out_and_named(
    run_dir: Path, make: Callable[[], Any], reason: str, after: bool
) -> None:
    """Also under a key that had plain tensors before, which are read the short way."""
    with opened() as (run, file):
        if after:
            for step in range(3):
                run.log(step, {"v": torch.tensor(float(step)), "ok": 1.0})
        run.log(3, {"v": make(), "ok": 1.0})
        run.log(4, {"v": torch.tensor(4.0), "ok": 1.0})
        rows = [record.values for record in file.read()]
        before = [{"v": float(step), "ok": 1.0} for step in range(3)] if after else []
        assert rows == [*before, {"ok": 1.0}, {"v": 4.0, "ok": 1.0}]
        status = run.status()
        assert (status["left_out"], status["refused"]) == (1, 0)
        assert any("'v' is left out" in line and reason in line for line in status["notices"]), status


def test_inside_a_transform_nothing_is_read(run_dir: Path) -> None:
    """A value of `vmap` stands for a whole batch; of `grad` it is one that is being differentiated."""
    with opened() as (run, file):

        def logs(value: Any) -> Any:
            run.log(1, {"v": value.sum(), "ok": 1.0})
            return value.sum() * 2

        torch.vmap(logs)(torch.ones(3, 2))
        torch.func.grad(logs)(torch.ones(2))
        assert [record.values for record in file.read()] == [{"ok": 1.0}] * 2
        assert any("torch.func transform" in line for line in run.status()["notices"])


def test_modes_of_the_user_change_no_value(run_dir: Path) -> None:
    """The value is the tensor's own, whatever a mode around the call would make of it."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.overrides import TorchFunctionMode

    class Doubles(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = function(*args, **(kwargs or {}))
            return found * 2 if function is torch.Tensor.item else found

    value = torch.tensor(1.5)
    with opened() as (run, file):
        for _ in range(3):
            for mode in (FakeTensorMode(), Doubles()):
                with mode:
                    run.log(1, {"v": value, "w": 1.0})
        assert [record.values for record in file.read()] == [{"v": 1.5, "w": 1.0}] * 6
        assert run.status()["left_out"] == 0


def _rows() -> list[dict[str, Any]]:
    parameter = torch.nn.Parameter(torch.tensor(0.25))
    return [
        {"a": torch.tensor(1.5), "b": 2.5},
        {"a": 1.0, "b": torch.tensor(2.0, dtype=torch.bfloat16)},
        {"a": parameter, "b": parameter * 2},
        {"a": torch.tensor([7.0]), "b": torch._neg_view(torch.tensor(3.0))},
        {"a": torch.tensor(3), "b": 4},
        {"a": torch.tensor(True), "b": torch.tensor(5, dtype=torch.uint8)},
        {"a": 5, "b": torch.tensor(2.0)},
        {"a": True, "b": torch.tensor(2.0)},
        {"a": torch.tensor(2**63 - 1), "b": torch.tensor(float("inf"), dtype=torch.float64)},
        {"a": torch.tensor(2**64 - 1, dtype=torch.uint64), "b": 2**70},
        {"a": "text", "b": torch.tensor(1.0)},
        {"a": 1.0, "b": 2.0},
    ]


def test_types_may_change_with_every_call(run_dir: Path) -> None:
    """The keys alone say nothing: numbers and tensors of every type arrive as what they are, in any order."""
    rows = _rows()
    plain = [{k: v.item() if torch.is_tensor(v) else v for k, v in row.items()} for row in rows]
    with opened() as (run, file):
        order = [(first + second) % len(rows) for first in range(len(rows)) for second in range(len(rows))]
        for index in order:
            run.log(index, rows[index])
        found = [record.values for record in file.read()]
        assert found == [plain[index] for index in order]
        assert [[type(value) for value in row.values()] for row in found] == [
            [type(value) for value in plain[index].values()] for index in order
        ]
        assert run.status()["left_out"] == run.status()["refused"] == 0


def test_a_value_is_that_of_the_call(run_dir: Path) -> None:
    """What is done to the tensor afterwards changes no record."""
    value = torch.tensor(0.0)
    with opened() as (run, file):
        for step in range(100):
            run.log(step, {"v": value, "n": 1.0})
            value.add_(1)
        assert [record.values["v"] for record in file.read()] == [float(step) for step in range(100)]


def test_usual_records_go_the_short_way(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second call on nothing but the hot path takes them, for another rank too."""
    row = {"loss": torch.tensor(1.5), "lr": 0.1, "seen": torch.tensor(3), "step": 4}
    with opened() as (run, file):
        ranked = run.as_rank(3)
        for each in (run, ranked):
            each.log(0, {"loss": row["loss"], "lr": 0.1})
            each.log(0, row)

        def other(*_: Any) -> None:
            raise AssertionError("not the hot path")

        monkeypatch.setattr(Recorder, "log_other", other)
        for each in (run, ranked):
            each.log(1, row)
            each.log(1, {"loss": row["loss"], "lr": torch.tensor(0.1)})
        monkeypatch.undo()
        assert len(list(file.read())) == 8
        assert run.status()["refused"] == 0

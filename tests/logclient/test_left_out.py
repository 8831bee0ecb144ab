"""What is no value: left out, counted, named once per key, never touched where that could wait; the rest arrives."""

from __future__ import annotations

import math
from collections import OrderedDict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from logclient.encode.values import MAX_POINTS, MAX_TEXT
from tests.lanes import logged, opened

torch: Any = pytest.importorskip("torch")


class Untouchable:
    """As a value on a device: whatever reads it would wait for ever."""

    def _wait(self, *_: Any) -> Any:
        raise AssertionError("read")

    __float__ = __int__ = __index__ = __bool__ = __len__ = __iter__ = __repr__ = __str__ = item = tolist = (
        _wait
    )
    __array__ = __getattr__ = __format__ = _wait

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("asked for its class")

    __hash__ = object.__hash__


def test_device_values_are_never_touched(run_dir: Path) -> None:
    """As value, nested value, step and key: the type alone is looked at."""
    device = torch.empty((), device="meta")
    with opened() as (run, file):
        for value in (device, Untouchable()):
            run.log(1, {"v": value, "deep": {"v": value}, "ok": 1.0})
            run.log(value, {"ok": 1.0})
            run.log(2, {value: 1.0, (1, value): 1.0, "ok": 1.0})
            run.summary["v"] = value
            run.summary["deep"] = {"v": [value]}
        assert [record.values for record in file.read()] == [{"ok": 1.0}] * 4
        status = run.status()
        assert (status["left_out"], status["refused"]) == (8, 2)
        assert any("device meta" in line for line in status["notices"])


class Lists:
    def tolist(self) -> Lists:
        return self


class Raises:
    def __float__(self) -> float:
        raise ValueError("no")


def test_case_r2_02_every_kind_in_one_call(run_dir: Path) -> None:
    """Case R2-02: scalars arrive exact, the rest is left out, named once per key and counted; `ok` always lands."""
    row = {
        "bf16": torch.tensor(1.5, dtype=torch.bfloat16),
        "fp16": torch.tensor([1.5], dtype=torch.float16),
        "float32": np.float32(1.5),
        "int64": np.int64(7),
        "bool": np.bool_(True),
        "three": torch.ones(3),
        "none": None,
        "big": 2**70,
        "decimal": Decimal("1.5"),
        "lists": Lists(),
        "raises": Raises(),
        "ok": 1.0,
    }
    with opened() as (run, file):
        for step in range(3):
            run.log(step, row)
        records, status = file.read(), run.status()
        for record in records:
            assert record.values == {
                "bf16": 1.5, "fp16": 1.5, "float32": 1.5, "int64": 7, "bool": True, "big": 2**70, "decimal": 1.5,
                "ok": 1.0,
            }  # fmt: skip
        assert status["left_out"] == 12 == file.left_out and status["refused"] == 0
        for key, kind in {
            "three": "shape (3,)",
            "none": "None",
            "lists": "Lists",
            "raises": "Raises",
        }.items():
            assert sum(repr(key) in line and kind in line for line in status["notices"]) == 1


@pytest.mark.parametrize(
    "value",
    [
        b"bytes", [1.0], (1.0,), {1.0}, 1j, object(), int, math, lambda: 1, SimpleNamespace(), "x" * (MAX_TEXT + 1),
        "\ud800", 1 << 9000, Decimal("sNaN"), Fraction(10**400, 1), np.ones(2), np.array([]), np.array(None),
        np.str_("x" * 5000),
        np.datetime64("2020-01-01"), np.ma.masked, np.complex64(1), np.void(b"12"), torch.empty(0), torch.tensor(1j),
        torch.ones(3).to_sparse(), OrderedDict, NotImplemented, ...,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_what_is_no_scalar_costs_one_point(value: Any, run_dir: Path) -> None:
    """Left out, counted and named; every other value of that same call arrives."""
    record, status = logged({"before": 1, "v": value, "after": 2.0})
    assert record.values == {"before": 1, "after": 2.0}
    assert (status["left_out"], status["refused"], len(status["notices"])) == (1, 0, 1)
    assert status["notices"][0].startswith("'v' is left out and counted: ")


def test_numbers_beyond_ten_thousand_are_counted_not_looked_at(run_dir: Path) -> None:
    """A record has a limit; the ones beyond it are left out by number, with one notice."""
    record, status = logged({str(i): float(i) for i in range(MAX_POINTS + 5)})
    assert record.values == {str(i): float(i) for i in range(MAX_POINTS)}
    assert status["left_out"] == 5 and len(status["notices"]) == 1

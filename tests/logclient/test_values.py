"""What may be a value: every number exact or flagged, everything else left out, counted and named once."""

from __future__ import annotations

import enum
import math
import struct
import warnings
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logclient.encode.values import MAX_TEXT
from tests.lanes import logged, opened

torch: Any = pytest.importorskip("torch")


class Colour(enum.IntEnum):
    RED = 3


class Word(str):
    __slots__ = ()


def same(a: Any, b: Any) -> bool:
    """Equal as bits, and of one type."""
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize(
    ("value", "code", "expected"),
    [
        (1.5, "d", 1.5),
        (-0.0, "d", -0.0),
        (math.nan, "d", math.nan),
        (math.inf, "d", math.inf),
        (-math.inf, "d", -math.inf),
        (5e-324, "d", 5e-324),
        (True, "b", True),
        (0, "q", 0),
        (2**53 + 1, "q", 2**53 + 1),
        (-(2**63), "q", -(2**63)),
        (2**63, "i", 2**63),
        (2**70, "i", 2**70),
        (-(2**64) - 1, "i", -(2**64) - 1),
        (Colour.RED, "q", 3),
        ("text", "s", "text"),
        (Word("word"), "s", "word"),
        ("", "s", ""),
        ("損失 \U0001f600", "s", "損失 \U0001f600"),
        ("x" * MAX_TEXT, "s", "x" * MAX_TEXT),
        (Decimal("0.5"), "d", 0.5),
        (Decimal("0.1"), "r", 0.1),
        (Decimal("NaN"), "d", math.nan),
        (Decimal("Infinity"), "d", math.inf),
        (Fraction(1, 4), "d", 0.25),
        (Fraction(1, 3), "r", 1 / 3),
        (type("MyDecimal", (Decimal,), {})("0.5"), "d", 0.5),
        (type("MyFloat", (float,), {"__float__": None})(2.5), "d", 2.5),
    ],
)
def test_python_numbers_and_texts_arrive_exact_or_flagged(
    value: Any, code: str, expected: Any, run_dir: Path
) -> None:
    """One value alone and beside others: the code tells what it was, `r` that it was rounded."""
    for row in ({"v": value}, {"v": value, "ok": 1.0, "n": 7}):
        record, status = logged(row)
        assert record.codes["v"] == code and same(record.values["v"], expected)
        assert status["left_out"] == 0


# others that are loaded, ml_dtypes say, add theirs
OWN_SCALARS = [name for name, kind in np.sctypeDict.items() if kind.__module__ == "numpy"]


@pytest.mark.parametrize("name", sorted(OWN_SCALARS, key=str))
def test_numpy_scalars_of_every_width(name: Any, run_dir: Path) -> None:
    """Each numeric type, as scalar, as 0-d and as 1-element array; what is no number is left out."""
    kind = np.sctypeDict[name]
    if kind in (np.void, np.object_, np.datetime64):
        return
    for make in (kind, lambda x: np.array(x, dtype=kind), lambda x: np.array([[x]], dtype=kind)):
        value = make(1)
        record, status = logged({"v": value, "ok": 1.0})
        assert record.values["ok"] == 1.0
        if np.dtype(kind).kind in "biuf":
            assert record.codes["v"] == {"b": "b", "i": "q", "u": "q", "f": "d"}[np.dtype(kind).kind]
            assert record.values["v"] == 1
        elif np.dtype(kind).kind == "U" and isinstance(value, str):
            assert record.values["v"] == "1"
        else:
            assert status["left_out"] == 1 and "v" not in record.values


@pytest.mark.parametrize(
    ("value", "code", "expected"),
    [
        (np.float32(0.1), "d", float(np.float32(0.1))),
        (np.float16(65504), "d", 65504.0),
        (np.float64(0.1), "d", 0.1),
        (np.uint64(2**64 - 1), "i", 2**64 - 1),
        (np.int64(-(2**63)), "q", -(2**63)),
        (np.bool_(True), "b", True),
        (np.float32("nan"), "d", math.nan),
        (np.longdouble(0.5), "d", 0.5),
        (np.longdouble(1) / 3, "r", float(np.longdouble(1) / 3)),
        (np.array([np.longdouble(1) / 3]), "r", float(np.longdouble(1) / 3)),
        (np.ma.array(2.5), "d", 2.5),
    ],
)
def test_numpy_values_are_exact_or_flagged(value: Any, code: str, expected: Any, run_dir: Path) -> None:
    """float32 as the double it is, uint64 beyond 63 bits, longdouble flagged where a float does not hold it."""
    record, _ = logged({"v": value})
    assert record.codes["v"] == code and same(record.values["v"], expected)


def torch_types() -> dict[str, Any]:
    """A 1 of each type that torch can make one of."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in {kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}:
            try:
                one = torch.ones((), dtype=dtype)
                one.item()
            except (RuntimeError, NotImplementedError):
                continue
            found[str(dtype).removeprefix("torch.")] = one
    assert {"float64", "bfloat16", "float8_e4m3fn", "uint64", "bool", "complex64"} <= found.keys()
    return found


TORCH_ONES = torch_types()


@pytest.mark.parametrize("name", sorted(TORCH_ONES))
def test_torch_scalars_of_every_type(name: str, run_dir: Path) -> None:
    """0-d and 1-element CPU tensors of each type that can hold a number, bf16 and float8 too."""
    one = TORCH_ONES[name]
    for value in (one, one.reshape(1, 1)):
        record, status = logged({"v": value, "ok": 1.0})
        assert record.values["ok"] == 1.0
        if one.is_complex():
            assert status["left_out"] == 1 and "v" not in record.values
        else:
            assert same(record.values["v"], one.item())


def test_torch_values_are_read_as_they_are(run_dir: Path) -> None:
    """With a gradient, as a parameter, as one element of a view; large ints exact."""
    parameter = torch.nn.Parameter(torch.tensor(1.5))
    record, _ = logged(
        {
            "grad": torch.tensor(0.25, requires_grad=True) * 2,
            "parameter": parameter,
            "view": torch.arange(5)[3],
            "big": torch.tensor(2**63 - 1),
            "unsigned": torch.tensor(2**64 - 1, dtype=torch.uint64),
        }
    )
    assert record.values == {
        "grad": 0.5,
        "parameter": 1.5,
        "view": 3,
        "big": 2**63 - 1,
        "unsigned": 2**64 - 1,
    }


def test_ml_dtypes_scalars(run_dir: Path) -> None:
    """Each scalar type of ml_dtypes, exact; skipped where that is not installed."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"):
        kind = getattr(ml_dtypes, name)
        for value in (kind(1), np.array([1], dtype=kind)):
            record, _ = logged({"v": value})
            assert record.values["v"] == 1 and record.codes["v"] == ("q" if "int" in name else "d")


def test_types_may_change_from_call_to_call(run_dir: Path) -> None:
    """The key set alone says nothing of the types: each value arrives as what it is, whatever came before."""
    values: list[Any] = [
        1.0,
        1,
        True,
        2**70,
        "t",
        np.float32(1.5),
        np.float64(2.5),
        torch.tensor(3.5),
        Colour.RED,
        1.0,
        False,
    ]
    with opened() as (run, file):
        for _ in range(3):
            for step, value in enumerate(values):
                run.log(step, {"a": value, "b": 0.5})
        got = [record.values["a"] for record in file.read()]
        expected = [1.0, 1, True, 2**70, "t", 1.5, 2.5, 3.5, 3, 1.0, False] * 3
        assert all(map(same, got, expected)), got

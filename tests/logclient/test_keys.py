"""Names of series: kept verbatim where legal, else escaped; distinct paths never meet."""

from __future__ import annotations

import enum
import time
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logclient.encode import keys, values
from logclient.encode.values import MAX_DEPTH, MAX_POINTS
from tests.lanes import LaneFile, opened


class Colour(enum.Enum):
    RED = 1


def paths(tree: dict[Any, Any], parent: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All paths to leaves; keys with their types, as 1 and "1" are two."""
    found: list[tuple[Any, ...]] = []
    for key, value in tree.items():
        here = (*parent, (type(key).__name__, key))
        found += paths(value, here) if type(value) is dict else [here]
    return found


NASTY = (
    "::",
    ":",
    "a",
    "b",
    "~",
    "\0",
    "/",
    ".",
    "1",
    "é",
    "\u0301",
    "x" * 300,
    "~a~0123456789abcdef",
    "損",
    " ",
    "(",
    "'",
    ",",
)
TEXTS = st.lists(st.sampled_from(NASTY), max_size=4).map("".join) | st.text(max_size=6)
KEYS = (
    TEXTS
    | st.integers(-3, 12)
    | st.floats(allow_nan=False)
    | st.none()
    | st.booleans()
    | st.binary(max_size=2)
    | st.tuples(TEXTS | st.integers(0, 2))
    | st.sampled_from([Colour.RED, 10**600, "1", "None", "True", "1.5", "RED"])
)
TREES = st.recursive(
    st.just(1.0),
    lambda leaves: st.dictionaries(KEYS, leaves, max_size=5),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, TREES, max_size=6))
@example({"a": {":b": 1.0}, "a:": {"b": 1.0}, "a:::b": 1.0})
@example({"a::b": 1.0, "a": {"b": 1.0}})
@example({"a:": {"b": 1.0}, "a:\0b": 1.0})
@example({"x" * 300: {"y" * 300: 1.0}, "x" * 300 + "::" + "y" * 300: 1.0})
@example({("a::b",): 1.0, "tuple ('a::b')": 1.0, "tuple ('a::b',)": 1.0})
@example({"": {"": 1.0}, "::": 1.0, "\0": 1.0, "\0\0": 1.0})
@example({keys.escape("::"): 1.0, "::": 1.0})
@example({5: 1.0, "5": 1.0, 5.5: 1.0, "5.5": 1.0, None: 1.0, "None": 1.0})
def test_distinct_paths_have_distinct_names(tree: dict[Any, Any]) -> None:
    """The rule is free of collisions, whatever strings, numbers and tuples the path is made of."""
    points = values.collect(tree)
    assert points.left_out == 0
    assert len(points.names) == len(paths(tree))
    assert len(set(points.names)) == len(points.names)
    for name in points.names:
        assert 0 < len(name.encode()) <= keys.MAX_BYTES and "\0" not in name


@given(TEXTS)
def test_legal_strings_are_kept_verbatim(name: str) -> None:
    """A name is itself or looks escaped, and what looks escaped is never legal."""
    shown = keys.name_of(name)
    if keys.is_legal(name):
        assert shown == name
    else:
        assert shown != name and not keys.is_legal(shown)


@given(TEXTS, TEXTS)
def test_names_do_not_depend_on_other_keys(name: str, other: str) -> None:
    """A series keeps its name from call to call, whatever is logged with it."""
    alone = values.collect({name: 1.0}).names[0]
    assert values.collect({other: 0.0, name: 1.0}).names[-1] == alone


def test_case_r2_04_every_odd_key_in_one_call(run_dir: Path) -> None:
    """Case R2-04: nothing raises, `ok` lands, legal strings are verbatim and distinct, the rest is escaped."""
    composed, decomposed = unicodedata.normalize("NFC", "café"), unicodedata.normalize("NFD", "café")
    legal = [
        "timing(s)/gen", "val/AR@100", "a//b", "/a", "a/", "a", "a/b", "Loss", "loss", "損失", "\U0001f600", " leading",
        "trailing ", composed, decomposed, "..", "new\nline", "ok", "損" * 170,
    ]  # fmt: skip
    escaped = ["", "nul\0\n", "x" * 10_000, "x" * 9_999 + "y", "a::b", "\ud800", keys.escape("a")]
    row: dict[Any, Any] = {key: float(number) for number, key in enumerate([*legal, *escaped, 3])}
    with opened() as (run, file):
        run.log(1, row)
        (record,) = file.read()
        assert run.status()["left_out"] == run.status()["refused"] == 0
    assert list(record.values.values()) == list(row.values())
    names = list(record.values)
    assert names[: len(legal)] == legal
    assert all(name.startswith("~") for name in names[len(legal) : -1]) and names[-1] == "3"


def test_case_r2_57_nested_metrics(run_dir: Path) -> None:
    """Case R2-57: three different keys stay three; lists are no points; an int key is its digits."""
    row = {"a": {"b": 1}, "a.b": 2, "a/b": 3, "enc": ["x", {"y": 4}], 5: 6}
    with opened() as (run, file):
        run.log(1, row)
        (record,) = file.read()
        assert record.values == {"a::b": 1, "a.b": 2, "a/b": 3, "5": 6}
        assert run.status()["left_out"] == 1 and "'enc'" in run.status()["notices"][0]


def test_case_r2_57_depth_and_self_reference_are_cut(run_dir: Path) -> None:
    """Case R2-57: 40 levels and a dict that holds itself cost one point each, and one notice each."""
    deep: dict[str, Any] = {"leaf": 1.0}
    for _ in range(40):
        deep = {"d": deep}
    itself: dict[str, Any] = {"x": 1.0}
    itself["me"] = itself
    fits: dict[str, Any] = {"leaf": 1.0}
    for _ in range(MAX_DEPTH - 2):
        fits = {"d": fits}
    with opened() as (run, file):
        for _ in range(3):
            run.log(1, {"deep": deep, "self": itself, "fits": fits, "ok": 1.0})
        for record in file.read():
            assert record.values == {
                "self::x": 1.0,
                "::".join(["fits", *"d" * (MAX_DEPTH - 2), "leaf"]): 1.0,
                "ok": 1.0,
            }
        status = run.status()
        assert status["left_out"] == 6 and len(status["notices"]) == 2


def test_case_r2_57_a_hundred_thousand_leaves(run_dir: Path) -> None:
    """Case R2-57: the first ten thousand arrive, the rest is counted; the time is bounded by that limit."""
    flat = {f"k{i}": float(i) for i in range(100_000)}
    nested = {f"outer{i}": {f"k{j}": 1.0 for j in range(1000)} for i in range(100)}
    shared: dict[str, Any] = {}
    for _ in range(40):
        shared = {"a": shared, "b": shared}
    with opened() as (run, file):
        for name, row in (("flat", flat), ("nested", nested), ("2^40 paths", {"shared": shared, "ok": 1.0})):
            begun = time.perf_counter()
            run.log(1, row)
            print(f"log() of {name}: {1e3 * (time.perf_counter() - begun):.1f} ms")
        first, second, third = file.read()
        assert len(first.values) == MAX_POINTS and len(second.values) + 100 == MAX_POINTS
        assert third.values == {"ok": 1.0}
        assert file.left_out > 90_000 + 90_000


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (3, "3"),
        (-1, "-1"),
        (True, "True"),
        (None, "None"),
        (1.5, "1.5"),
        (np.int64(7), "7"),
        (np.str_("n"), "n"),
    ],
)
def test_plain_keys_are_their_text(key: Any, name: str, run_dir: Path) -> None:
    """Also NumPy's ints, as class numbers are; escaped only beside a string that looks the same."""
    with opened() as (run, file):
        run.log(1, {key: 1.0})
        run.log(1, {key: 1.0, name: 2.0, "ok": 3.0})
        first, second = file.read()
        assert first.values == {name: 1.0}
        assert second.values[name] in (1.0, 2.0) and second.values["ok"] == 3.0
        assert len(second.values) == (2 if key == name else 3)


def test_keys_that_have_no_name_cost_their_points_only(run_dir: Path) -> None:
    """An object's text is an address, a tensor's a wait: left out, counted, named by type."""
    with opened() as (run, file):
        run.log(1, {object(): 1.0, "ok": 2.0, float("nan"): 1.0, frozenset("a"): {"x": 1.0, "y": 2.0}})
        assert [record.values for record in file.read()] == [{"ok": 2.0}]
        assert run.status()["left_out"] == 3
        assert any("a key of type object" in line for line in run.status()["notices"])


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.binary(max_size=5),
    st.complex_numbers(),
    st.lists(st.integers(), max_size=2), st.decimals(), st.fractions(), st.dates(), st.just(object()), st.just(len),
)  # fmt: skip
ODD_TREES = st.recursive(ODD, lambda inner: st.dictionaries(KEYS, inner, max_size=4), max_leaves=8)


@given(
    st.lists(
        st.tuples(
            ODD, st.dictionaries(KEYS | st.dates() | st.frozensets(st.integers()), ODD_TREES, max_size=5)
        ),
        max_size=5,
    )
)
def test_log_never_raises_and_ok_always_lands(calls: list[tuple[Any, dict[Any, Any]]]) -> None:
    """Any step and any dict: counted, and never at the cost of a neighbour."""
    run, file = shared_run()
    run.log(0, {"ok": 1.0})
    file.read()
    before = run.status()
    for step, row in calls:
        run.log(step, row)
        run.log(1, {**row, "ok": 1.5})
    records, after = file.read(), run.status()
    assert sum(record.values.get("ok") == 1.5 for record in records) == len(calls)
    assert len(records) + after["refused"] - before["refused"] == 2 * len(calls)


_shared: list[Any] = []


def shared_run() -> tuple[Any, LaneFile]:
    """One run for all examples: making one costs more than they do."""
    return _shared[0], _shared[1]


@pytest.fixture(autouse=True)
def _share(request: pytest.FixtureRequest) -> Any:
    if "never_raises" not in request.node.name:
        yield
        return
    request.getfixturevalue("run_dir")
    with opened() as (run, file):
        _shared[:] = [run, file]
        yield
    _shared.clear()

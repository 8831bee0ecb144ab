"""Curves as text."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient_backend.runs.curve import GAP_MARK, MAX_CELLS, ODD_MARK, Curve

FLOATS = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(2**1100), 2**1100) | st.booleans()


def drawn(curve: Curve, width: int = 40, height: int = 6, **how: Any) -> list[str]:
    return curve.draw(width, height, **how).lines


def test_falling_curve_falls() -> None:
    """The picture that people know."""
    curve = Curve()
    curve.add(range(100), [100.0 - step for step in range(100)])
    lines = drawn(curve, 30, 4)
    firsts = [len(line) - len(line.split("┤")[1].lstrip(" ")) for line in lines[:4]]
    assert firsts == sorted(firsts)
    assert [line.split("┤")[0].strip() for line in lines[:4]] == ["100", "", "", "1"]
    assert lines[-1].split() == ["0", "99"]


def test_spike_of_one_step_stays() -> None:
    """Lowest and highest of each column are drawn: one step of a million is seen."""
    curve = Curve()
    for start in range(0, 1_000_000, 50_000):
        curve.add(range(start, start + 50_000), [1.0] * 50_000)
    curve.add([567_890], [50.0])
    drawing = curve.draw(60, 8)
    assert drawing.high == 50.0
    assert sum(line.count("⡇") + line.count("⢸") for line in drawing.lines) >= 6
    assert len(curve.cells) <= MAX_CELLS


def test_nan_and_infinities_are_marked_and_counted() -> None:
    """They are not drawn, do not spoil the axis, and are not passed over."""
    curve = Curve()
    curve.add(range(10), [1.0, math.nan, 2.0, math.inf, -math.inf, 3.0, 1.0, 1.0, 1.0, 1.0])
    drawing = curve.draw(60, 5)
    assert (drawing.low, drawing.high, drawing.odd) == (1.0, 3.0, 3)
    assert drawing.lines[5].count(ODD_MARK) == 3


def test_only_nan_draws_an_empty_frame() -> None:
    """Nothing to draw is no failure."""
    curve = Curve()
    curve.add([1, 2], [math.nan, math.nan])
    assert "⠁" not in "".join(drawn(curve))
    assert drawn(Curve())[-1].strip() == "0"


def test_stray_step_does_not_spoil_the_axis() -> None:
    """C8-2: a stray row at step 10,000,000 is left outside, and said."""
    curve = Curve()
    curve.add([10_000_000], [1.0])
    curve.add(range(1000), [math.sin(step / 50) for step in range(1000)])
    drawing = curve.draw(60, 6)
    assert (drawing.first, drawing.last, drawing.hidden) == (0, 999, 1)


def test_half_of_the_points_are_no_strays() -> None:
    """Two stretches far apart are both drawn."""
    curve = Curve()
    curve.add(range(100), [1.0] * 100)
    curve.add(range(10**6, 10**6 + 100), [2.0] * 100)
    drawing = curve.draw(60, 6)
    assert (drawing.first, drawing.last, drawing.hidden) == (0, 10**6 + 99, 0)


def test_gap_is_marked_on_the_axis_and_not_bridged() -> None:
    """P5: what is missing is shown next to the curve."""
    curve = Curve()
    curve.add(range(100), [1.0] * 100)
    curve.add(range(200, 300), [1.0] * 100)
    with_gap = curve.draw(62, 5, gaps=[(99, 200), (5000, 6000)])
    assert with_gap.gaps == [(99, 200)]
    assert 15 <= with_gap.lines[5].count(GAP_MARK) <= 24
    middle = with_gap.lines[2].split("┤")[1]
    assert "    " in middle and middle.strip(" ")
    bridged = curve.draw(62, 5).lines[2].split("┤")[1]
    assert "    " not in bridged.strip()


def test_same_curve_whatever_the_order() -> None:
    """Steps may come in any order, one by one or in blocks."""
    steps = list(range(20_000))
    values = [math.cos(step / 999) for step in steps]
    in_blocks = Curve()
    for at in range(0, len(steps), 777):
        in_blocks.add(steps[at : at + 777], values[at : at + 777])
    shuffled = Curve()
    order = steps[:]
    random.Random(1).shuffle(order)
    shuffled.add(order, [values[step] for step in order])
    assert drawn(in_blocks, 70, 8) == drawn(shuffled, 70, 8)


@pytest.mark.parametrize("ascii_only", [False, True])
@given(
    points=st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), FLOATS), max_size=40),
    width=st.integers(1, 80),
)
def test_anything_can_be_drawn(ascii_only: bool, points: list[tuple[int, Any]], width: int) -> None:
    """Any step and any number gives lines of one width, and no failure."""
    curve = Curve(most_cells=8)
    curve.add([step for step, _ in points], [value for _, value in points])
    drawing = curve.draw(width, 5, ascii_only=ascii_only)
    assert len(drawing.lines) == 7
    assert len(curve.cells) <= 8
    assert curve.points == len(points)
    if ascii_only:
        assert "".join(drawing.lines).isascii()


@given(
    parts=st.lists(st.lists(st.tuples(st.integers(0, 500), st.floats(-5, 5)), max_size=30), max_size=4),
    most=st.integers(2, 64),
)
def test_merging_keeps_points_and_extremes(parts: list[list[tuple[int, float]]], most: int) -> None:
    """Curves of several attempts together hold what they held apart."""
    whole = Curve(most)
    for part in parts:
        curve = Curve(most)
        curve.add([step for step, _ in part], [value for _, value in part])
        whole.merge(curve)
    flat = [value for part in parts for _, value in part]
    assert sum(cell.points for cell in whole.cells.values()) == whole.points == len(flat)
    assert len(whole.cells) <= most
    if flat:
        assert min(cell.low for cell in whole.cells.values()) == min(flat)
        assert max(cell.high for cell in whole.cells.values()) == max(flat)

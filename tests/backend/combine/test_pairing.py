"""A series over another key is what its rule says: last known value at or before; what cannot be placed is counted."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from logclient_backend.combine.pairing import never_falls, pair
from logclient_backend.combine.part import coarser
from tests.backend.combine.parts import Points, part, series


def x_of(points: Points, step: int) -> float | None:
    """The rule, point by point."""
    known = [value for at, value in points if at <= step]
    return known[-1] if known and math.isfinite(known[-1]) else None


@given(series, series)
@example([(0, 1.0), (5, 2.0)], [(-1, 9.0), (0, 8.0), (4, 7.0), (5, math.nan), (6, 5.0)])
@example([(0, -1.7e308), (1, 1.7e308)], [(0, 1.0), (1, 2.0)])
def test_each_point_has_the_last_known_x(x: Points, y: Points) -> None:
    """With as many ranges as points: each where the rule puts it, the rest counted."""
    made = pair(part(x), part(y), 1 << 40)
    placed = [(at, value) for step, value in y if (at := x_of(x, step)) is not None]
    assert made.left_out == len(y) - len(placed)
    assert made.count.sum() == len(placed)
    finite = [value for _, value in x if math.isfinite(value)]
    assert made.is_rising == all(a <= b for a, b in pairwise(finite))
    assert made.nans.sum() == sum(math.isnan(value) for _, value in placed)
    if not made.is_rising:
        assert made.x.tolist() == [at for at, _ in placed]
        assert np.array_equal(made.last, np.array([value for _, value in placed]), equal_nan=True)


@given(series, series, st.integers(1, 8), st.booleans())
def test_ranges_keep_what_sticks_out(x: Points, y: Points, most: int, sort: bool) -> None:
    """The lowest and the highest value stay, with the x where they are, whether x falls or not."""
    if sort:
        x = list(
            zip(
                [step for step, _ in x], sorted(value for _, value in x if math.isfinite(value)), strict=False
            )
        )
    made = pair(part(x), part(y), most)
    assert len(made) <= most
    placed = [(at, value) for step, value in y if (at := x_of(x, step)) is not None and math.isfinite(value)]
    if placed:
        low, high = np.nanargmin(made.min), np.nanargmax(made.max)
        assert (made.min_x[low], made.min[low]) in placed and (made.max_x[high], made.max[high]) in placed
        assert made.min[low] == min(value for _, value in placed)
        assert made.max[high] == max(value for _, value in placed)
    else:
        assert np.isnan(made.min).all()


def test_two_runs_lie_over_each_other_by_epoch() -> None:
    """R2-44: batches of 16 and 2,048, epoch and samples logged by calls of their own, each at its own pace."""
    for batch in (16, 2048):
        steps = 4 * 65536 // batch
        loss = [(step, 10 - step * batch / 65536) for step in range(steps)]
        epoch = [(step, step * batch / 65536) for step in range(0, steps, max(1, 8192 // batch))]
        samples = [(step, float(step * batch)) for step in range(3, steps, 5)]
        over = pair(part(epoch), part(loss), 1 << 40)
        assert (over.is_rising, over.left_out) == (True, 0)
        assert np.abs(over.max - (10 - over.max_x)).max() < 8192 / 65536
        over = pair(part(samples), part(loss), 1 << 40)
        assert over.left_out == 3
        assert np.abs(over.max - (10 - over.max_x / 65536)).max() < 5 * batch / 65536


def test_a_range_of_x_leaves_nothing_out() -> None:
    """Points beyond its ends are neither in it nor counted as not known."""
    x = part([(step, step / 10) for step in range(5, 100)])
    y = part([(step, float(step)) for step in range(100)])
    made = pair(x, y, 1000, first_x=2.0, last_x=3.0)
    assert (made.left_out, made.count.sum(), made.min[0], made.max[-1]) == (5, 11, 20.0, 30.0)
    assert never_falls(coarser(x, 8)) and not never_falls(part([(0, 1.0), (1, 0.0)]))

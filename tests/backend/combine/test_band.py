"""A band over runs is what its rule says, point by point, whatever the runs' lengths, steps and odd values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from logclient_backend.combine import band as module
from logclient_backend.combine.band import band, same_width
from logclient_backend.combine.part import coarser
from tests.backend.combine.parts import Points, part, series

QUANTILES = (0.0, 0.25, 0.5, 0.9, 1.0)


def expected(runs: Sequence[Points], start: int, width: int) -> tuple[int, list[float], list[float]]:
    """The rule, run by run: how many count, their finite values, and all finite values of the range."""
    count, last, ranged = 0, [], []
    for points in runs:
        inside = [value for step, value in points if start <= step < start + width]
        before = [value for step, value in points if step < start]
        if not inside and not (before and any(step >= start + width for step, _ in points)):
            continue
        count += 1
        known = inside[-1] if inside else before[-1]
        last.append(known)
        ranged += inside or [known]
    return count, list(filter(math.isfinite, last)), list(filter(math.isfinite, ranged))


@given(st.lists(series, min_size=1, max_size=6), st.sampled_from([1, 2, 8, 64]))
@example([[(0, 1.0), (9, 2.0)], [(4, 7.0)]], 1)
@example([[(0, 1e308)], [(0, 1e308)], [(0, 1.7e308)]], 1)
def test_band_is_the_rule(runs: list[Points], width: int) -> None:
    """Counts, mean, range and quantiles of each bucket are those of a loop over the points."""
    made = band([coarser(part(points), width) for points in runs], QUANTILES)
    starts = sorted({step // width * width for points in runs for step, _ in points})
    assert made.start.tolist() == starts
    for at, start in enumerate(starts):
        count, last, ranged = expected(runs, start, width)
        assert (made.runs[at], made.finite[at]) == (count, len(last))
        found = [value for points in runs for step, value in points if start <= step < start + width]
        assert made.nans[at] == sum(map(math.isnan, found))
        assert made.infs[at] == found.count(math.inf) and made.neg_infs[at] == found.count(-math.inf)
        if ranged:
            assert (made.min[at], made.max[at]) == (min(ranged), max(ranged))
        else:
            assert math.isnan(made.min[at]) and math.isnan(made.max[at])
        if not last:
            assert math.isnan(made.mean[at])
            assert all(math.isnan(column[at]) for column in made.quantiles.values())
            continue
        mean = math.fsum(value / len(last) for value in last)
        assert math.isclose(made.mean[at], mean, rel_tol=1e-9, abs_tol=1e-6)
        for quantile, column in made.quantiles.items():
            with np.errstate(over="ignore"):
                wanted = float(np.quantile(np.array(last) / 4, quantile)) * 4
            assert math.isclose(column[at], wanted, rel_tol=1e-9, abs_tol=1e-6)


def test_large_bands_are_made_in_pieces() -> None:
    """Memory is bounded by pieces, and they are one band."""
    runs = [
        part([(step, float(step * number)) for step in range(number, 300, number)]) for number in (1, 2, 7)
    ]
    whole = band(runs, QUANTILES)
    before = module._CELLS
    try:
        module._CELLS = 50
        pieces = band(runs, QUANTILES)
    finally:
        module._CELLS = before
    for name in ("start", "runs", "finite", "mean", "min", "max", "nans", "infs", "neg_infs"):
        assert getattr(whole, name).tolist() == getattr(pieces, name).tolist()
    assert all(whole.quantiles[at].tolist() == pieces.quantiles[at].tolist() for at in QUANTILES)


def test_parts_of_several_widths_come_to_one() -> None:
    """The coarsest width, or a coarser one where that leaves too many buckets; nothing sticks out less."""
    long = part([(step, 1.0 if step == 77 else 0.0) for step in range(100)])
    wide = coarser(part([(step, -1.0) for step in range(0, 400, 10)]), 16)
    same, width = same_width([(long, 1), (wide, 16)], 10)
    assert width == 64
    made = band(same)
    assert made.start.tolist() == list(range(0, 400, 64))
    assert made.max.tolist() == [0.0, 1.0, -1.0, -1.0, -1.0, -1.0, -1.0]
    assert made.runs.tolist() == [2, 2, 1, 1, 1, 1, 1]


def test_what_lies_outside_of_a_range_is_carried_in() -> None:
    """A run that began before the range and goes on behind it counts in all of it; one that began there does not."""
    inside = part([(10, 1.0), (20, 2.0)])
    around, ended = replace(part([]), before=5.0, goes_on=True), replace(part([]), before=9.0)
    made = band([inside, around, ended])
    assert made.runs.tolist() == [2, 2]
    assert (made.min.tolist(), made.max.tolist()) == ([1.0, 2.0], [5.0, 5.0])

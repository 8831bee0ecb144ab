"""A band: the series of several runs (seeds, folds, trials) as mean, range and quantiles over the runs. Pure.

The rule, for runs of unequal length and with different steps:

- a run counts in a bucket if it has a point in it, or points both before and after it: between its own points its last
  value is carried forward, but never before its first point nor behind its last one;
- its value there is its last known value at the end of the bucket; mean and quantiles are over these values. With
  buckets of one step this is exact;
- the range is that of all points in the bucket, and of the values that are carried through it: no spike is hidden;
- how many runs count is part of the answer, so that a reader sees where runs ended;
- a value that is NaN or infinite is in no mean, quantile or range; runs without a finite value there are counted, and
  so are the points.

Quantiles are interpolated linearly between the two values next to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .part import Part, Real, Whole, coarser

_CELLS = 1 << 20  # values (runs x buckets) that are in memory at once


@dataclass(frozen=True, slots=True)
class Band:
    """One of each per bucket in which any run has a point."""

    start: Whole
    runs: Whole  # that count there
    finite: Whole  # of them with a finite value, which are in mean and quantiles
    mean: Real  # NaN where no value is finite, as the others
    min: Real
    max: Real
    nans: Whole  # points
    infs: Whole
    neg_infs: Whole
    quantiles: dict[float, Real] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start)


def band(parts: Sequence[Part], quantiles: Iterable[float] = ()) -> Band:
    """Combine the parts by the rule of this module."""
    grid = _union([part.start for part in parts])
    wanted = tuple(dict.fromkeys(quantiles))
    size = max(1, _CELLS // max(1, len(parts)))
    pieces = [
        _piece(parts, grid[at : at + size], wanted) for at in range(0, max(1, len(grid)), size)
    ]  # one at least, so that an empty band has its columns
    if len(pieces) == 1:
        return pieces[0]
    names = ("start", "runs", "finite", "mean", "min", "max", "nans", "infs", "neg_infs")
    columns = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in names}
    found = {at: np.concatenate([piece.quantiles[at] for piece in pieces]) for at in wanted}
    return Band(**columns, quantiles=found)


def _piece(parts: Sequence[Part], grid: Whole, quantiles: Sequence[float]) -> Band:
    shape = len(parts), len(grid)
    values = np.full(shape, np.nan)
    counts = np.zeros((4, len(grid)), np.int64)  # runs, nans, infs, neg_infs
    low, high = np.full(len(grid), np.nan), np.full(len(grid), np.nan)
    for row, part in zip(values, parts, strict=True):
        _put(part, grid, row, counts, low, high)
    values[~np.isfinite(values)] = np.nan
    values.sort(axis=0)  # NaN comes last
    finite = len(parts) - np.isnan(values).sum(axis=0)
    return Band(
        grid,
        counts[0],
        finite,
        _mean(values, finite),
        low,
        high,
        counts[1],
        counts[2],
        counts[3],
        {at: _quantile(values, finite, at) for at in quantiles},
    )


def _put(part: Part, grid: Whole, row: Real, counts: Whole, low: Real, high: Real) -> None:
    """Add one run: its value at each bucket to `row`, the rest to what all runs share."""
    if not len(part.start):
        if part.before is not None and part.goes_on:
            row[:] = part.before
            counts[0] += 1
            _widen(low, high, row, row)
        return
    at = np.searchsorted(part.start, grid, side="right") - 1
    is_there = at >= 0
    if part.before is not None:
        is_there[:] = True
    if not part.goes_on:
        is_there &= grid <= part.start[-1]
    here = np.maximum(at, 0)
    row[is_there] = part.last[here[is_there]]
    if part.before is not None:
        row[at < 0] = part.before
    counts[0] += is_there
    has_points = (at >= 0) & (part.start[here] == grid)
    own = here[has_points]
    for number, column in enumerate((part.nans, part.infs, part.neg_infs), 1):
        counts[number, has_points] += column[own]
    carried = np.where(np.isfinite(row), row, np.nan)
    lowest, highest = carried, carried.copy()
    lowest[has_points], highest[has_points] = part.low[own], part.high[own]
    _widen(low, high, lowest, highest)


def _widen(low: Real, high: Real, lowest: Real, highest: Real) -> None:
    """`low` and `high` are changed in place."""
    np.fmin(low, np.where(np.isfinite(lowest), lowest, np.nan), out=low)
    np.fmax(high, np.where(np.isfinite(highest), highest, np.nan), out=high)


def _mean(values: Real, finite: Whole) -> Real:
    shared = np.maximum(finite, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        made: Real = np.nansum(values, axis=0) / shared
        is_over = ~np.isfinite(made)
        if is_over.any():  # the sum is more than a float holds, the mean is not
            made[is_over] = np.nansum(values[:, is_over] / shared[is_over], axis=0)
    made[finite == 0] = np.nan
    return made


def _quantile(values: Real, finite: Whole, at: float) -> Real:
    """`values` are sorted from top to bottom, NaN last."""
    if not len(values):
        return np.empty(0)
    place = at * np.maximum(finite - 1, 0)
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, np.maximum(finite - 1, 0))
    column = np.arange(values.shape[1])
    lower, upper, share = values[below, column], values[above, column], place - below
    with np.errstate(over="ignore", invalid="ignore"):
        made: Real = lower + (upper - lower) * share
        is_over = ~np.isfinite(made)
        made[is_over] = (lower * (1 - share) + upper * share)[is_over]
    return made


def _union(starts: Sequence[Whole]) -> Whole:
    found = [start for start in starts if len(start)]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def same_width(parts: Sequence[tuple[Part, int]], most: int) -> tuple[list[Part], int]:
    """Bring parts (each with its width, a power of two) to one width, with at most `most` buckets in all."""
    width = max((width for part, width in parts if len(part.start)), default=1)
    while True:
        made = [coarser(part, width) for part, _ in parts]
        if len(_union([part.start for part in made])) <= most:
            return made, width
        width *= 2

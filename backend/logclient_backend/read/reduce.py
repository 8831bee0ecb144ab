"""Points reduced to the lowest and highest value of ranges of steps: the rule of the collector's store, for folders.

A bucket covers `width` steps; widths are powers of two and starts are multiples of them. The width is the smallest
that divides the range of steps into at most `most` buckets; where most of these are empty (a stray step far off) it is
halved as long as what is not empty surely stays within `most`. No power of two divides steps on both sides of 0 into
one bucket: a single one that is asked for starts at minus half its width. NaN and infinities are counted and hide no
number; texts are left out. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..runs.strict import ODD_FLOATS

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Buckets:
    """One of each per bucket that holds something, rising."""

    width: int
    start: Whole
    count: Whole
    nans: Whole
    infs: Whole  # infinities above, and below
    neg_infs: Whole
    min: Real  # of what is finite
    max: Real
    last: Real


def reduce(step: Whole, value: Real, most: int) -> Buckets:
    """`step` must not fall; of equal steps the later one is the last."""
    nothing = np.empty(0, np.int64)
    if not len(step):
        none = np.empty(0, np.float64)
        return Buckets(1, nothing, nothing, nothing, nothing, nothing, none, none, none)
    low, high = int(step[0]), int(step[-1])
    is_around_0 = most == 1 and low < 0 <= high
    shift = 0
    while (high >> shift) - (low >> shift) >= most + is_around_0:
        shift += 1
    starts = _starts(step, shift)[:most]
    while shift and 2 * len(starts) <= most:
        shift = max(0, shift - ((most // len(starts)).bit_length() - 1))
        starts = _starts(step, shift)
    ends = np.append(starts[1:], len(step)) - 1
    finite = np.where(np.isfinite(value), value, np.nan)
    nans, infs, neg_infs = (
        np.add.reduceat(odd.astype(np.int64), starts)
        for odd in (np.isnan(value), value == math.inf, value == -math.inf)
    )
    return Buckets(
        1 << shift + is_around_0,
        (step[starts] >> shift) << shift,
        ends - starts + 1,
        nans,
        infs,
        neg_infs,
        np.fmin.reduceat(finite, starts),
        np.fmax.reduceat(finite, starts),
        value[ends],
    )


def of_answer(answer: dict[str, Any]) -> Buckets:
    """Return the buckets that a collector's HTTP API has answered with."""
    start, count, nans, infs, neg_infs = (
        np.array(answer[name], np.int64) for name in ("start", "count", "nans", "infs", "neg_infs")
    )
    low, high, last = (
        np.array([ODD_FLOATS.get(value, value) for value in answer[name]], float)
        for name in ("min", "max", "last")
    )
    return Buckets(answer["width"], start, count, nans, infs, neg_infs, low, high, last)


def reals(value: npt.NDArray[Any]) -> Real:
    """Numbers as a chart shows them: ints beyond 2**53 are rounded, those beyond a float are infinite."""
    try:
        return value.astype(np.float64)
    except OverflowError:
        return np.array([_real(number) for number in value], np.float64)


def _real(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _starts(step: Whole, shift: int) -> npt.NDArray[np.intp]:
    """Return where each new bucket begins."""
    return np.concatenate(([0], np.flatnonzero(np.diff(step >> shift)) + 1))

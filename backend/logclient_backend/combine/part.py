"""A series, or a range of its steps, in buckets: what the functions of this package take. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Part:
    """A series in buckets of steps; one of each per bucket that holds a point."""

    start: Whole  # first step of the bucket, rising; a multiple of the width
    count: Whole
    nans: Whole
    infs: Whole
    neg_infs: Whole
    low: Real  # of what is finite; NaN where nothing is
    high: Real
    last: Real  # of the highest step
    before: float | None = None  # last value before the first bucket, where something was cut off there
    goes_on: bool = False  # points behind the last bucket were cut off


def coarser(part: Part, width: int) -> Part:
    """Return the part in buckets of that width, a multiple of the one it has."""
    if not len(part.start):
        return part
    shift = width.bit_length() - 1
    index = part.start >> shift
    starts = np.concatenate(([0], np.flatnonzero(np.diff(index)) + 1))
    ends = np.append(starts[1:], len(index)) - 1
    return replace(
        part,
        start=index[starts] << shift,
        count=np.add.reduceat(part.count, starts),
        nans=np.add.reduceat(part.nans, starts),
        infs=np.add.reduceat(part.infs, starts),
        neg_infs=np.add.reduceat(part.neg_infs, starts),
        low=np.fmin.reduceat(part.low, starts),
        high=np.fmax.reduceat(part.high, starts),
        last=part.last[ends],
    )

"""A series over the values of another key: `loss` over `epoch`, where both were logged at their own pace. Pure.

The rule: the x of a point is the last known value of the x key at or before the point's step; of several values of one
step the newest. A point has no x before the first value of that key, and where its value is NaN or infinite: such
points are left out, and counted.

Both series come in buckets of steps. With buckets of one step the result is exact; else an x is right to that many
steps, and the lowest and the highest y of each bucket stay.

Where x never falls, the result is in equal ranges of x. Else it is in stretches of neighbouring steps, so that a curve
that turns back is drawn as it went.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .part import Part, Real, Whole


@dataclass(frozen=True, slots=True)
class Pairs:
    """One of each per range of x, or stretch of steps, that holds a point."""

    is_rising: bool  # x never falls
    left_out: int  # points whose x is not known
    x: Real  # of the first point
    last_x: Real
    min: Real  # of finite y; NaN where there is none
    min_x: Real  # where it is
    max: Real
    max_x: Real
    last: Real
    count: Whole
    nans: Whole
    infs: Whole
    neg_infs: Whole

    def __len__(self) -> int:
        return len(self.x)


def known_at(x: Part, step: Whole) -> Real:
    """Return the last known value of x at each of these buckets; NaN where there is none."""
    at = np.searchsorted(x.start, step, side="right") - 1
    found = np.full(len(step), np.nan if x.before is None else x.before)
    found[at >= 0] = x.last[at[at >= 0]]
    found[np.isinf(found)] = np.nan
    return found


def pair(x: Part, y: Part, most: int, *, first_x: float | None = None, last_x: float | None = None) -> Pairs:
    """Reduce y over x to at most `most` ranges; x and y have buckets of one width.

    Points whose x lies before `first_x` or behind `last_x` are not in it, and not among those that are left out.
    """
    at = known_at(x, y.start)
    is_known = ~np.isnan(at)
    left_out = int(y.count[~is_known].sum())
    is_kept = is_known
    if first_x is not None:
        is_kept = is_kept & (at >= first_x)
    if last_x is not None:
        is_kept = is_kept & (at <= last_x)
    at = at[is_kept]
    is_rising = never_falls(x)
    count, nans, infs, neg_infs, low, high, last = (
        column[is_kept] for column in (y.count, y.nans, y.infs, y.neg_infs, y.low, y.high, y.last)
    )
    if not len(at):
        none, nothing = np.empty(0), np.empty(0, np.int64)
        reals, wholes = (none,) * 7, (nothing,) * 4
        return Pairs(is_rising, left_out, *reals, *wholes)
    starts = _ranges(at, most) if is_rising else _stretches(len(at), most)
    ends = np.append(starts[1:], len(at)) - 1
    sizes = ends - starts + 1
    lowest, highest = np.fmin.reduceat(low, starts), np.fmax.reduceat(high, starts)
    return Pairs(
        is_rising,
        left_out,
        at[starts],
        at[ends],
        lowest,
        _where(low == np.repeat(lowest, sizes), at, starts),
        highest,
        _where(high == np.repeat(highest, sizes), at, starts),
        last[ends],
        np.add.reduceat(count, starts),
        np.add.reduceat(nans, starts),
        np.add.reduceat(infs, starts),
        np.add.reduceat(neg_infs, starts),
    )


def never_falls(x: Part) -> bool:
    """Do the values of x never fall, as far as their buckets show? NaN and infinities are passed over."""
    is_there = np.isfinite(x.low)
    low, high, last = x.low[is_there], x.high[is_there], x.last[is_there]
    is_before = x.before is None or not np.isfinite(x.before) or not len(low) or x.before <= low[0]
    is_inside = (last == high) | ~np.isfinite(last)
    return bool(is_before and is_inside.all() and (high[:-1] <= low[1:]).all())


def _ranges(at: Real, most: int) -> npt.NDArray[np.intp]:
    """Return where each new range of x begins; `at` never falls. Halves, so that no difference overflows."""
    span = at[-1] / 2 - at[0] / 2
    if not span > 0:
        return np.zeros(1, np.intp)
    index = np.minimum((at / 2 - at[0] / 2) / span * most, most - 1).astype(np.int64)
    return np.concatenate(([0], np.flatnonzero(np.diff(index)) + 1))


def _stretches(size: int, most: int) -> npt.NDArray[np.intp]:
    """Return where each of at most `most` stretches of about one length begins."""
    pieces = min(size, most)
    return np.arange(pieces, dtype=np.intp) * size // pieces


def _where(is_it: npt.NDArray[np.bool_], at: Real, starts: npt.NDArray[np.intp]) -> Real:
    """Return the x of the first place of each range in which `is_it` is; NaN where it is nowhere."""
    size = len(at)
    found = np.minimum.reduceat(np.where(is_it, np.arange(size), size), starts)
    return np.append(at, np.nan)[found]

"""Pace of a training, from its newest records: how fast its steps are, and how many lie between two that are logged.

Pure; for whoever chooses a step that no rank has reached yet. Points are (time in ns, step), the newest first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

MIN_AHEAD = 2  # steps
WINDOW_NS = 1_000_000_000  # of points that show how fast the steps are
GAPS = 8  # between steps that show how often they are logged
_TIMES = (
    32  # by which steps that were seen in a shorter time are multiplied at most: it may have been a burst
)
_SLACK = 1.25  # by which steps that were not logged may be faster than those before

Points = list[tuple[int, int]]


class Pace(NamedTuple):
    """Steps of one process."""

    per_s: float
    gap: int  # from one step that is logged to the next
    newest_ns: int
    seen: int  # steps that show it

    def ahead(self, now_ns: int, seconds: float) -> int:
        """Return by how many steps a request must be ahead of the newest one, to be seen that long before its step."""
        age_s = max(0.0, (now_ns - self.newest_ns) / 1e9)
        unlogged = min(self.gap - 1, math.ceil(self.per_s * age_s * _SLACK))
        return unlogged + max(MIN_AHEAD, min(math.ceil(self.per_s * seconds), _TIMES * self.seen))


def rising(oldest_first: Iterable[tuple[int, int]]) -> Points:
    """Return the points that brought a new highest step."""
    found: Points = []
    for when_ns, step in oldest_first:
        if not found or step > found[-1][1]:
            found.append((when_ns, step))
    return found[::-1]


def pace(points: Points) -> Pace:
    """Return the pace that these points show, of which there is at least one."""
    gaps = sorted(after[1] - before[1] for after, before in pairwise(points[: GAPS + 1]))
    # a jump (another attempt's step, a step that is no step of the training) is no measure
    gap = min(gaps[-1], 10 * gaps[len(gaps) // 2]) if gaps else 1
    newest_ns, newest = points[0]
    last = len(points) - 1
    at = next((at for at, (when_ns, _) in enumerate(points) if newest_ns - when_ns > WINDOW_NS), last)
    at = min(max(1, at), last)
    took_s = (newest_ns - points[at][0]) / 1e9
    seen = min(newest - points[at][1], at * gap)
    return Pace(seen / took_s if took_s > 0 else 0.0, gap, newest_ns, seen)

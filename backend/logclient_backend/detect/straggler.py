"""`StragglerDetector`: the rank whose own work takes longer than its peers', step after step.

Given are, per step, the seconds that each rank spent in sections outside collectives: a synchronous job slows down
together, so the time of a whole step shows no rank. A rank's *lag* is its time over the median of all ranks of that
step, minus 1. Its mean and its variance are exponentially weighted over about MEMORY steps.

A rank is a straggler where its mean lag is above MIN_LAG and above LIMIT standard errors, and is none any more where
the mean is below half of that. Standard errors come from the rank's own variance or the median variance of all ranks,
whichever is more, so that a rank is not found by being quiet.

False alarms: the mean of normal noise exceeds LIMIT = 6 standard errors once in 1e9 steps and rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .window import median

MEMORY = 100  # steps
MIN_STEPS = 30
MIN_RANKS = 3  # with two nobody knows which is odd
MIN_LAG = 0.01
LIMIT = 6.0


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that fell behind its peers, or (`is_over`) does so no longer."""

    rank: int
    step: int
    lag: float  # 0.02: 2 % slower than the median rank
    is_over: bool = False


class _Rank:
    __slots__ = ("is_slow", "mean", "steps", "variance")

    def __init__(self) -> None:
        self.mean = self.variance = 0.0
        self.steps = 0
        self.is_slow = False

    def add(self, lag: float) -> None:
        self.steps += 1
        weight = max(1 / self.steps, 1 / MEMORY)
        change = lag - self.mean
        self.mean += weight * change
        self.variance = (1 - weight) * (self.variance + weight * change * change)

    @property
    def error_of_1(self) -> float:
        """The standard error of the mean, for a variance of 1; weights that decay count as half as many again."""
        count = min(self.steps, 2 * MEMORY - 1)
        return math.sqrt(1 / count)


class StragglerDetector:
    """All ranks of a run that work on the same steps."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}

    def add(self, step: int, seconds: Mapping[int, float]) -> list[Straggler]:
        """Return the ranks whose state changes with this step; `seconds` by rank."""
        known = {rank: took for rank, took in seconds.items() if math.isfinite(took) and took >= 0}
        middle = median(known.values()) if known else 0.0
        if len(known) < MIN_RANKS or middle <= 0:
            return []
        for rank, took in known.items():
            self._ranks.setdefault(rank, _Rank()).add(took / middle - 1)
        usual = median(self._ranks[rank].variance for rank in known)
        found = []
        for rank in known:
            state = self._ranks[rank]
            if state.steps < MIN_STEPS:
                continue
            error = math.sqrt(max(state.variance, usual)) * state.error_of_1
            limit = max(MIN_LAG, LIMIT * error)
            is_slow = state.mean > (limit / 2 if state.is_slow else limit)
            if is_slow != state.is_slow:
                state.is_slow = is_slow
                found.append(Straggler(rank, step, state.mean, is_over=not is_slow))
        return found

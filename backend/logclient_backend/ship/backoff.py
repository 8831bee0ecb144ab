"""Waits before the next try: longer each time, and never the same for many who lost one collector."""

from __future__ import annotations

import random

FIRST_S = 0.2  # a pause doubles from here
MAX_S = 30.0  # up to here


class Backoff:
    """`next` after a failure, `reset` once something was achieved."""

    def __init__(self, first_s: float, most_s: float, *, chance: random.Random | None = None) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._pause_s = 0.0
        self._chance = chance or random.Random()

    def reset(self) -> None:
        self._pause_s = 0.0

    @property
    def is_at_most(self) -> bool:
        """Has the pause stopped growing?"""
        return self._pause_s >= self._most_s

    def next(self, least_s: float | None = None) -> float:
        """Seconds: between half and all of a pause that doubles; never less than `least_s`, some more where given."""
        self._pause_s = min(self._most_s, 2 * self._pause_s or self._first_s)
        pause_s = self._pause_s * self._chance.uniform(0.5, 1.0)
        if least_s is None:
            return pause_s
        return max(pause_s, least_s * self._chance.uniform(1.0, 1.25))

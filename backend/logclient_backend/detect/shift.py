"""`ShiftDetector`: the level of a series changed, and stays changed: throughput fell, a step takes longer.

A two-sided CUSUM of deviations from the median of the last BASELINE values, in units of their robust deviation, with
slack SLACK and limit LIMIT. A shift is reported where the sum is beyond the limit, LASTS values since the sum left
zero are at least half of MIN_CHANGE away, and the median of the last RECENT values is all of MIN_CHANGE away: a burst
that goes away again is none. Afterwards the new level is learned, and the next shift is one from there.

False alarms on stationary normal noise: none in a million values where the level is known (Siegmund's approximation);
where it is learned, see `tools/bench/detectors.py`. Delay: about LIMIT / (d - SLACK) values for a change of d
deviations, at least LASTS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .window import Window, median

BASELINE = 128  # values
MIN_VALUES = 32  # before which nothing is judged
SLACK = 1.0  # deviations
LIMIT = 8.0
LASTS = 12  # values
RECENT = 6  # values
MIN_CHANGE = 0.02  # of the level
_MAX_SINCE = 64  # values since a sum left zero: longer ones are the level's own unrest
_CLIP = 4.0  # deviations: one wild value is no shift


@dataclass(frozen=True, slots=True)
class Shift:
    """A lasting change of the level."""

    onset_step: int
    step: int  # at which it was found
    before: float
    after: float

    @property
    def change(self) -> float:
        """after / before - 1; infinite from 0."""
        return self.after / self.before - 1 if self.before else math.inf


class _Sum:
    """One side of the CUSUM, and the values since it left zero."""

    __slots__ = ("since", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.since: list[tuple[int, float]] = []

    def add(self, deviation: float, step: int, value: float) -> None:
        self.value = max(0.0, self.value + deviation - SLACK)
        if self.value:
            self.since.append((step, value))
        else:
            self.since.clear()


class ShiftDetector:
    """One series."""

    def __init__(self) -> None:
        self._window = Window(BASELINE)
        self._pending: list[float] = []  # values that are not in the window yet: a sum is above zero
        self._sums = _Sum(), _Sum()  # up, down

    def add(self, step: int, value: float) -> Shift | None:
        """Return the shift that is found with this value. Values that are not finite are skipped."""
        if not math.isfinite(value):
            return None
        if len(self._window) < MIN_VALUES:
            self._window.add(value)
            return None
        level = self._window.median
        sigma = max(self._window.sigma, MIN_CHANGE / 8 * abs(level)) or abs(value) or 1.0
        deviation = min(_CLIP, max(-_CLIP, (value - level) / sigma))
        self._pending.append(value)
        for sign, side in zip((1, -1), self._sums, strict=True):
            side.add(sign * deviation, step, value)
            after = self._after(level, sign, side)
            if after is not None:
                return self._report(step, level, after, side)
        if not any(side.value for side in self._sums) or len(self._pending) > _MAX_SINCE:
            self._learn(self._pending)
        return None

    def _after(self, level: float, sign: int, side: _Sum) -> float | None:
        """Return the new level; None where it has not changed, or not for long enough."""
        if side.value < LIMIT or len(side.since) < LASTS:
            return None
        change = MIN_CHANGE * abs(level)
        away = [value for _, value in side.since if sign * (value - level) >= change / 2]
        recent = median(value for _, value in side.since[-RECENT:])
        return median(away) if len(away) >= LASTS and sign * (recent - level) >= change else None

    def _report(self, step: int, level: float, after: float, side: _Sum) -> Shift:
        """Begin anew from the values since the change."""
        middle = (level + after) / 2
        changed = [(at, value) for at, value in side.since if (value > middle) == (after > level)]
        self._window.clear()
        self._learn([value for _, value in changed])
        return Shift(changed[0][0], step, level, after)

    def _learn(self, values: list[float]) -> None:
        for value in values:
            self._window.add(value)
        self._pending.clear()
        self._sums = _Sum(), _Sum()

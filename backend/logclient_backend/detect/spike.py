"""`SpikeDetector`: a value far above what the series did lately, until it is back.

The baseline is the median of the last LEVEL values. A value's *rise* is its distance to the baseline, or to the
baseline and the usual distance (of a series that grows steadily), whichever is less; a falling series never rises by
its fall getting slower. Distances are logarithmic while all values of the window are positive (a loss, a norm: noise
and spikes are factors there), else linear.

A value is *high* where its rise is above HIGH_SIGMA deviations of the usual distances and above MIN_RISE of the
baseline. A spike begins with one value of twice that rise, or with a high value that is followed by another of half
that rise within CONFIRM values: one wild value of noise with heavy tails is no spike. Nothing of a spike enters the
windows. It ends with the first of CALM values in a row whose rise is below half of what makes a value high. Where
that does not come within LASTING values the series has a new level: the spike ends without a recovery, and the series
is learned anew.

False alarms: of normal noise one value in 1e12 is high; noise with heavy tails has more, of which one wild value begins
no spike. No excursion below 10 % is ever one. Precision, recall and delay as measured: `tools/bench/detectors.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .window import Window

LEVEL = 16  # values: of the baseline
USUAL = 128  # values: of the usual distances
MIN_VALUES = 24  # before which nothing is judged
HIGH_SIGMA = 7.0
CONFIRM = 3  # values
MIN_RISE = 0.1  # of the baseline
CALM = 2  # values in a row
LASTING = 200  # values
_TINY = 1e-12  # of the level: a series that is constant has no deviation of its own


@dataclass(slots=True)
class Spike:
    """One spike; steps are those that were given with the values."""

    onset_step: int
    baseline: float
    peak_step: int
    peak: float
    recovered_step: int | None = None  # None: it goes on, or (`is_over`) the series stayed up
    is_over: bool = False

    @property
    def height(self) -> float:
        """Peak over baseline; infinite for a baseline of 0."""
        return self.peak / self.baseline if self.baseline else math.inf


class SpikeDetector:
    """One series."""

    def __init__(self) -> None:
        self._level = Window(LEVEL)
        self._usual = Window(USUAL)
        self._is_log = True
        self._spike: Spike | None = None
        self._held: list[
            tuple[int, float]
        ] = []  # a high value that is not confirmed yet, and those behind it
        self._calm: list[tuple[int, float]] = []
        self._length = 0  # values since the onset

    def add(self, step: int, value: float) -> Spike | None:
        """Return the spike that begins or ends with this value. Values that are not finite are skipped."""
        if not math.isfinite(value):
            return None
        if self._is_log and value <= 0:
            self._start_linear()
        if len(self._usual) < MIN_VALUES:
            self._learn(value)
            return None
        rise, limit = self._rise(value)
        if self._spike is not None:
            return self._go_on(step, value, rise, limit)
        is_begun = rise > 2 * limit or (len(self._held) > 0 and rise > limit / 2)
        if is_begun or self._held or rise > limit:
            self._held.append((step, value))
        else:
            self._learn(value)
        if is_begun:
            return self._begin()
        if len(self._held) > CONFIRM:
            self._release()
        return None

    @property
    def spike(self) -> Spike | None:
        """The spike that goes on; None where none does."""
        return self._spike

    def _begin(self) -> Spike:
        peak_step, peak = max(self._held, key=lambda held: held[1])
        self._spike = Spike(self._held[0][0], self._value(self._level.median), peak_step, peak)
        self._length, self._calm = len(self._held), []
        self._held.clear()
        return self._spike

    def _release(self) -> None:
        for _, value in self._held:
            self._learn(value)
        self._held.clear()

    def _go_on(self, step: int, value: float, rise: float, limit: float) -> Spike | None:
        spike = self._spike
        assert spike is not None
        self._length += 1
        if value > spike.peak:
            spike.peak_step, spike.peak = step, value
        if rise > limit / 2:
            self._calm.clear()
        else:
            self._calm.append((step, value))
        if len(self._calm) == CALM:
            spike.recovered_step = self._calm[0][0]
            for _, each in self._calm:
                self._learn(each)
        elif self._length >= LASTING:
            self._level.clear()
            self._usual.clear()
        else:
            return None
        spike.is_over = True
        self._spike = None
        return spike

    def _learn(self, value: float) -> None:
        known = self._mapped(value)
        if len(self._level):
            self._usual.add(known - self._level.median)
        self._level.add(known)

    def _rise(self, value: float) -> tuple[float, float]:
        """(rise, what a begin takes)."""
        level = self._level.median
        distance = self._mapped(value) - level
        rise = min(distance, distance - self._usual.median)
        floor = math.log1p(MIN_RISE) if self._is_log else MIN_RISE * abs(level)
        return rise, max(floor, HIGH_SIGMA * max(self._usual.sigma, _TINY * abs(level)))

    def _mapped(self, value: float) -> float:
        return math.log(value) if self._is_log else value

    def _value(self, mapped: float) -> float:
        return math.exp(mapped) if self._is_log else mapped

    def _start_linear(self) -> None:
        self._is_log = False
        self._spike = None
        self._held.clear()
        self._level.clear()
        self._usual.clear()

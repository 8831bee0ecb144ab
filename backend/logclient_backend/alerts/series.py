"""Rules over one series, the values of one key in one stream: over, under, nonfinite, spike, drop.

Each takes (step, value) in the order in which they were logged, and returns what begins or ends with a value. Memory is
constant. Statistics are those of `detect/`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from ..detect.nonfinite import NonFiniteDetector
from ..detect.shift import ShiftDetector
from ..detect.spike import SpikeDetector
from .event import BEGIN, END, Finding


class SeriesRule(Protocol):
    """A rule for one series."""

    is_open: bool  # an episode goes on

    def add(self, step: int, value: float) -> tuple[str, str, int, float] | None:
        """Return (phase, text, step, value) of what begins or ends with this value."""


class Compared:
    """Above or below a limit, for so many values in a row; ends after as many on the other side."""

    def __init__(self, rule: dict[str, Any]) -> None:
        self._is_over = rule["when"] == "over"
        self._limit: float = rule["value"]
        self._steps: int = rule["steps"]
        self._count = 0  # values in a row that differ from `is_open`
        self.is_open = False

    def add(self, step: int, value: float) -> tuple[str, str, int, float] | None:
        is_beyond = value > self._limit if self._is_over else value < self._limit
        if is_beyond == self.is_open or value != value:
            self._count = 0 if value == value else self._count
            return None
        self._count += 1
        if self._count < self._steps:
            return None
        self.is_open, self._count = is_beyond, 0
        side = (
            ("above" if self._is_over else "below")
            if is_beyond
            else "no longer " + ("above" if self._is_over else "below")
        )
        lasting = f" for {self._steps:,} values" if self._steps > 1 else ""
        return BEGIN if is_beyond else END, f"is {value:g}, {side} {self._limit:g}{lasting}", step, value


class NotFinite:
    """NaN and infinities."""

    def __init__(self, rule: dict[str, Any]) -> None:
        self._detector = NonFiniteDetector()
        self.is_open = False

    def add(self, step: int, value: float) -> tuple[str, str, int, float] | None:
        found = self._detector.add(step, value)
        if found is None:
            return None
        self.is_open = not found.is_over
        if found.is_over:
            count = f"{found.count:,} value{'s' * (found.count != 1)} in all"
            return END, f"is finite again ({count}, the last at step {found.last_step:,})", step, value
        before = f", {found.before:g} before" if math.isfinite(found.before) else ""
        return BEGIN, f"is {value}{before}", step, value


class Spiking:
    """A rise that goes away again, of a share of the level at least."""

    def __init__(self, rule: dict[str, Any]) -> None:
        self._detector = SpikeDetector()
        self._by: float = rule["by"]
        self.is_open = False

    def add(self, step: int, value: float) -> tuple[str, str, int, float] | None:
        found = self._detector.add(step, value)
        if found is None:
            found = self._detector.spike  # it may have grown to what the rule asks for
            if self.is_open and found is None:
                self.is_open = False
                return END, "is learned anew, since it has a value below 0", step, value
            if self.is_open or found is None:
                return None
        is_high = abs(found.peak - found.baseline) >= self._by * abs(found.baseline)
        if found.is_over:
            was_open, self.is_open = self.is_open, False
            if not was_open:
                return None
            since = f"onset at step {found.onset_step:,}, peak {found.peak:g} at step {found.peak_step:,}"
            if found.recovered_step is None:
                return END, f"stays at its new level; {since}", step, found.peak
            return END, f"has recovered; {since}", found.recovered_step, found.peak
        if self.is_open or not is_high:
            return None
        self.is_open = True
        return BEGIN, f"rose from {found.baseline:g} to {found.peak:g}", found.onset_step, found.peak


class Dropping:
    """A lasting fall of the level, by a share of it at least; ends when half of it is made good."""

    def __init__(self, rule: dict[str, Any]) -> None:
        self._detector = ShiftDetector()
        self._by: float = rule["by"]
        self._before = self._after = 0.0
        self.is_open = False

    def add(self, step: int, value: float) -> tuple[str, str, int, float] | None:
        found = self._detector.add(step, value)
        if found is None:
            return None
        change = found.change if math.isfinite(found.change) else 0.0
        text = f"from {found.before:g} to {found.after:g} ({100 * change:+.1f} %)"
        if self.is_open:
            if found.after < (self._before + self._after) / 2:
                self._after = min(self._after, found.after)
                return None
            self.is_open = False
            return END, f"rose again, {text}", found.onset_step, found.after
        if found.after >= found.before or found.before - found.after < self._by * abs(found.before):
            return None
        self.is_open = True
        self._before, self._after = found.before, found.after
        return BEGIN, f"fell {text}", found.onset_step, found.after


MAKERS: dict[str, Callable[[dict[str, Any]], SeriesRule]] = {
    "over": Compared,
    "under": Compared,
    "nonfinite": NotFinite,
    "spike": Spiking,
    "drop": Dropping,
}


def finding_of(
    rule: dict[str, Any], key: str, stream: str, rank: int | None, found: tuple[str, str, int, float]
) -> Finding:
    """Return what a rule found, with its series."""
    kind = rule["when"]
    phase, text, step, value = found
    where = f" (step {step:,}" + (f", rank {rank})" if rank is not None else ")")
    # two limits of one key are two episodes
    subject = f"{key} {rule['value']:g}" if "value" in rule else key
    return Finding(kind, phase, f"{key} {text}{where}", subject, stream, key, rank, step, value)

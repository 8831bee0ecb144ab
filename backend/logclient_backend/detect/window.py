"""`Window`: the last values of a series, with a median and a spread that a few outliers do not move."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

MAD_TO_SIGMA = 1.4826  # of normal noise


class Window:
    """At most `size` values, the oldest leaves first; sorted at all times, so that each answer is one look."""

    __slots__ = ("_size", "_sorted", "_values")

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        """Add a finite value."""
        if len(self._values) == self._size:
            oldest = self._values.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._values.append(value)
        insort(self._sorted, value)

    def clear(self) -> None:
        self._values.clear()
        self._sorted.clear()

    @property
    def median(self) -> float:
        """The median of at least one value."""
        return _median(self._sorted)

    @property
    def sigma(self) -> float:
        """The standard deviation that normal noise with this median deviation from the median has."""
        middle = self.median
        return MAD_TO_SIGMA * _median(sorted(abs(value - middle) for value in self._sorted))


def median(values: Iterable[float]) -> float:
    """Return the median of at least one value. `statistics` would load seven modules into each agent."""
    return _median(sorted(values))


def _median(ordered: list[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2

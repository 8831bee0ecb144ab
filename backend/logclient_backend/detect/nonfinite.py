"""`NonFiniteDetector`: NaN and infinities in a series, as episodes. Exact: it has no rate of false alarms."""

from __future__ import annotations

import math
from dataclasses import dataclass

ENDS_AFTER = 2  # finite values in a row


@dataclass(slots=True)
class NonFinite:
    """Values that are not finite, from the first to the last of an episode."""

    first_step: int
    last_step: int
    count: int
    before: float  # the last finite value; NaN where there was none
    is_over: bool = False


class NonFiniteDetector:
    """One series."""

    def __init__(self) -> None:
        self._episode: NonFinite | None = None
        self._last = math.nan
        self._finite = 0

    def add(self, step: int, value: float) -> NonFinite | None:
        """Return the episode that begins or ends with this value."""
        episode = self._episode
        if math.isfinite(value):
            self._last = value
            self._finite += 1
            if episode is None or self._finite < ENDS_AFTER:
                return None
            self._episode, episode.is_over = None, True
            return episode
        self._finite = 0
        if episode is not None:
            episode.last_step = step
            episode.count += 1
            return None
        self._episode = NonFinite(step, step, 1, self._last)
        return self._episode

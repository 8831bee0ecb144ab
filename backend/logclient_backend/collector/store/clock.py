"""Two clocks: that of the wall, which people and NTP set forth and back, and a steady one, which nobody sets.

How long something has been silent is a difference of the steady one. What is stored, and what people see, is of the
wall's.
"""

from __future__ import annotations

import time


def steady_ns() -> int:
    """ns since some moment, those of a suspended machine included; of use in differences, inside this process only."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Clock:
    """Both of them; a test has others."""

    def wall_ns(self) -> int:
        """Since 1970 UTC, by this machine's clock."""
        return time.time_ns()

    def steady_ns(self) -> int:
        return steady_ns()

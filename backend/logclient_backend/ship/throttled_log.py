"""A log in which trouble that comes again and again is one line a minute: `ThrottledLog`."""

from __future__ import annotations

import time
from collections.abc import Callable

_SAY_EVERY_S = 60.0


class ThrottledLog:
    """Passes on at most one line a minute; the others are in `Progress`."""

    def __init__(self, say: Callable[[str], None] | None) -> None:
        """`say` takes a line; None: nobody reads them."""
        self._say = say
        self._said_at = -_SAY_EVERY_S

    def say(self, text: str) -> None:
        """Pass the line on, unless another one was less than a minute ago."""
        now = time.monotonic()
        if self._say is not None and now - self._said_at >= _SAY_EVERY_S:
            self._said_at = now
            self._say(text)

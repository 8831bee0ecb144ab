"""A log in which trouble that comes again and again is one line a minute: `ThrottledLog`."""

from __future__ import annotations

import time
from collections.abc import Callable

_LOG_EVERY_S = 60.0


class ThrottledLog:
    """Passes on at most one line a minute; the others are in `Progress`."""

    def __init__(self, write: Callable[[str], None] | None) -> None:
        """`write` takes a line; None: nobody reads them."""
        self._write = write
        self._written_at = -_LOG_EVERY_S

    def write(self, text: str) -> None:
        """Pass the line on, unless another one was less than a minute ago."""
        now = time.monotonic()
        if self._write is not None and now - self._written_at >= _LOG_EVERY_S:
            self._written_at = now
            self._write(text)

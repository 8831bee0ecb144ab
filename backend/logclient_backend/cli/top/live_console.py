"""The captured output of a run that is followed: its last lines at each look.

Runs in a worker thread of `app.py`, one look at a time, while the console is shown. Lines that may change (a progress
bar) are part of each look as they stand then.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from ...runs.console import Console, ConsoleLine, Folders, pieces_of
from ...runs.source import StoredRun

MAX_LINES = 400
_FIRST = 2_000  # pieces to begin with


class LiveConsole:
    """The end of the output of all processes of a run."""

    def __init__(self, stored: StoredRun) -> None:
        self._follower = Console(stored).follower()
        self._folders = Folders(hold=0)
        self._lines = deque[ConsoleLine](maxlen=MAX_LINES)
        self._last: dict[bytes, int] = {}
        self._has_begun = False
        self._is_over = False

    def look(self) -> list[ConsoleLine]:
        """Take what is new, and return the last lines."""
        follower = self._follower
        if not self._is_over:
            was_over = follower.is_over  # asked before: then nothing can come after this look
            new = [] if self._has_begun else list(pieces_of(follower.last(_FIRST), self._last))
            self._has_begun = True
            new += pieces_of(follower.poll(), self._last)
            for piece in new:
                self._lines.extend(self._folders.feed(piece))
            self._is_over = was_over and not new
            follower.look_again()
        found = [*self._lines, *self._folders.still_open(is_over=self._is_over)]
        return list(islice(found, max(0, len(found) - MAX_LINES), None))

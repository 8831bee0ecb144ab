"""One run that is followed: its records are counted once, and each look adds what came since.

Runs in a worker thread of `app.py`, one look at a time; the thread that draws takes what a look returned.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...runs import contents
from ...runs.contents import Contents, Key
from ...runs.curve import Drawing
from ...runs.source import StoredRun
from ...runs.view import RunView
from ...wal.encoded import StreamColumns
from ...wal.scan import Gap

MAX_CURVES = 2_000  # keys whose curves are kept: each takes up to 4,096 cells


@dataclass(slots=True)
class Look:
    """A run as it was at one look."""

    run: RunView
    keys: list[Key]
    notices: list[str] = field(default_factory=list)


class LiveRun:
    """A run over its follower."""

    def __init__(self, stored: StoredRun) -> None:
        self.id = stored.row.id
        self._follower = stored.follower()
        self._contents = Contents()
        self._gaps: list[Gap] = []
        self._is_over = False

    def look(self) -> Look:
        """Take what is new. The first look reads the whole run."""
        follower, found = self._follower, self._contents
        if not self._is_over:
            self._is_over = follower.is_over  # asked before: then nothing can come after this look
            numbers = follower.run.attempt_numbers()
            for item in follower.poll():
                if isinstance(item, StreamColumns):
                    contents.add(found, numbers.get(item.process.hex(), 1), item, self._is_drawn)
                elif isinstance(item, Gap):
                    self._gaps.append(item)
            follower.look_again()
        for key in found.keys.values():
            key.last = key.newest()
        return Look(follower.run, sorted(found.keys.values(), key=lambda key: key.first), follower.notices())

    def _is_drawn(self, name: str) -> bool:
        return name in self._contents.keys or len(self._contents.keys) < MAX_CURVES


def drawing(key: Key, width: int, height: int, *, ascii_only: bool = False) -> Drawing:
    """Return the curve of a key in characters."""
    return key.curve().draw(width, height, ascii_only=ascii_only)

"""Edits of the run on their way to one collector, from the folders that have some.

In the shipper's thread. They travel in parcels of their own, whole: the collector keeps the union, so the same ones may
come twice, from any node of the run and from any copy of its folder. A collector of an earlier version, which does not
take them, is sent none, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable

from ..runs.edits import NONE, Edits
from ..wire.messages import Welcome
from .source import FolderSource

_UNTAKEN = (
    "the run was edited in its folder, and this collector is too old to take edits: update it, and sync again"
)


class EditUpload:
    """`due` is what is to be sent now."""

    def __init__(self, source: FolderSource, on_untaken: Callable[[str], None]) -> None:
        """`on_untaken` takes a sentence where the collector does not take edits."""
        self._source = source
        self._on_untaken = on_untaken
        self._are_taken = False
        self._settled: Edits = NONE
        self._there = b""  # digest of those that the collector has

    def welcomed(self, welcome: Welcome, *, is_other: bool) -> None:
        """Take over what the collector has; `is_other`: it is not the one that answered before."""
        self._are_taken, self._there = welcome.takes_edits, welcome.edits_digest
        if is_other:
            self._settled = NONE

    def due(self) -> Edits | None:
        """Return the edits that the collector may lack; None: there are none."""
        found = self._source.edits
        if not found or found == self._settled:
            return None
        if not self._are_taken:
            self._on_untaken(_UNTAKEN)
        elif found.digest != self._there:
            return found
        self._settled = found
        return None

    def settle(self, edits: Edits) -> None:
        """Nothing more is to be sent of these."""
        self._settled = edits

"""A parcel that was refused for good, in parts: what is wrong with one batch keeps no other from the collector.

Asked by the shipper's thread. A collector refuses a parcel as a whole, for one key too many, say; which batch it was
it does not tell. Batches of shapes that were taken before are tried apart from the others, and those by halves, down to
one body of one batch.

Invariant: not more than `_MAX_A_SECOND` parcels are cut into halves, so that a program that does the wrong thing with
each record does not keep its agent busy: what is not cut then is refused as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from logclient.shm.record import Shape

from ..wire.messages import Parcel

_MAX_A_SECOND = 16
_MAX_SHAPES = 4096


class Splitter:
    """One per shipper."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._splits = 0
        self._taken: set[Shape] = set()  # some of the shapes that were taken

    def took(self, parcel: Parcel) -> None:
        """It was acknowledged."""
        if len(self._taken) < _MAX_SHAPES:
            self._taken.update(batch.shape for batch in parcel.batches)

    def parts(self, parcel: Parcel) -> list[Parcel]:
        """Return the parts of a parcel that was refused for good; none: it cannot be split, or not now."""
        known = [batch for batch in parcel.batches if batch.shape in self._taken]
        others = [batch for batch in parcel.batches if batch.shape not in self._taken]
        if not (known and others):
            batches = parcel.batches if len(parcel.batches) != 1 else parcel.batches[0].halves()
            if len(batches) < 2 or not self._may_split():
                return []
            half = len(batches) // 2
            known, others = list(batches[:half]), list(batches[half:])
        return [Parcel(0, known, parcel.holes), Parcel(0, others)]

    def _may_split(self) -> bool:
        now = self._clock()
        if now - self._begun >= 1.0:
            self._begun, self._splits = now, 0
        self._splits += 1
        return self._splits <= _MAX_A_SECOND

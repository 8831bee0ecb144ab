"""Parcels in flight: sent in this conversation, and not answered yet.

Invariant: a parcel leaves only by an answer, or back to whoever sends it again when the conversation breaks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..runs.edits import Edits
from ..wire.messages import Parcel
from .parcels import bytes_of

MAX_BYTES = 16 << 20  # in memory; while more are in flight no parcel is sent


@dataclass(slots=True, eq=False)
class Sent:
    """One of them; `documents` travelled with it, and are not kept: newer ones are sent again."""

    parcel: Parcel
    documents: bytes  # digest; empty: none
    size: int  # in memory
    edits: Edits | None = None  # travelled with it


class InFlight:
    """Ordered by number, as the collector answers."""

    def __init__(self) -> None:
        self.size = 0  # in memory
        self._sent: deque[Sent] = deque()

    def __bool__(self) -> bool:
        return bool(self._sent)

    @property
    def has_documents(self) -> bool:
        """Is a version of the documents in flight?"""
        return any(sent.documents for sent in self._sent)

    @property
    def has_edits(self) -> bool:
        """Are edits of the run in flight?"""
        return any(sent.edits is not None for sent in self._sent)

    def add(self, parcel: Parcel, documents: bytes, edits: Edits | None = None) -> None:
        """Note what was sent; `documents`: digest of those that travel with it."""
        size = sum(map(bytes_of, parcel.batches))
        self._sent.append(Sent(parcel, documents, size, edits))
        self.size += size

    def acked(self, upto: int) -> list[Sent]:
        """Remove and return the parcels up to this number."""
        found = []
        while self._sent and self._sent[0].parcel.number <= upto:
            found.append(self._sent.popleft())
            self.size -= found[-1].size
        return found

    def refused(self, number: int) -> Sent | None:
        """Remove and return the parcel of this number; None: it is not in flight."""
        found = next((sent for sent in self._sent if sent.parcel.number == number), None)
        if found is not None:
            self._sent.remove(found)
            self.size -= found.size
        return found

    def take_back(self) -> list[Parcel]:
        """Remove and return all, in the order in which they were sent: the conversation broke."""
        found = [sent.parcel for sent in self._sent]
        self._sent.clear()
        self.size = 0
        return found

"""Progress of a shipper: `Progress` is written by its thread alone and read by any.

Plain attributes may be read without the lock; `acked` grows in place, so take `acked_copy`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from ..wal.encoded import StreamColumns
from ..wal.seqs import SeqSet
from ..wire.messages import HeldStream, NotTaken, Parcel

CONNECTING, SHIPPING, IDLE, WAITING, REFUSED, STOPPED = (
    *("connecting", "shipping", "idle"),
    *("waiting", "refused", "stopped"),
)


class Progress:
    """Counts of the records of one node, by their fate."""

    def __init__(self) -> None:
        self.state = CONNECTING  # waiting: for the next try; refused: for good
        self.since = time.monotonic()  # in that state
        self.error = ""  # a sentence; empty: all is well
        self.reason = ""  # of `wire.messages`, with an error
        self.next_try = 0.0  # monotonic, while waiting
        self.collector = ""  # id of the one that answered last
        self.web = ("", "")  # its `public_url` and `http_address`
        self.connections = 0
        self.records = 0  # acked in this life, with points, and bytes as they were on the wire
        self.points = 0
        self.bytes = 0
        self.already = 0  # records that the collector had when it was asked first
        self.refused_records = 0  # that it will never take, as `refusal` says of the last
        self.refusal = ""
        self.documents_refusal = (
            ""  # why the newest documents are not taken; empty: nothing is said against them
        )
        self.edits_refusal = ""  # why the edits of the run stay here
        self.outdated = ""  # why the documents here were not taken: the collector has newer ones of this node
        self.documents_acked = b""  # digest of the node's documents there
        self.acked_at = 0.0  # monotonic; 0: nothing yet
        self.changes = 0  # grows with `acked`
        self._acked: dict[bytes, SeqSet] = {}
        self._stored: dict[bytes, SeqSet] = {}
        self._lock = threading.Lock()

    def acked_copy(self) -> dict[bytes, SeqSet]:
        """By stream: seqs that are stored at the collector, or that it knows as gone."""
        with self._lock:
            return {stream: seqs.copy() for stream, seqs in self._acked.items()}

    def stored_copy(self) -> dict[bytes, SeqSet]:
        """By stream: seqs that are stored at the collector."""
        with self._lock:
            return {stream: seqs.copy() for stream, seqs in self._stored.items()}

    @property
    def state_s(self) -> float:
        """Seconds in this state."""
        return time.monotonic() - self.since

    @property
    def trouble(self) -> str:
        """The error now, else the records that will never be there; empty where all is well."""
        if self.error:
            return self.error
        if self.refused_records:
            return f"{self.refused_records:,} records are refused: {self.refusal}"
        if self.documents_refusal:
            return f"what the run is, is refused: {self.documents_refusal}"
        return self.edits_refusal

    # ---- for the shipper ---------------------------------------------------------------------------------

    def enter(self, state: str, trouble: NotTaken | None = None) -> None:
        """The state; with `trouble` also why. That is over once something is acked, or nothing is left to send."""
        if state != self.state:
            self.since = time.monotonic()
        if trouble is not None:
            self.error, self.reason = trouble.text, trouble.reason
        elif state == IDLE:
            self.error = self.reason = ""
        self.state = state

    def held(self, held: Mapping[bytes, HeldStream], *, is_other: bool) -> None:
        """Take over the collector's coverage; `is_other`: it is not the collector that answered before."""
        with self._lock:
            if is_other:
                self._acked, self._stored = {}, {}
                self.already = 0
            for stream, each in held.items():
                self._stored.setdefault(stream, SeqSet()).update(each.stored)
                seqs = self._acked.setdefault(stream, SeqSet())
                seqs.update(each.stored)
                for gaps in each.gaps.values():
                    seqs.update(gaps)
                if is_other:
                    self.already += len(each.stored)
            self.changes += 1

    def is_beyond(self, held: Mapping[bytes, HeldStream]) -> bool:
        """Was more acknowledged than is held now? Then that store was set back: a backup, a snapshot."""
        nothing = HeldStream()
        with self._lock:
            return not all(
                held.get(stream, nothing).stored.includes(seqs) for stream, seqs in self._stored.items()
            )

    def found(self, item: StreamColumns, left: StreamColumns | None) -> None:
        """Count records whose ack was lost with a conversation as committed, but for these."""
        known = len(item) - (len(left) if left is not None else 0)
        self.records += known
        self.points += known * len(item.shape.names)

    def refused(self, parcel: Parcel, trouble: NotTaken) -> None:
        """It will never be taken."""
        if not (parcel.batches or parcel.holes):
            self.documents_refusal = trouble.text
            return
        self.refused_records += parcel.records
        self.refusal = trouble.text

    def acked(self, parcel: Parcel, digest: bytes) -> None:
        """It is committed."""
        with self._lock:
            for item in parcel.batches:
                self._acked.setdefault(item.stream, SeqSet()).add_seqs(item.seqs)
                self._stored.setdefault(item.stream, SeqSet()).add_seqs(item.seqs)
            for gap in parcel.holes:
                self._acked.setdefault(gap.stream, SeqSet()).add(gap.first, gap.last)
            self.changes += 1
        self.records += parcel.records
        self.points += parcel.points
        self.bytes += parcel.size_bytes
        if digest:
            self.documents_acked = digest
            self.documents_refusal = ""
        self.error = self.reason = ""
        self.acked_at = time.monotonic()

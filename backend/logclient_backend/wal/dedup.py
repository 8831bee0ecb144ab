"""`Seen`: which records and gaps somebody has already, shared by whoever reads several folders for him.

Any number of threads. Two folders may hold the same records (a segment on tmpfs and its copy in the run folder, a
run folder and a spool): what one gives, no other gives again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from .coverage import Footer
from .encoded import StreamColumns
from .scan import Gap
from .seal import unseen_part
from .seqs import SeqSet


class Seen:
    """Grows with all that is asked for."""

    def __init__(
        self,
        records: Mapping[bytes, SeqSet] | None = None,
        gaps: Mapping[bytes, Mapping[str, SeqSet]] | None = None,
    ) -> None:
        """By stream: what is not wanted any more. Both are copied."""
        self._lock = threading.Lock()
        self._records = {stream: seqs.copy() for stream, seqs in (records or {}).items()}
        self._gaps = {
            (stream, cause): seqs.copy()
            for stream, causes in (gaps or {}).items()
            for cause, seqs in causes.items()
        }

    def has(self, footer: Footer) -> bool:
        """Is all of a sealed segment known?"""
        nothing = SeqSet()
        with self._lock:
            for span in footer.spans.values():
                if not self._records.get(span.stream, nothing).includes(span.stored):
                    return False
                for cause, seqs in span.gaps.items():
                    if not self._gaps.get((span.stream, cause), nothing).includes(seqs):
                        return False
        return True

    def new_records(self, item: StreamColumns) -> StreamColumns | None:
        """The part that is new, from now on known; None: nothing is."""
        with self._lock:
            seen = self._records.setdefault(item.stream, SeqSet())
            new = new_part(item, seen)
            if new is not None:
                seen.add_seqs(new.seqs)
        return new

    def new_gaps(self, gap: Gap) -> list[Gap]:
        """The parts that are new, from now on known."""
        with self._lock:
            reported = self._gaps.setdefault((gap.stream, gap.cause), SeqSet())
            ranges = SeqSet([(gap.first, gap.last)]).minus(reported).ranges()
            for first, last in ranges:
                reported.add(first, last)
        return [gap._replace(first=first, last=last) for first, last in ranges]

    def stored(self, stream: bytes) -> SeqSet:
        """Records that are known."""
        with self._lock:
            return self._records.get(stream, SeqSet()).copy()

    def missing(self, stream: bytes, accepted: int) -> SeqSet:
        """Seqs from 1 to `accepted` that are neither stored nor explained."""
        known = SeqSet()
        with self._lock:
            if stream in self._records:
                known.update(self._records[stream])
            for (whose, _), seqs in self._gaps.items():
                if whose == stream:
                    known.update(seqs)
        return (SeqSet([(1, accepted)]) if accepted > 0 else SeqSet()).minus(known)


def new_part(item: StreamColumns, seen: SeqSet) -> StreamColumns | None:
    """Return the records whose seq is not in `seen`; the same object if that is all, None if that is none."""
    if seen.unseen(item.seqs) is None:
        return item
    if seen.covers(item.seqs[0], item.seqs[-1]):
        return None
    columns = item.decoded()
    if columns is None:
        return item
    new = unseen_part(columns, seen)
    return None if new is None else item.with_columns(new)

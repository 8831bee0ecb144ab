"""New records of a run of a server at each look."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..wal.coverage import StreamSpan
from ..wal.encoded import StreamColumns
from ..wal.scan import Gap, Item
from ..wal.seqs import SeqSet
from .access import Unreachable

if TYPE_CHECKING:
    from .runs import ServerRun

_PAGE_RECORDS = 1 << 14


class ServerFollower:
    """A `runs.follow.FolderFollower` over HTTP."""

    poll_s = 1.0

    def __init__(self, stored: ServerRun) -> None:
        self.run = stored.view()
        self._stored = stored
        self._seen: dict[bytes, SeqSet] = {}
        self._reported: dict[tuple[bytes, str], SeqSet] = {}
        self._away = ""  # why the server is not reached
        self._notices: list[str] = []

    def last(self, count: int) -> Iterator[StreamColumns]:
        """At least the last `count` records over all streams, and from now on those that come."""
        for span in self._stored.coverage().values():
            self._seen[span.stream] = span.stored
            for cause, seqs in span.gaps.items():
                self._reported[span.stream, cause] = seqs
            left = count
            for first, last in reversed(span.stored.ranges()):
                if left <= 0:
                    break
                yield from self._records(span, max(first, last - left + 1), last)
                left -= last - first + 1

    def poll(self) -> Iterator[Item]:
        """All that is new: records and gaps. Nothing while the server is away; what is missing comes later."""
        try:
            yield from self._new()
            self._note("")
        except Unreachable as error:
            self._note(str(error))

    def _new(self) -> Iterator[Item]:
        for span in self._stored.coverage().values():
            seen = self._seen.setdefault(span.stream, SeqSet())
            for first, last in span.stored.minus(seen).ranges():
                for item in self._records(span, first, last):
                    seen.add_seqs(item.columns.seq)  # now: the next page may fail
                    yield item
            for cause, seqs in span.gaps.items():
                reported = self._reported.setdefault((span.stream, cause), SeqSet())
                for first, last in seqs.minus(span.stored).minus(reported).ranges():
                    reported.add(first, last)
                    yield Gap(span.stream, span.process, span.lane, first, last, cause)

    def _note(self, trouble: str) -> None:
        """Noted once when it goes, and once when it is back."""
        if bool(trouble) != bool(self._away):
            self._notices.append(f"-- {trouble}; trying again" if trouble else "-- the server answers again")
        self._away = trouble

    def notices(self) -> list[str]:
        """Return notices since the last look."""
        notices, self._notices = self._notices, []
        return notices

    def _records(self, span: StreamSpan, first: int, last: int) -> Iterator[StreamColumns]:
        while 0 < first <= last:
            found, after = self._stored.fetch(span.stream, first, min(_PAGE_RECORDS, last - first + 1))
            for item in found:
                stop = sum(1 for seq in item.columns.seq if seq <= last)
                if stop:
                    whole = stop == len(item.columns)
                    yield item if whole else item.with_columns(item.columns.part(0, stop))
            first = after if after > first else 0

    def look_again(self) -> None:
        """The run as it is now."""
        try:
            self._stored.look_again()
        except Unreachable as error:
            self._note(str(error))
            return
        self.run = self._stored.view()

    @property
    def is_over(self) -> bool:
        """Has it ended, or is it given up? One that is late may be behind a bad network."""
        return not self._away and self.run.state.is_over and self.run.state.name != "late"

"""A run's records in the canonical order, from whoever gives them page by page: a collector's store, or its HTTP API.

Runs in a reader, or in a collector for one that takes a run out. What was there when the reader was made is read.

Invariant: memory holds a window of each stream that is being read, never a run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping

from logclient.shm.columns import Columns

from ..wal.coverage import Spans, StreamSpan
from ..wal.encoded import StreamColumns
from .order import Records, Segment

WINDOW_RECORDS = 1 << 13  # of one stream, decoded at a time
_MAX_ASKED = 1 << 16
_MAX_WINDOWS = 1 << 16  # about; of a run with more records they are wider

# (stream, first seq, most records) -> records from there on, and the seq to ask for next; 0: that was all
Fetch = Callable[[bytes, int, int], tuple[list[StreamColumns], int]]


class PagedReader(Records):
    """Windows of seqs stand for segments."""

    def __init__(self, spans: Spans, fetch: Fetch, nodes: Mapping[bytes, str] | None = None) -> None:
        """`nodes`: the path of the node that a stream is part of, where known."""
        self._fetch = fetch
        paths = nodes or {}
        wide = max(WINDOW_RECORDS, sum(span.records for span in spans.values()) // _MAX_WINDOWS)
        super().__init__(
            (
                window
                for span in spans.values()
                for window in _windows(span, paths.get(span.stream, ""), wide)
            ),
            spans,
        )

    def _decode(self, segment: Segment) -> dict[bytes, list[Columns]]:
        found: dict[bytes, list[Columns]] = {stream: [] for stream in segment.spans}
        for stream, span in segment.spans.items():
            first, last = span.first or 0, span.last or 0
            while 0 < first <= last:
                page, after = self._fetch(stream, first, min(_MAX_ASKED, last - first + 1))
                for item in page:
                    seq = item.columns.seq
                    stop = bisect_left(seq, last + 1)
                    if stop < len(seq):
                        item = item.with_columns(item.columns.part(0, stop))
                    if stop:
                        self._keep(found, item)
                first = after if after > first else 0
        return found


def _windows(span: StreamSpan, node: str, wide: int) -> Iterator[Segment]:
    """A stream cut into stretches of at most `wide` stored records."""
    stretch: list[tuple[int, int]] = []
    room = wide
    for first, last in span.stored.ranges():
        while first <= last:
            stop = min(last, first + room - 1)
            stretch.append((first, stop))
            room -= stop - first + 1
            first = stop + 1
            if not room:
                yield _window(span, node, stretch)
                stretch, room = [], wide
    if stretch:
        yield _window(span, node, stretch)


def _window(span: StreamSpan, node: str, stretch: list[tuple[int, int]]) -> Segment:
    part = StreamSpan(span.stream, span.process, span.lane)
    part.fill(stretch, (span.first_step, span.first_time), (span.last_step, span.last_time))
    return Segment(node, f"{span.stream.hex()}-{stretch[0][0]}", Spans({span.stream: part}))

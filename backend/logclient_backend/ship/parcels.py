"""Items become parcels: neighbours of one stream, rank and set of keys are put together, what is too large is cut.

One thread. Invariant: seqs rise within a batch; what comes out of order begins another one.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator

from logclient.shm.columns import Columns
from logclient.shm.record import Shape

from ..wal.scan import Gap, StreamColumns
from ..wire.messages import Parcel

MAX_RECORDS = 1 << 14  # of a batch

_RECORD_BYTES = 32


class Packer:
    """`add` items, `next` gives parcels in the same order."""

    def __init__(self, most_points: int, most_bytes: int) -> None:
        self._most_points = most_points
        self._most_bytes = most_bytes
        self._pieces: deque[StreamColumns] = deque()
        self._gaps: deque[Gap] = deque()
        self._points = 0
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._pieces or self._gaps)

    @property
    def is_full(self) -> bool:
        """There is enough for a whole parcel."""
        return (
            self._points >= self._most_points
            or self._bytes >= self._most_bytes
            or len(self._gaps) >= self._most_points
        )

    def add(self, item: StreamColumns | Gap) -> None:
        if isinstance(item, Gap):
            self._gaps.append(item)
            return
        for piece in self._cut(item):
            self._pieces.append(piece)
            self._points += points_of(piece.columns)
            self._bytes += bytes_of(piece.columns)

    def next(self) -> Parcel | None:
        """The next parcel, as far as there is something for it; its number is not set."""
        if not self:
            return None
        batches: dict[tuple[bytes, int | None, Shape], StreamColumns] = {}
        whole: list[StreamColumns] = []
        points = size = 0
        while self._pieces:
            piece = self._pieces[0]
            more_points, more_bytes = points_of(piece.columns), bytes_of(piece.columns)
            if points and (points + more_points > self._most_points or size + more_bytes > self._most_bytes):
                break
            self._pieces.popleft()
            self._points -= more_points
            self._bytes -= more_bytes
            points += more_points
            size += more_bytes
            key = piece.stream, piece.columns.rank, piece.columns.shape
            before = batches.get(key)
            if before is not None and before.columns.seq[-1] < piece.columns.seq[0]:
                before.columns.extend(piece.columns)
            else:
                batches[key] = piece
                whole.append(piece)
        gaps = [self._gaps.popleft() for _ in range(min(len(self._gaps), self._most_points))]
        return Parcel(0, whole, gaps)

    def _cut(self, item: StreamColumns) -> Iterator[StreamColumns]:
        columns = item.columns
        count = len(columns)
        each = max(1, bytes_of(columns) // count)
        width = max(1, len(columns.shape.names))
        most = max(1, min(MAX_RECORDS, self._most_points // width, self._most_bytes // each))
        if count <= most:
            yield item
            return
        for start in range(0, count, most):
            yield item._replace(columns=columns.part(start, min(count, start + most)))


def points_of(columns: Columns) -> int:
    """Values; a record without any counts as one."""
    return len(columns) * max(1, len(columns.shape.names))


def bytes_of(columns: Columns) -> int:
    """About what it takes in memory."""
    count = len(columns.seq)
    size = (_RECORD_BYTES + 8 * len(columns.cells)) * count
    if not columns.shape.fixed:
        for column in columns.cells:
            if not isinstance(column, array):
                size += 48 * count + sum(map(len, column))
    return size

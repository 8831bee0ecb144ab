"""Items become parcels: neighbours of one stream, rank and set of keys are put together, what is too large is cut.

One thread. Bodies go on as they were read, but for small ones, which are joined: each costs the collector about as much
as a hundred records.

Invariant: seqs rise within a batch; what comes out of order begins another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from logclient.shm.record import VARIABLE, Shape

from ..wal.encoded import StreamColumns
from ..wal.scan import Gap
from ..wire.messages import Parcel

PARCEL_POINTS = 50_000
PARCEL_BYTES = 1 << 20  # in memory
MAX_RECORDS = 1 << 14  # of a batch

_RECORD_BYTES = 32
_TEXT_BYTES = 48
_SMALL_POINTS = 1000  # of a body


class Packer:
    """`add` items, `next` gives parcels in the same order."""

    def __init__(self, most_points: int, most_bytes: int) -> None:
        self._most_points = most_points
        self._most_bytes = most_bytes
        self._pieces: deque[tuple[StreamColumns, int, int]] = deque()  # with its points and bytes
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
            points, size = points_of(piece), bytes_of(piece)
            self._pieces.append((piece, points, size))
            self._points += points
            self._bytes += size

    def next(self) -> Parcel | None:
        """The next parcel, as far as there is something for it; its number is not set."""
        if not self:
            return None
        batches: dict[tuple[bytes, int | None, Shape], list[StreamColumns]] = {}
        whole: list[list[StreamColumns]] = []
        points = size = 0
        while self._pieces:
            piece, more_points, more_bytes = self._pieces[0]
            if points and (points + more_points > self._most_points or size + more_bytes > self._most_bytes):
                break
            self._pieces.popleft()
            self._points -= more_points
            self._bytes -= more_bytes
            points += more_points
            size += more_bytes
            key = piece.stream, piece.rank, piece.shape
            before = batches.get(key)
            if before is not None and before[-1].seqs[-1] < piece.seqs[0]:
                before.append(piece)
            else:
                batches[key] = [piece]
                whole.append(batches[key])
        gaps = [self._gaps.popleft() for _ in range(min(len(self._gaps), self._most_points))]
        return Parcel(0, [item for pieces in whole for item in _joined(pieces)], gaps)

    def _cut(self, item: StreamColumns) -> Iterator[StreamColumns]:
        count = len(item)
        each = max(1, bytes_of(item) // count)
        width = max(1, len(item.shape.names))
        most = max(1, min(MAX_RECORDS, self._most_points // width, self._most_bytes // each))
        columns = item.decoded() if count > most else None
        if columns is None:
            yield item
            return
        for start in range(0, count, most):
            yield item.with_columns(columns.part(start, min(count, start + most)))


def _joined(pieces: list[StreamColumns]) -> list[StreamColumns]:
    """Return the records of some pieces as one; small bodies, and those between which seqs are missing, become one.

    Where one cannot be decoded all stay apart: the collector refuses that one, and takes the others.
    """
    first, count = pieces[0], sum(map(len, pieces))
    if len(pieces) == 1:
        return pieces
    is_large = count * len(first.shape.codes) >= _SMALL_POINTS * len(pieces)
    if is_large and first.shape.fixed and pieces[-1].seqs[-1] - first.seqs[0] == count - 1:
        bodies = [body for piece in pieces for body in piece.bodies]
        whose = first.stream, first.process, first.lane
        return [StreamColumns(*whose, shape=first.shape, rank=first.rank, bodies=bodies)]
    columns = [piece.decoded() for piece in pieces]
    if None in columns:
        return pieces
    joined = first.columns.part(0, len(first))
    for piece in pieces[1:]:
        joined.extend(piece.columns)
    return [first.with_columns(joined)]


def points_of(item: StreamColumns) -> int:
    """Values; a record without any counts as one."""
    return len(item) * max(1, len(item.shape.names))


def bytes_of(item: StreamColumns) -> int:
    """About what it takes in memory, decoded."""
    size = (_RECORD_BYTES + 8 * len(item.shape.codes)) * len(item)
    if not item.shape.fixed:
        variable = sum(map(item.shape.codes.count, VARIABLE))
        size += _TEXT_BYTES * variable * len(item) + item.text_bytes
    return size

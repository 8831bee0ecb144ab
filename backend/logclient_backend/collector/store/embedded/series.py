"""Raw points of one key, page by page.

Runs in any reader's session. The cursor lists each stream's seqs that were looked at (as ranges): a record that comes
late, with a seq below others that were given already, is given with the next page. It is opaque to whoever holds it.

Memory: one block of each stream's overlapping key tables, and a page.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from logclient.errors import BadArgument
from logclient.shm.record import FLOATS

from ....wal.seqs import SeqSet
from ..interface import Points, StreamInfo
from .blocks import Head
from .ledger import MAX_SEQ, seqs_from
from .rows import Cells, Rows, values_of
from .sources import Source, of_key, sweep

if TYPE_CHECKING:
    from logclient.shm.record import Value

    from .database import Session
    from .shared import Shared

_MAX_CURSOR = 1 << 22


def points(
    session: Session,
    shared: Shared,
    name_id: int | None,
    attempts: Mapping[str, int],
    *,
    after: str,
    most: int,
    steps: tuple[int, int],
) -> Points:
    """A page; `most` is exceeded by no more than what stands twice in one record. `steps`: first and last."""
    page = _Page(session, shared, read_cursor(after), max(1, most), steps)
    sources = [] if name_id is None else of_key(session, name_id)
    infos: dict[int, StreamInfo] = {}
    spans: dict[int, tuple[int, int]] = {}
    for source in sources:
        head = source.head
        if head.stream not in infos:
            infos[head.stream] = _info(session, head.stream, attempts)
        attempt = infos[head.stream].attempt
        low, high = spans.get(attempt, (head.min_step, head.max_step))
        spans[attempt] = min(low, head.min_step), max(high, head.max_step)
    for stream, group in groupby(sources, key=lambda source: source.head.stream):
        page.stream(stream, list(group))
        if page.is_full:
            break
    return page.made([infos[stream] for stream in page.streams], spans)


def _info(session: Session, stream: int, attempts: Mapping[str, int]) -> StreamInfo:
    id, process, lane = session.connection.execute(
        "SELECT id, process, lane FROM streams WHERE stream=?", (stream,)
    ).fetchone()
    return StreamInfo(id, process, lane, attempts.get(process.hex(), 1))


class _Page:
    """Points as they are collected."""

    def __init__(
        self,
        session: Session,
        shared: Shared,
        seen: dict[int, SeqSet],
        most: int,
        steps: tuple[int, int],
    ) -> None:
        self.streams: list[int] = []
        self.is_full = False
        self._session = session
        self._shared = shared
        self._seen = seen
        self._left = most
        self._first, self._last = steps
        self._chunks: list[_Chunk] = []

    def stream(self, stream: int, sources: list[Source]) -> None:
        """Its points that were not seen."""
        seen = self._seen.setdefault(stream, SeqSet())
        wanted = []
        for source in sources:
            if self._is_outside(source.head) or self._is_seen(source.head, seen):
                continue
            wanted.append((source.head.first_seq, source))
        if not wanted:
            return
        if self._left <= 0:
            self.is_full = True
            return
        for group in sweep(wanted, self._load):
            parts = [(source, _unseen(rows, seen)) for source, rows in group]
            chunk = _chunk(stream, [(source, rows) for source, rows in parts if len(rows)])
            if chunk is None:
                continue
            if self._left <= 0:
                self.is_full = True
                return
            if len(chunk.seq) > self._left:
                reach = int(chunk.seq[self._left - 1])
                chunk = chunk.until(reach)
                self.is_full = True
            self._take(stream, seen, chunk)
            if self.is_full:
                return

    def _is_seen(self, head: Head, seen: SeqSet) -> bool:
        """Was all that is stored between its first and its last seq looked at?"""
        if not (seen.covers(head.first_seq, head.first_seq) and seen.covers(head.last_seq, head.last_seq)):
            return False
        if seen.covers(head.first_seq, head.last_seq):
            return True
        stored = seqs_from(self._session.connection, head.stream, head.first_seq)
        return all(seen.covers(low, min(high, head.last_seq)) for low, high in stored if low <= head.last_seq)

    def _is_outside(self, head: Head) -> bool:
        """Has it no step that was asked for?"""
        return head.max_step < self._first or head.min_step > self._last

    def _load(self, source: Source) -> Rows:
        head = source.head
        codes = self._shared.tables.shape(self._session, head.table).codes
        rows = source.read(self._session, codes, [source.place])
        if self._first <= head.min_step and head.max_step <= self._last:
            return rows
        return rows.taken(np.flatnonzero((self._first <= rows.step) & (rows.step <= self._last)))

    def _take(self, stream: int, seen: SeqSet, chunk: _Chunk) -> None:
        if not self.streams or self.streams[-1] != stream:
            self.streams.append(stream)
        chunk.index = len(self.streams) - 1
        self._chunks.append(chunk)
        self._left -= len(chunk.seq)
        self._look(stream, seen, int(chunk.seq[0]), int(chunk.seq[-1]))

    def _look(self, stream: int, seen: SeqSet, first: int, last: int) -> None:
        """All stored seqs from the first to the last given were looked at, those without this key too."""
        for low, high in seqs_from(self._session.connection, stream, first):
            if low > last:
                break
            seen.add(low, min(high, last))

    def made(self, streams: Sequence[StreamInfo], spans: Mapping[int, tuple[int, int]]) -> Points:
        chunks = self._chunks

        def column(name: str, kind: str) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
            found = [getattr(chunk, name) for chunk in chunks]
            return np.concatenate(found).astype(kind, copy=False) if found else np.empty(0, kind)

        index = [np.full(len(chunk.seq), chunk.index, np.int32) for chunk in chunks]
        return Points(
            step=column("step", "i8"),  # type: ignore[arg-type]
            time_ns=column("time", "i8"),  # type: ignore[arg-type]
            seq=column("seq", "u8"),  # type: ignore[arg-type]
            order=column("order", "u8"),  # type: ignore[arg-type]
            stream=np.concatenate(index) if index else np.empty(0, np.int32),
            rank=column("rank", "i4"),  # type: ignore[arg-type]
            values=_values([part for chunk in chunks for part in chunk.values]),
            streams=streams,
            next=write_cursor(self._seen),
            is_all=not self.is_full,
            spans=spans,
        )


class _Chunk:
    """Points of one stream, in order of seq and of place in the record."""

    __slots__ = ("index", "order", "rank", "seq", "step", "time", "values")

    def __init__(self, parts: Sequence[tuple[Source, Rows]]) -> None:
        self.index = 0
        self.seq = np.concatenate([rows.seq for _, rows in parts])
        self.order = np.concatenate([rows.order for _, rows in parts])
        self.step = np.concatenate([rows.step for _, rows in parts])
        self.time = np.concatenate([rows.time for _, rows in parts])
        self.rank = np.concatenate([np.full(len(rows), source.head.rank, np.int32) for source, rows in parts])
        self.values: list[tuple[str, Cells]] = [
            (source.code, rows.cells[source.place]) for source, rows in parts
        ]
        if len(parts) > 1:
            place = np.concatenate([np.full(len(rows), source.place, np.int32) for source, rows in parts])
            self._sort(np.lexsort((place, self.seq)))

    def _sort(self, by: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        self.seq, self.order, self.rank = self.seq[by], self.order[by], self.rank[by]
        self.step, self.time = self.step[by], self.time[by]
        codes = {code for code, _ in self.values}
        if len(codes) == 1 and not codes & set("is"):
            self.values = [(codes.pop(), np.concatenate([cells for _, cells in self.values])[by])]
            return
        flat: list[tuple[str, Cells]] = [
            (code, cells[at : at + 1]) for code, cells in self.values for at in range(len(cells))
        ]
        self.values = [flat[at] for at in by.tolist()]

    def until(self, seq: int) -> _Chunk:
        """Return the points up to that seq."""
        stop = int(np.searchsorted(self.seq, np.uint64(seq), side="right"))
        for name in ("seq", "order", "step", "time", "rank"):
            setattr(self, name, getattr(self, name)[:stop])
        left: list[tuple[str, Cells]] = []
        for code, cells in self.values:
            if stop <= 0:
                break
            left.append((code, cells[:stop]))
            stop -= len(cells)
        self.values = left
        return self


def _chunk(stream: int, parts: Sequence[tuple[Source, Rows]]) -> _Chunk | None:
    return _Chunk(parts) if parts else None


def _unseen(rows: Rows, seen: SeqSet) -> Rows:
    positions = seen.unseen(rows.seq.tolist()) if seen else None
    return rows if positions is None else rows.taken(np.array(positions, np.int64))


def _values(parts: Sequence[tuple[str, Cells]]) -> Sequence[Value]:
    """One array where one type holds all values, else a list."""
    codes = {code for code, _ in parts}
    if codes and codes <= FLOATS:
        return np.concatenate([cells for _, cells in parts]).view(np.float64)  # type: ignore[return-value]
    if codes == {"q"}:
        return np.concatenate([cells for _, cells in parts]).view(np.int64)  # type: ignore[return-value]
    return [value for code, cells in parts for value in values_of(code, cells)]


# ---- cursors ------------------------------------------------------------------------------------------------


def write_cursor(seen: Mapping[int, SeqSet]) -> str:
    table = {str(stream): seqs.ranges() for stream, seqs in seen.items() if seqs}
    data = json.dumps(table, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(zlib.compress(data)).decode()


def read_cursor(text: str) -> dict[int, SeqSet]:
    """`BadArgument` where it is none."""
    if not text:
        return {}
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.urlsafe_b64decode(text.encode("ascii")), _MAX_CURSOR)
        if not unpacker.eof:
            raise ValueError("too long")
        found = {}
        for stream, ranges in json.loads(data).items():
            pairs = [(int(first), int(last)) for first, last in ranges]
            if not all(1 <= first <= last <= MAX_SEQ for first, last in pairs):
                raise ValueError("no ranges")
            found[int(stream)] = SeqSet(pairs)
        return found
    except (ValueError, TypeError, AttributeError, zlib.error) as error:
        raise BadArgument("Points: `after` is no cursor that a page before gave as `next`.") from error

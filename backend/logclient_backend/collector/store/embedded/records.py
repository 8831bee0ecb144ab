"""Whole records of one stream, by seq; any reader's session.

A page covers a range of seqs, chosen by the ledger, and holds all records in it: per key table and rank one
`StreamColumns`, so records of tables that were logged in turn overlap in seqs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from logclient.shm.record import Shape

from ....wal.encoded import StreamColumns
from .ledger import seqs_from
from .rows import Rows, joined, to_columns
from .sources import of_stream

if TYPE_CHECKING:
    from .database import Session
    from .shared import Shared

MAX_VALUES = 1 << 21  # of a page


def records(
    session: Session,
    shared: Shared,
    run: int,
    stream: bytes,
    first_seq: int,
    *,
    most: int,
    keys: Collection[str] | None,
) -> tuple[list[StreamColumns], int]:
    """See `interface.Reader.records`."""
    row = session.connection.execute(
        "SELECT stream, process, lane FROM streams WHERE run=? AND id=?", (run, stream)
    ).fetchone()
    if row is None:
        return [], 0
    number, process, lane = row
    most = max(1, most)
    first, last, following = _range(session, number, first_seq, most)
    if not last:
        return [], 0
    sources = of_stream(session, run, number, first, last)
    if keys is None:  # not more values than memory is to hold, however wide the records are
        tables = {source.head.table for source in sources}
        width = max((len(shared.tables.shape(session, table).codes) for table in tables), default=1)
        if width * most > MAX_VALUES:
            first, last, following = _range(session, number, first_seq, max(1, MAX_VALUES // width))
            sources = [source for source in sources if source.head.first_seq <= last]
    parts: dict[tuple[int, int], list[Rows]] = {}
    chosen: dict[int, list[int]] = {}
    for source in sources:
        table = source.head.table
        shape = shared.tables.shape(session, table)
        if table not in chosen:
            chosen[table] = [place for place, name in enumerate(shape.names) if keys is None or name in keys]
        if keys and not chosen[table]:
            continue
        rows = source.read(session, shape.codes, None if keys is None else chosen[table])
        rows = rows.between(first, last)
        if len(rows):
            parts.setdefault((table, source.head.rank), []).append(rows)
    made = []
    for (table, rank), found in parts.items():
        shape, places = shared.tables.shape(session, table), chosen[table]
        if keys is not None:
            names = tuple(shape.names[place] for place in places)
            shape = Shape(names, "".join(shape.codes[place] for place in places))
        columns = to_columns(joined(found).in_order(), shape, None if rank < 0 else rank, places)
        made.append(StreamColumns(stream, process, lane, columns))
    made.sort(key=lambda item: item.columns.seq[0])
    return made, following


def _range(session: Session, stream: int, first_seq: int, most: int) -> tuple[int, int, int]:
    """First and last seq of the page, 0 where nothing is left; and the stored seq that follows, 0: none."""
    first = last = 0
    for low, high in seqs_from(session.connection, stream, max(1, first_seq)):
        if not most:
            return first, last, low
        first = first or low
        last = min(high, low + most - 1)
        most -= last - low + 1
        if last < high:
            return first, last, last + 1
    return first, last, 0

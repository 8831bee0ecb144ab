"""Coverage of each stream, stored seqs and known gaps: as rows, and a bounded cache of them.

Belongs to the writer. Invariants: rows of one stream and cause are disjoint and not adjacent; they change in the
transaction of the records they speak of; after a failed transaction whatever was touched is forgotten here and read
again.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from dataclasses import dataclass, field

from ....wal.coverage import StreamSpan
from ....wal.scan import Gap
from ....wal.seqs import SeqSet

STORED = 0
CAUSES = ("stored", "damaged", "forgotten", "trimmed")  # by number, as in the table
MAX_OPEN = 2048  # streams that are kept
MAX_SEQ = (1 << 63) - 1


@dataclass(slots=True)
class Open:
    """A stream that is being written."""

    number: int
    span: StreamSpan
    nodes: set[str] = field(default_factory=set)
    fresh: SeqSet = field(default_factory=SeqSet)  # stored in this transaction
    holes: list[Gap] = field(default_factory=list)  # reported in this transaction


class Ledger:
    """Open streams by run and id."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[int, bytes], Open] = OrderedDict()
        self._touched: dict[tuple[int, bytes], Open] = {}

    def open(
        self, connection: sqlite3.Connection, run: int, node: str, stream: bytes, process: bytes, lane: int
    ) -> Open:
        """The stream, which from now on this transaction changes."""
        key = (run, stream)
        found = self._open.get(key)
        if found is None:
            found = self._open[key] = _load(connection, run, stream, process, lane)
        self._open.move_to_end(key)
        self._touched[key] = found
        if node not in found.nodes:
            connection.execute("INSERT OR IGNORE INTO told VALUES(?, ?, ?)", (run, node, found.number))
            found.nodes.add(node)
        return found

    def save(self, connection: sqlite3.Connection) -> None:
        """Write what this transaction changed."""
        for found in self._touched.values():
            for first, last in found.fresh.ranges():
                add_range(connection, found.number, STORED, first, last)
            for gap in found.holes:
                cause = CAUSES.index(gap.cause) if gap.cause in CAUSES[1:] else 1
                add_range(connection, found.number, cause, gap.first, gap.last)
            if found.fresh:
                span = found.span
                connection.execute(
                    "UPDATE streams SET first_seq=?, first_step=?, first_ns=?, last_seq=?, last_step=?, last_ns=?"
                    " WHERE stream=?",
                    (
                        span.first,
                        span.first_step,
                        span.first_time,
                        span.last,
                        span.last_step,
                        span.last_time,
                        found.number,
                    ),
                )

    def committed(self) -> None:
        for found in self._touched.values():
            if found.fresh:
                found.fresh = SeqSet()
            found.holes.clear()
        self._touched.clear()
        while len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)

    def failed(self) -> None:
        for key in self._touched:
            self._open.pop(key, None)
        self._touched.clear()

    def forget(self) -> None:
        """Runs went: read everything again."""
        self._open.clear()
        self._touched.clear()


def _load(connection: sqlite3.Connection, run: int, stream: bytes, process: bytes, lane: int) -> Open:
    row = connection.execute(
        "SELECT stream, id, process, lane, first_seq, first_step, first_ns, last_seq, last_step, last_ns"
        " FROM streams WHERE run=? AND id=?",
        (run, stream),
    ).fetchone()
    if row is None:
        number = connection.execute(
            "INSERT INTO streams(run, id, process, lane) VALUES(?, ?, ?, ?)", (run, stream, process, lane)
        ).lastrowid
        assert number is not None
        return Open(number, StreamSpan(stream, process, lane))
    return Open(row[0], span_of(connection, row))


def span_of(
    connection: sqlite3.Connection, row: tuple[int, bytes, bytes, int, int, int, int, int, int, int]
) -> StreamSpan:
    """Return the coverage of the stream whose row this is."""
    number, stream, process, lane, first, first_step, first_ns, last, last_step, last_ns = row
    span = StreamSpan(stream, process, lane)
    ranges: dict[int, list[tuple[int, int]]] = {}
    for cause, a, b in connection.execute(
        "SELECT cause, first, last FROM ledger WHERE stream=? ORDER BY cause, first", (number,)
    ):
        ranges.setdefault(cause, []).append((a, b))
    span.stored = SeqSet(ranges.pop(STORED, ()))
    span.gaps = {CAUSES[cause]: SeqSet(found) for cause, found in ranges.items()}
    if span.stored:
        span.add_edges(first, first_step, first_ns, last, last_step, last_ns)
    return span


def add_range(connection: sqlite3.Connection, stream: int, cause: int, first: int, last: int) -> None:
    """Add `first` to `last`, and join what touches it."""
    before = connection.execute(
        "SELECT first, last FROM ledger WHERE stream=? AND cause=? AND first<=? ORDER BY first DESC LIMIT 1",
        (stream, cause, first),
    ).fetchone()
    if before is not None and before[1] >= first - 1:
        first, last = before[0], max(last, before[1])
    (reach,) = connection.execute(
        "SELECT max(last) FROM ledger WHERE stream=? AND cause=? AND first BETWEEN ? AND ?",
        (stream, cause, first, min(last, MAX_SEQ - 1) + 1),
    ).fetchone()
    last = max(last, reach or 0)
    connection.execute(
        "DELETE FROM ledger WHERE stream=? AND cause=? AND first BETWEEN ? AND ?",
        (stream, cause, first + 1, min(last, MAX_SEQ - 1) + 1),
    )
    connection.execute("INSERT OR REPLACE INTO ledger VALUES(?, ?, ?, ?)", (stream, cause, first, last))


def seqs_from(connection: sqlite3.Connection, stream: int, first: int) -> list[tuple[int, int]]:
    """The stored ranges that reach to `first` or beyond, cut there."""
    low = connection.execute(
        "SELECT max(first) FROM ledger WHERE stream=? AND cause=0 AND first<=?", (stream, first)
    ).fetchone()[0]
    rows = connection.execute(
        "SELECT first, last FROM ledger WHERE stream=? AND cause=0 AND first>=? AND last>=? ORDER BY first",
        (stream, low or 0, first),
    )
    return [(max(a, first), b) for a, b in rows]

"""The writer of the embedded engine: what arrives becomes tail rows, in one transaction with the ledger.

Runs in the collector's writing thread, one at a time. Costs as little per point as it can: no loop over values, and the
values of a `StreamColumns` become one blob. Everything else (blocks, last values) is the upkeep's (`compact.py`).

Invariants: a transaction holds all of its parcels or none; what is in the ledger is in a tail row or a block; caches
never know more than what is committed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from logclient.shm.columns import Columns
from logclient.shm.side_stream import side_of

from ....wal.encoded import StreamColumns, encode, pack
from ....wal.scan import Gap
from ....wal.seal import unseen_part
from ..interface import Parcel, RunDeleted, StoreError, Written, side_id
from . import catalog, news
from .key_tables import WriterTables
from .ledger import MAX_SEQ, Ledger
from .remove import Remover
from .rows import heads_of

if TYPE_CHECKING:
    from .database import Database
    from .shared import Shared

_TAIL = (
    "INSERT INTO tail(run, stream, tbl, rank, n, points, first_seq, last_seq, min_step, max_step,"
    " first_ns, first_order, body) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)"
)
# what was stored while the clock was ahead does not stay
_SEEN = "last_seen_ns=max(min(last_seen_ns, ?), ?)"


class EmbeddedWriter:
    """See `interface.Writer`."""

    def __init__(self, database: Database, shared: Shared) -> None:
        self._database = database
        self._shared = shared
        self._session = database.session()
        self._ledger = Ledger()
        self._tables = WriterTables()
        self._remover = Remover(database, shared, self._session)

    def write(self, parcels: Sequence[Parcel]) -> Written:
        """All of them in one transaction."""
        with self._database.lock:
            write = _Write(self, self._session.connection)
            seen = self._shared.take_seen()
            try:
                with self._database.changing(self._session):
                    for parcel in parcels:
                        write.parcel(parcel)
                    self._ledger.save(self._session.connection)
                    write.finish(seen)
            except BaseException:
                self._ledger.failed()
                self._tables.failed()
                self._shared.put_back(seen)
                raise
            self._ledger.committed()
            self._tables.committed()
            self._shared.tail.add(write.points, write.tail_rows)
            self._shared.seen.note_seen(write.seen())
        return Written(write.records, write.repeated, write.points)

    def seen(self, runs: Mapping[str, int]) -> None:
        """Kept in memory, and written with what is written next."""
        self._shared.note_seen(runs)

    def delete(self, run: str, now_ns: int) -> bool:
        return self._remover.delete(run, now_ns)

    def undelete(self, run: str) -> bool:
        return self._remover.undelete(run)

    def purge(self, keep_ns: int) -> int:
        """Takes the write lock for a moment at a time: call it from a thread of its own."""
        with self._database.lock:
            self._ledger.forget()
            self._tables.forget()
        return self._remover.purge(keep_ns)

    def save_last_seen(self) -> None:
        seen = self._shared.take_seen(now=True)
        if seen:
            with self._database.changing(self._session) as connection:
                save_last_seen(connection, seen, self._shared.clock.wall_ns())

    def close(self) -> None:
        with self._database.lock:
            self._session.connection.close()


class _Write:
    """One transaction."""

    def __init__(self, writer: EmbeddedWriter, connection: sqlite3.Connection) -> None:
        self.records = self.repeated = self.points = self.tail_rows = 0
        self.has_described = False
        self._writer = writer
        self._connection = connection
        self._runs: dict[str, _RunWrite] = {}
        self._sides: dict[str, _RunWrite] = {}

    def parcel(self, parcel: Parcel) -> None:
        run = self._runs.get(parcel.run)
        if run is None:
            run = self._runs[parcel.run] = _RunWrite(self._run(parcel.run))
        run.seen_ns = max(run.seen_ns, parcel.received_ns)
        for item in parcel.batches:
            self._batch(self._of(run, parcel, item.stream), parcel.node, item)
        for gap in parcel.holes:
            self._gap(self._of(run, parcel, gap.stream), parcel.node, gap)
        if parcel.documents is not None:
            self._documents(run, parcel)
        if parcel.edits is not None:
            packed = self._writer._session.packer.plain(parcel.edits)
            self._connection.execute("INSERT OR REPLACE INTO edits VALUES(?, ?)", (run.number, packed))
        self.has_described |= parcel.description is not None or parcel.edits is not None
        if parcel.description is not None:
            catalog.describe(self._connection, run.number, parcel.description)

    def _of(self, run: _RunWrite, parcel: Parcel, stream: bytes) -> _RunWrite:
        """Return where a stream goes: each side is kept apart."""
        side = side_of(stream)
        if not side:
            return run
        id = side_id(parcel.run, side)
        found = self._sides.get(id)
        if found is None:
            row = self._connection.execute("SELECT run FROM runs WHERE id=?", (id,)).fetchone()
            made = row[0] if row is not None else catalog.make_side(self._connection, id)
            found = self._sides[id] = _RunWrite(made)
        return found

    def _run(self, id: str) -> int:
        row = self._connection.execute("SELECT run, deleted_ns FROM runs WHERE id=?", (id,)).fetchone()
        if row is None:
            row = self._connection.execute(
                "SELECT 0, deleted_ns FROM tombstones WHERE id=?", (id,)
            ).fetchone()
            if row is None:
                made = self._connection.execute("INSERT INTO runs(id) VALUES(?)", (id,)).lastrowid
                assert made is not None
                return made
        if row[1]:
            error = RunDeleted(
                f"Run {id!r} was deleted here and takes no more data. Undelete it first, or leave it as it is."
            )
            error.run = id
            raise error
        return int(row[0])

    def _batch(self, run: _RunWrite, node: str, item: StreamColumns) -> None:
        columns = item.columns
        if not len(columns):
            return
        if columns.seq[0] < 1 or columns.seq[-1] > MAX_SEQ:
            raise StoreError(f"Records {columns.seq[0]} to {columns.seq[-1]}: a seq is from 1 to {MAX_SEQ}.")
        stream = self._writer._ledger.open(
            self._connection, run.number, node, item.stream, item.process, item.lane
        )
        fresh = unseen_part(columns, stream.span.stored)
        if fresh is None:
            self.repeated += len(columns)
            return
        self.repeated += len(columns) - len(fresh)
        stream.span.add(fresh)
        stream.fresh.add_seqs(fresh.seq)
        is_whole = fresh is columns
        body = (is_whole and item.packed) or pack(item.bodies if is_whole else encode(fresh))
        self._tail(run, stream.number, fresh, body)

    def _tail(self, run: _RunWrite, stream: int, columns: Columns, body: bytes) -> None:
        session, shape, rows = self._writer._session, columns.shape, heads_of(columns)
        count, points = len(rows), len(rows) * len(shape.codes)
        oldest = rows.oldest()
        self._connection.execute(
            _TAIL,
            (
                run.number,
                stream,
                self._writer._tables.number(session, run.number, shape),
                -1 if columns.rank is None else columns.rank,
                count,
                points,
                int(rows.seq[0]),
                int(rows.seq[-1]),
                int(rows.step.min()),
                int(rows.step.max()),
                int(rows.time[oldest]),
                clamped(int(rows.order[oldest])),
                body,
            ),
        )
        self.tail_rows += 1
        self.records += count
        self.points += points
        run.records += count
        run.points += points
        run.bytes += len(body)

    def _gap(self, run: _RunWrite, node: str, gap: Gap) -> None:
        if not 1 <= gap.first <= gap.last <= MAX_SEQ:
            raise StoreError(f"A gap from {gap.first} to {gap.last}: a seq is from 1 to {MAX_SEQ}.")
        stream = self._writer._ledger.open(
            self._connection, run.number, node, gap.stream, gap.process, gap.lane
        )
        stream.span.add_gap(gap.first, gap.last, gap.cause)
        stream.holes.append(gap)

    def _documents(self, run: _RunWrite, parcel: Parcel) -> None:
        assert parcel.documents is not None
        packed = self._writer._session.packer.plain(parcel.documents)
        self._connection.execute(
            "INSERT OR REPLACE INTO documents VALUES(?, ?, ?)", (run.number, parcel.node, packed)
        )

    def seen(self) -> dict[str, int]:
        """The runs, and when they were seen."""
        return {id: run.seen_ns for id, run in self._runs.items() if run.seen_ns}

    def finish(self, seen: Mapping[str, int]) -> None:
        """Store what changed of the runs."""
        if self.has_described and not self.tail_rows:
            news.move(self._connection)
        now_ns = self._writer._shared.clock.wall_ns()
        self._connection.executemany(
            f"UPDATE runs SET {_SEEN}, records=records+?, points=points+?, bytes=bytes+? WHERE run=?",
            [
                (now_ns, run.seen_ns, run.records, run.points, run.bytes, run.number)
                for run in (*self._runs.values(), *self._sides.values())
            ],
        )
        save_last_seen(self._connection, seen, now_ns)


class _RunWrite:
    """Additions of one transaction to a run."""

    __slots__ = ("bytes", "number", "points", "records", "seen_ns")

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen_ns = self.records = self.points = self.bytes = 0


def save_last_seen(connection: sqlite3.Connection, seen: Mapping[str, int], now_ns: int) -> None:
    connection.executemany(
        f"UPDATE runs SET {_SEEN} WHERE id=?",
        [(now_ns, seen_ns, id) for id, seen_ns in seen.items()],
    )


def clamped(order: int) -> int:
    """An order as SQLite holds it; no process counts that far."""
    return min(order, MAX_SEQ)

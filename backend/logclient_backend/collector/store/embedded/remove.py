"""Deleting runs: into the bin, out of it, and for good.

Invariants:

- a run that is being purged has no id any more (a tombstone has it), so nobody sees half of it, and the same id can
  be taken again by data that come after an `undelete` while the old rows still go;
- how long a run has been in the bin is counted in the time in which the store was open (`Shared.open_ns`): whatever the
  wall's clock is set to, no run goes early;
- rows go in small transactions: memory stays flat, other writers wait for a moment at most, and a purge that was
  interrupted goes on with the next one, or with the upkeep.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from ..interface import SIDE_MARK
from . import news
from .blocks import parts_of
from .catalog import SIDE
from .database import errors

if TYPE_CHECKING:
    from .database import Database, Session
    from .shared import Shared

_STEP_BLOCKS = 4
_STEP_ROWS = 256
_VACUUM_PAGES = 256


class Remover:
    """Deletes through one session."""

    def __init__(self, database: Database, shared: Shared, session: Session) -> None:
        self._database = database
        self._shared = shared
        self._session = session

    def delete(self, run: str, now_ns: int) -> bool:
        """Into the bin; one that is there already keeps its time."""
        with self._database.changing(self._session) as connection:
            connection.execute(
                "UPDATE runs SET deleted_ns=?, deleted_open_ns=? WHERE id=? AND deleted_ns=0",
                (max(1, now_ns), self._shared.open_ns(), run),
            )
            _save_open(connection, self._shared.open_ns())
            news.move(connection)
            there = connection.execute("SELECT 1 FROM runs WHERE id=? AND deleted_ns!=?", (run, SIDE))
            return there.fetchone() is not None

    def undelete(self, run: str) -> bool:
        with self._database.changing(self._session) as connection:
            kept = connection.execute(
                "UPDATE runs SET deleted_ns=0 WHERE id=? AND deleted_ns>0", (run,)
            ).rowcount
            gone = connection.execute("DELETE FROM tombstones WHERE id=?", (run,)).rowcount
            news.move(connection)
            return bool(kept or gone)

    def purge(self, keep_ns: int) -> int:
        """Remove deleted runs for good; returns how many went."""
        now_ns = self._shared.open_ns()
        before_ns = now_ns - keep_ns
        with self._database.changing(self._session) as connection:
            _save_open(connection, now_ns)
            connection.execute(
                "INSERT OR REPLACE INTO tombstones SELECT id, deleted_ns FROM runs"
                " WHERE id IS NOT NULL AND deleted_ns>0 AND deleted_open_ns<=?",
                (before_ns,),
            )
            count = connection.execute(
                "UPDATE runs SET id=NULL, deleted_ns=-1 WHERE id IS NOT NULL AND deleted_ns>0 AND deleted_open_ns<=?",
                (before_ns,),
            ).rowcount
            # sides of runs that are gone, those too that a version without them has purged
            connection.execute(
                "UPDATE runs SET id=NULL, deleted_ns=-1 WHERE deleted_ns=? AND NOT EXISTS"
                " (SELECT 1 FROM runs AS r WHERE r.id=substr(runs.id, 1, instr(runs.id, ?) - 1))",
                (SIDE, SIDE_MARK),
            )
        while self.step():
            pass
        while vacuum(self._database, self._session):
            pass
        checkpoint(self._database, self._session)
        return count

    def step(self) -> bool:
        """One small step; False where nothing is left."""
        with self._database.changing(self._session) as connection:
            row = connection.execute("SELECT run FROM runs WHERE id IS NULL LIMIT 1").fetchone()
            if row is None:
                return False
            self._step(connection, row[0])
            return True

    def _step(self, connection: sqlite3.Connection, run: int) -> None:
        tail = connection.execute(
            "SELECT id, points FROM tail WHERE run=? LIMIT ?", (run, _STEP_ROWS)
        ).fetchall()
        if tail:
            connection.executemany("DELETE FROM tail WHERE id=?", [(id,) for id, _ in tail])
            self._shared.tail.take(sum(points for _, points in tail), len(tail))
            return
        blocks = connection.execute(
            "SELECT block FROM block WHERE run=? LIMIT ?", (run, _STEP_BLOCKS)
        ).fetchall()
        if blocks:
            for (block,) in blocks:
                # a wide block has very many parts: some now, the rest in the next step
                gone = connection.execute(
                    "DELETE FROM part WHERE id IN (SELECT id FROM part WHERE id BETWEEN ? AND ? LIMIT ?)",
                    (*parts_of(block), 4 * _STEP_ROWS),
                ).rowcount
                if gone == 4 * _STEP_ROWS:
                    return
                connection.execute("DELETE FROM block WHERE block=?", (block,))
            return
        rest = 16 * _STEP_ROWS
        for table, column, chosen in _SMALL:
            gone = connection.execute(
                f"DELETE FROM {table} WHERE ({column}) IN (SELECT {column} FROM {table} WHERE {chosen} LIMIT ?)",
                (run, rest),
            ).rowcount
            if gone:
                return
        connection.execute("DELETE FROM told WHERE run=?", (run,))
        connection.execute("DELETE FROM documents WHERE run=?", (run,))
        connection.execute("DELETE FROM edits WHERE run=?", (run,))
        connection.execute("DELETE FROM runs WHERE run=?", (run,))


_SMALL = (
    ("facts", "rowid", "run=?"),
    ("ledger", "stream", "stream IN (SELECT stream FROM streams WHERE run=?)"),
    ("places", "name_id", "name_id IN (SELECT name_id FROM names WHERE run=?)"),
    ("coarse", "tbl, place, block", "tbl IN (SELECT tbl FROM tables WHERE run=?)"),
    ("streams", "stream", "run=?"),
    ("tables", "tbl", "run=?"),
    ("lasts", "name_id, stream", "name_id IN (SELECT name_id FROM names WHERE run=?)"),
    ("names", "name_id", "run=?"),
)


def _save_open(connection: sqlite3.Connection, open_ns: int) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES('open_ns', ?)", (str(open_ns),))


def checkpoint(database: Database, session: Session) -> None:
    """Move what no reader needs any more from the SQLite WAL into the file; here the file shrinks, too."""
    # the lock: on a connection that does this, another thread's COMMIT is refused
    with database.lock, errors(database.folder):
        session.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def vacuum(database: Database, session: Session, *, keep_pages: int = 0) -> bool:
    """Give some free pages back to the file system; False where there are no more than these."""
    with database.lock, errors(database.folder):
        connection = session.connection
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        if free <= keep_pages:
            return False
        connection.execute(f"PRAGMA incremental_vacuum({min(free - keep_pages, _VACUUM_PAGES):d})").fetchall()
        return True

"""The reader of the embedded engine: any number of threads, each question answered from one state of the store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from logclient.shm.side_stream import SIDES

from ....wal.coverage import Spans
from ....wal.encoded import StreamColumns
from ..interface import Buckets, Held, KeyPage, Last, Points, Run, RunPage, RunQuery, side_id
from . import buckets as charts
from . import catalog, records, series
from . import run_keys as names
from .ledger import MAX_SEQ, span_of

if TYPE_CHECKING:
    from .database import Connections, Session
    from .shared import Shared

_STREAM = "s.stream, s.id, s.process, s.lane, s.first_seq, s.first_step, s.first_ns, s.last_seq, s.last_step, s.last_ns"
_LOWEST = -(1 << 63)  # step
_MAX_RUNS = 100_000  # of `last_values` in one question


class EmbeddedReader:
    """See `interface.Reader`."""

    def __init__(self, database: Connections, shared: Shared) -> None:
        self._database = database
        self._shared = shared

    def held(self, run: str, node: str) -> Held:
        """Return the coverage of a node; empty where the run is not there."""
        with self._database.reading() as session:
            number = catalog.number_of(session.connection, run)
            if number is None:
                return Held({}, {}, None)
            sides = [catalog.number_of(session.connection, side_id(run, side)) for side in SIDES]
            rows = session.connection.execute(
                f"SELECT {_STREAM} FROM told AS t JOIN streams AS s ON s.stream=t.stream"
                f" WHERE t.run IN (?{', ?' * len(SIDES)}) AND t.node=?",
                (number, *sides, node),
            ).fetchall()
            spans = [span_of(session.connection, row) for row in rows]
            documents = session.connection.execute(
                "SELECT json FROM documents WHERE run=? AND node=?", (number, node)
            ).fetchone()
            return Held(
                {span.stream: span.stored for span in spans},
                {span.stream: span.gaps for span in spans},
                None if documents is None else session.packer.read_plain(documents[0]),
                _edits(session, number),
            )

    def is_deleted(self, run: str) -> bool:
        with self._database.reading() as session:
            return (
                session.connection.execute(
                    "SELECT 1 FROM runs WHERE id=? AND deleted_ns>0 UNION SELECT 1 FROM tombstones WHERE id=?",
                    (run, run),
                ).fetchone()
                is not None
            )

    def run(self, run: str) -> Run | None:
        """Also one that is in the bin."""
        with self._database.reading() as session:
            row = session.connection.execute(
                f"SELECT {catalog.RUN} FROM runs WHERE id=? AND deleted_ns!=?", (run, catalog.SIDE)
            ).fetchone()
            return None if row is None else catalog.run_of(row, self._shared.seen, _edits(session, row[0]))

    def runs(self, query: RunQuery) -> RunPage:
        with self._database.reading() as session:
            return catalog.page(session.connection, query, self._shared.seen)

    def documents(self, run: str) -> Mapping[str, bytes]:
        """By node."""
        with self._database.reading() as session:
            rows = session.connection.execute(
                "SELECT d.node, d.json FROM runs AS r JOIN documents AS d ON d.run=r.run WHERE r.id=? ORDER BY d.node",
                (run,),
            )
            return {node: session.packer.read_plain(packed) for node, packed in rows}

    def keys(self, run: str, *, start: int = 0, most: int = 10_000) -> KeyPage:
        """In the order in which they came first, from the one at `start` on."""
        with self._database.reading() as session:
            number = catalog.number_of(session.connection, run)
            if number is None:
                return KeyPage([], 0)
            return names.page(session, self._shared, number, start, most)

    def key_names(self, run: str) -> Sequence[str]:
        with self._database.reading() as session:
            number = catalog.number_of(session.connection, run)
            rows = session.connection.execute("SELECT name FROM names WHERE run=?", (number,))
            return [name for (name,) in rows]

    def last_values(self, runs: Sequence[str], keys: Sequence[str]) -> Mapping[tuple[str, str], Last]:
        """By (run, key)."""
        with self._database.reading() as session:
            wanted = json.dumps(list(runs))
            rows = session.connection.execute(
                "SELECT r.run, r.id FROM json_each(?) AS w CROSS JOIN runs AS r WHERE r.id=w.value LIMIT ?",
                (wanted, _MAX_RUNS),
            )
            return names.last_values(session, self._shared, dict(rows.fetchall()), keys)

    def points(
        self,
        run: str,
        key: str,
        *,
        after: str = "",
        most: int = 100_000,
        first_step: int | None = None,
        last_step: int | None = None,
    ) -> Points:
        """Points of all attempts, or those in a range of steps; blocks that hold none of these are not read."""
        first = _LOWEST if first_step is None else first_step
        last = MAX_SEQ if last_step is None else last_step
        with self._database.reading() as session:
            _, name, attempts = find_key(session, run, key)
            return series.points(
                session, self._shared, name, attempts, after=after, most=most, steps=(first, last)
            )

    def buckets(
        self,
        run: str,
        key: str,
        *,
        most: int = 2000,
        first_step: int | None = None,
        last_step: int | None = None,
        all_attempts: bool = False,
    ) -> Buckets:
        with self._database.reading() as session:
            _, name, attempts = find_key(session, run, key)
            return charts.buckets(
                session,
                self._shared,
                name,
                attempts,
                most=most,
                first_step=first_step,
                last_step=last_step,
                all_attempts=all_attempts,
            )

    def contents(self, run: str) -> Spans:
        """Return the coverage of each stream, and its gaps."""
        with self._database.reading() as session:
            rows = session.connection.execute(
                f"SELECT {_STREAM} FROM runs AS r JOIN streams AS s ON s.run=r.run WHERE r.id=? ORDER BY s.stream",
                (run,),
            ).fetchall()
            spans = Spans()
            for row in rows:
                span = span_of(session.connection, row)
                spans[span.stream] = span
            return spans

    def records(
        self,
        run: str,
        stream: bytes,
        first_seq: int,
        *,
        most: int = 10_000,
        keys: Iterable[str] | None = None,
    ) -> tuple[list[StreamColumns], int]:
        """The columns of a page cover the same range of seqs: those of other keys or ranks may lie between."""
        chosen = None if keys is None else frozenset(keys)
        with self._database.reading() as session:
            number = catalog.number_of(session.connection, run)
            if number is None:
                return [], 0
            return records.records(session, self._shared, number, stream, first_seq, most=most, keys=chosen)


def _edits(session: Session, run: int) -> bytes | None:
    row = session.connection.execute("SELECT json FROM edits WHERE run=?", (run,)).fetchone()
    return None if row is None else session.packer.read_plain(row[0])


def find_key(session: Session, run: str, key: str) -> tuple[int | None, int | None, Mapping[str, int]]:
    """Return the numbers of the run and of the key, and the run's attempts."""
    row = session.connection.execute("SELECT run, attempts FROM runs WHERE id=?", (run,)).fetchone()
    if row is None:
        return None, None, {}
    return row[0], _name(session.connection, row[0], key), json.loads(row[1])


def _name(connection: sqlite3.Connection, run: int, key: str) -> int | None:
    row = connection.execute("SELECT name_id FROM names WHERE run=? AND name=?", (run, key)).fetchone()
    return None if row is None else row[0]

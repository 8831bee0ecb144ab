"""Upkeep: tail rows become blocks, small blocks become large ones, free pages go back to the file system.

Runs in a thread of its own (`Store.compact`), with a connection of its own.

- Tail rows of one run are read, packed outside of any transaction, and put in their blocks' place in one short one;
- of MERGED blocks of one class (of size: each is some eight times the one before) of the same stream, key table and
  rank one is made, until it is half full: wide and slow runs end in large blocks too, and each record is written anew
  only a few times;
- runs that are being purged lose their rows, a step at a time;
- what was heard of runs is stored; the SQLite WAL is brought into the file.

Invariants: each change leaves the same records; rows that went meanwhile (a purge) are noticed inside the transaction,
which then changes nothing; memory is bounded by ROUND_POINTS and one block.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from . import names
from .blocks import Encoded, encode, most_records, parts_of, read_rows
from .database import errors
from .remove import Remover, vacuum
from .rows import Rows, joined, read_tail
from .writer import save_heard

if TYPE_CHECKING:
    from logclient.record import Shape

    from .database import Database
    from .shared import Shared

DUE_POINTS = 500_000
DUE_ROWS = 2_000
DUE_S = 30.0
ROUND_POINTS = 1 << 20
MERGED = 8
FULL = -1
KEPT_PAGES = 2048  # free ones, while data come in: they are used again soon

_TailHead: TypeAlias = "tuple[int, int, int, int, int, int]"  # id, stream, table, rank, records, points
_Made: TypeAlias = "tuple[int, int, int, Shape, Rows, Encoded]"  # stream, table, rank, ...

_BLOCK = (
    "INSERT INTO block(run, stream, tbl, rank, class, n, first_seq, last_seq, min_step, max_step, groups, shift, bytes)"
    " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)"
)


class Compactor:
    """Does the upkeep of one store."""

    def __init__(self, database: Database, shared: Shared) -> None:
        self._database = database
        self._shared = shared
        self._session = database.session()
        self._remover = Remover(database, shared, self._session)
        self._look_at_blocks = True
        self._count_tail(since=0.0)  # what was left by a process before is due

    def _count_tail(self, since: float) -> None:
        with self._database.lock:
            points, rows = self._session.connection.execute(
                "SELECT coalesce(sum(points), 0), count(*) FROM tail"
            ).fetchone()
            self._shared.tail.set(points, rows, since)

    def run(self, *, deadline_s: float, now: bool = False) -> bool:
        """Until the deadline or until nothing is due; `now`: all of it is."""
        until = time.monotonic() + deadline_s
        did = False
        tail = self._shared.tail
        if now or tail.points >= DUE_POINTS or tail.rows >= DUE_ROWS or tail.age_s() > DUE_S:
            started = time.monotonic()
            for run in self._runs_with_tail():
                while time.monotonic() < until and self._compact(run):
                    did = True
                if time.monotonic() >= until:
                    break
            else:
                self._count_tail(since=started)
            self._look_at_blocks |= did
        while self._look_at_blocks and time.monotonic() < until:
            merged = self._merge()
            did |= merged
            self._look_at_blocks = merged
        while time.monotonic() < until and self._remover.step():
            did = True
        keep = 0 if tail.rows <= 0 else KEPT_PAGES
        while time.monotonic() < until and vacuum(self._database, self._session, keep_pages=keep):
            did = True
        heard = self._shared.take_heard(now=now)
        if heard:
            with self._database.changing(self._session) as connection:
                save_heard(connection, heard)
        if did:
            self._checkpoint()
        return did

    def _checkpoint(self) -> None:
        """What no reader needs any more leaves the WAL; the file shrinks here, too."""
        with errors(self._database.folder):
            self._session.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        self._session.connection.close()

    # ---- tail -> blocks ---------------------------------------------------------------------------------

    def _runs_with_tail(self) -> list[int]:
        with errors(self._database.folder):
            rows = self._session.connection.execute("SELECT DISTINCT run FROM tail").fetchall()
        return [run for (run,) in rows]

    def _compact(self, run: int) -> bool:
        """Some tail rows of a run; False where there are none."""
        connection = self._session.connection
        with errors(self._database.folder):
            heads = connection.execute(
                "SELECT id, stream, tbl, rank, n, points FROM tail WHERE run=? ORDER BY stream, tbl, rank, first_seq",
                (run,),
            )
            chosen: list[_TailHead] = []
            points = 0
            for head in heads:
                if chosen and points + head[5] > ROUND_POINTS:
                    break
                chosen.append(head)
                points += head[5]
            heads.close()
            made: list[_Made] = []
            for (stream, table, rank), group in groupby(chosen, key=lambda head: head[1:4]):
                shape = self._shared.tables.shape(self._session, table)
                rows = self._tail_rows([(head[0], head[4]) for head in group], shape.codes)
                if rows is None:
                    return True  # went meanwhile: look again
                for part in _blocks(rows, len(shape.codes)):
                    block = encode(self._session.packer, part, shape.codes)
                    made.append((stream, table, rank, shape, part, block))
        if not chosen:
            return False
        try:
            self._replace_tail(run, chosen, made)
        except _Gone:
            return True
        self._shared.tail.take(points, len(chosen))
        return True

    def _replace_tail(self, run: int, chosen: list[_TailHead], made: list[_Made]) -> None:
        connection = self._session.connection
        with self._database.changing(self._session):
            size = 0
            for id, *_ in chosen:
                found = connection.execute(
                    "DELETE FROM tail WHERE id=? RETURNING length(body)", (id,)
                ).fetchone()
                if found is None:
                    raise _Gone
                size += found[0]
            for stream, table, rank, shape, part, block in made:
                self._insert(run, stream, table, rank, shape, block)
                names.count(connection, run, stream, rank, shape, part)
            size = sum(each[-1].bytes for each in made) - size
            connection.execute("UPDATE runs SET bytes=max(0, bytes+?) WHERE run=?", (size, run))

    def _tail_rows(self, heads: list[tuple[int, int]], codes: str) -> Rows | None:
        found = []
        for id, n in heads:
            row = self._session.connection.execute("SELECT body FROM tail WHERE id=?", (id,)).fetchone()
            if row is None:
                return None
            found.append(read_tail(self._session.packer, row[0], n, codes))
        return joined(found).in_order()

    def _insert(self, run: int, stream: int, table: int, rank: int, shape: Shape, block: Encoded) -> None:
        connection = self._session.connection
        number = connection.execute(
            _BLOCK,
            (
                run,
                stream,
                table,
                rank,
                class_of(block.n, len(shape.codes)),
                block.n,
                block.first_seq,
                block.last_seq,
                block.min_step,
                block.max_step,
                block.groups,
                block.shift,
                block.bytes,
            ),
        ).lastrowid
        assert number is not None
        first, _ = parts_of(number)
        connection.executemany(
            "INSERT INTO part VALUES(?, ?, ?)",
            [(first + place, summary, data) for place, summary, data in block.parts],
        )

    # ---- blocks -> larger blocks ------------------------------------------------------------------------

    def _merge(self) -> bool:
        """Of each class that has enough, one round; False where none has."""
        with errors(self._database.folder):
            due = self._session.connection.execute(
                "SELECT class, stream, tbl, rank FROM block WHERE class>=0 GROUP BY class, stream, tbl, rank"
                " HAVING count(*)>=?",
                (MERGED,),
            ).fetchall()
        did = False
        for place in due:
            did |= self._merge_some(*place)
        return did

    def _merge_some(self, class_: int, stream: int, table: int, rank: int) -> bool:
        connection = self._session.connection
        with errors(self._database.folder):
            shape = self._shared.tables.shape(self._session, table)
            most = most_records(len(shape.codes))
            chosen = []
            records = 0
            for head in connection.execute(
                "SELECT block, run, n, bytes FROM block WHERE class=? AND stream=? AND tbl=? AND rank=?"
                " ORDER BY first_seq",
                (class_, stream, table, rank),
            ):
                if records + head[2] > most:
                    break
                chosen.append(head)
                records += head[2]
            if len(chosen) < 2:
                return False
            found = [read_rows(self._session, head[0], head[2], shape.codes) for head in chosen]
            block = encode(self._session.packer, joined(found).in_order(), shape.codes)
        try:
            self._replace_blocks(chosen, stream, table, rank, shape, block)
        except _Gone:
            pass
        return True

    def _replace_blocks(
        self,
        chosen: list[tuple[int, int, int, int]],
        stream: int,
        table: int,
        rank: int,
        shape: Shape,
        block: Encoded,
    ) -> None:
        connection = self._session.connection
        run = chosen[0][1]
        with self._database.changing(self._session):
            for number, *_ in chosen:
                if connection.execute("DELETE FROM block WHERE block=?", (number,)).rowcount != 1:
                    raise _Gone
                connection.execute("DELETE FROM part WHERE id BETWEEN ? AND ?", parts_of(number))
            self._insert(run, stream, table, rank, shape, block)
            size = block.bytes - sum(head[3] for head in chosen)
            connection.execute("UPDATE runs SET bytes=max(0, bytes+?) WHERE run=?", (size, run))


class _Gone(Exception):
    """Rows that were chosen went meanwhile."""


def _blocks(rows: Rows, keys: int) -> Iterator[Rows]:
    """In parts that fit a block, of about the same size."""
    most = most_records(keys)
    count = -(-len(rows) // most)
    for number in range(count):
        yield rows.part(number * len(rows) // count, (number + 1) * len(rows) // count)


def class_of(records: int, keys: int) -> int:
    """0 for the smallest; FULL for those that stay as they are."""
    if 2 * records >= most_records(keys):
        return FULL
    return (records.bit_length() - 1) // 3

"""Upkeep: tail rows become blocks, small blocks become large ones, free pages go back to the file system.

Runs in a thread of its own (`Store.compact`), with a connection of its own.

- Tail rows are read, packed outside of any transaction, and their blocks put in their place in one short one;
- of MERGED blocks of one class (of size: each is some eight times the one before) of the same stream, key table and
  rank one is made, until it is half full: wide and slow runs end in large blocks too, and each record is written anew
  only a few times;
- runs that are being purged lose their rows, a step at a time;
- times at which runs were seen are stored; the SQLite WAL is brought into the file.

A tail row is left alone for KEEP_S: who follows a run live finds in the tail what came (`news.py`).

Invariants: each change leaves the same records; rows that went meanwhile (a purge) are noticed inside the transaction,
which then changes nothing; memory is bounded by ROUND_POINTS and one block.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from . import run_keys as names
from .blocks import Encoded, encode, most_records, parts_of, read_rows
from .database import errors
from .news import note_packed
from .remove import Remover, checkpoint, vacuum
from .rows import Rows, joined, read_tails
from .writer import save_last_seen

if TYPE_CHECKING:
    from logclient.shm.record import Shape

    from .database import Database
    from .shared import Shared

DUE_POINTS = 500_000
DUE_ROWS = 2_000
DUE_S = 30.0
KEEP_S = 1.0
ROUND_POINTS = 1 << 20
ROUND_BLOCKS = 200  # about: the writer waits while they are put in place
MERGED = 8
FULL = -1
KEPT_PAGES = 2048  # free ones, while data come in: they are used again soon

_TailHead: TypeAlias = (
    "tuple[int, int, int, int, int, int, int]"  # id, run, stream, table, rank, records, points
)
_Made: TypeAlias = "tuple[int, int, int, int, Shape, Rows, Encoded]"  # run, stream, table, rank, ...

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
        self._newest_at = deque(
            [(0.0, self._newest())]
        )  # when which row was the newest: the last KEEP_S, and one before

    def _count_tail(self, since: float) -> None:
        with self._database.lock:
            points, rows = self._session.connection.execute(
                "SELECT coalesce(sum(points), 0), count(*) FROM tail"
            ).fetchone()
            self._shared.tail.set(points, rows, since)

    def run(self, *, deadline_s: float, now: bool = False) -> bool:
        """Compact until the deadline or until nothing is due; `now`: all of it is."""
        until = time.monotonic() + deadline_s
        did = False
        tail = self._shared.tail
        self._note_newest()
        while time.monotonic() < until and self._remover.step():
            did = True
        if now or tail.points >= DUE_POINTS or tail.rows >= DUE_ROWS or tail.age_s() > DUE_S:
            started = time.monotonic()
            upto = self._newest() if now else self._kept_upto(started)
            while more := self._compact(upto):
                did = True
                if time.monotonic() > until:
                    break
            if not more:
                self._count_tail(since=started)
            self._look_at_blocks |= did
        while self._look_at_blocks and time.monotonic() < until:
            merged = self._merge()
            did |= merged
            self._look_at_blocks = merged
        keep = KEPT_PAGES if did or tail.rows > 0 else 0
        while time.monotonic() < until and vacuum(self._database, self._session, keep_pages=keep):
            did = True
        seen = self._shared.take_seen(now=now)
        if seen:
            with self._database.changing(self._session) as connection:
                save_last_seen(connection, seen, self._shared.clock.wall_ns())
        if did:
            with errors(self._database.folder):
                checkpoint(self._database, self._session)
        return did

    def close(self) -> None:
        self._session.connection.close()

    # ---- tail -> blocks ---------------------------------------------------------------------------------

    def _compact(self, upto: int) -> bool:
        """Some tail rows with numbers up to that; False where there are none."""
        with self._database.looking(self._session):
            chosen = self._choose(upto)
            found = list(self._read(chosen))
        if not chosen:
            return False
        made: list[_Made] = []
        for run, stream, table, rank, shape, rows in found:
            for part in _blocks(rows, len(shape.codes)):
                block = encode(self._session.packer, part, shape.codes)
                made.append((run, stream, table, rank, shape, part, block))
        try:
            self._replace_tail(chosen, made)
        except _Gone:
            return True  # look again
        self._shared.tail.take(sum(head[6] for head in chosen), len(chosen))
        return True

    def _newest(self) -> int:
        with errors(self._database.folder):
            (newest,) = self._session.connection.execute("SELECT coalesce(max(id), 0) FROM tail").fetchone()
            return int(newest)

    def _note_newest(self) -> None:
        now = time.monotonic()
        self._newest_at.append((now, self._newest()))
        while len(self._newest_at) > 1 and self._newest_at[1][0] <= now - KEEP_S:
            self._newest_at.popleft()

    def _kept_upto(self, now: float) -> int:
        """Return the newest row that is older than KEEP_S, as far as it is known."""
        return max((row for when, row in self._newest_at if when <= now - KEEP_S), default=0)

    def _choose(self, upto: int) -> list[_TailHead]:
        """Run by run; as much as one round may hold."""
        heads = self._session.connection.execute(
            "SELECT id, run, stream, tbl, rank, n, points FROM tail INDEXED BY tail_run WHERE id<=?"
            " ORDER BY run, stream, tbl, rank",
            (upto,),
        )
        chosen: list[_TailHead] = []
        points = groups = 0
        for head in heads:
            points += head[6]
            groups += not chosen or head[1:5] != chosen[-1][1:5]
            if chosen and (points > ROUND_POINTS or groups > ROUND_BLOCKS):
                break
            chosen.append(head)
        heads.close()
        return chosen

    def _read(self, chosen: list[_TailHead]) -> Iterator[tuple[int, int, int, int, Shape, Rows]]:
        for (run, stream, table, rank), group in groupby(chosen, key=lambda head: head[1:5]):
            shape = self._shared.tables.shape(self._session, table)
            bodies = []
            for head in group:
                (body,) = self._session.connection.execute(
                    "SELECT body FROM tail WHERE id=?", (head[0],)
                ).fetchone()
                bodies.append((body, head[5]))
            rows = read_tails(bodies, shape.codes).in_order()
            yield run, stream, table, rank, shape, rows

    def _replace_tail(self, chosen: list[_TailHead], made: list[_Made]) -> None:
        sizes: dict[int, int] = {}
        with self._database.changing(self._session) as connection:
            for id, run, *_ in chosen:
                row = connection.execute(
                    "DELETE FROM tail WHERE id=? RETURNING length(body)", (id,)
                ).fetchone()
                if row is None:
                    raise _Gone
                sizes[run] = sizes.get(run, 0) - row[0]
            for run, stream, table, rank, shape, part, block in made:
                self._insert(run, stream, table, rank, shape, block)
                names.count(connection, run, stream, rank, shape, part)
                sizes[run] += block.bytes
            connection.executemany(
                "UPDATE runs SET bytes=max(0, bytes+?) WHERE run=?",
                [(size, run) for run, size in sizes.items()],
            )
            note_packed(connection, max(head[0] for head in chosen))

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
            [(first + number, summary, data) for number, summary, data in block.parts],
        )
        connection.executemany(
            "INSERT INTO coarse VALUES(?, ?, ?, ?, ?)",
            [(table, place, number, groups, words) for place, groups, words in block.coarse],
        )

    # ---- blocks -> larger blocks ------------------------------------------------------------------------

    def _merge(self) -> bool:
        """Merge one round of each class that has enough; False where none has."""
        with errors(self._database.folder):
            due = self._session.connection.execute(
                "SELECT class, stream, tbl, rank FROM block WHERE class>=0 GROUP BY class, stream, tbl, rank"
                " HAVING count(*)>=?",
                (MERGED,),
            ).fetchall()
        did = False
        for row in due:
            did |= self._merge_some(*row)
        return did

    def _merge_some(self, class_: int, stream: int, table: int, rank: int) -> bool:
        with self._database.looking(self._session):
            shape = self._shared.tables.find(self._session, table)
            if shape is None:
                return False  # its run was purged meanwhile
            chosen = self._choose_blocks(class_, stream, table, rank, most_records(len(shape.codes)))
            found = [read_rows(self._session, head[0], head[2], shape.codes) for head in chosen]
        if len(chosen) < 2:
            return False
        block = encode(self._session.packer, joined(found).in_order(), shape.codes)
        try:
            self._replace_blocks(chosen, stream, table, rank, shape, block)
        except _Gone:
            pass
        return True

    def _choose_blocks(
        self, class_: int, stream: int, table: int, rank: int, most: int
    ) -> list[tuple[int, int, int, int]]:
        """Block, run, records and bytes of those that fit one block; none of a run that is being purged."""
        chosen = []
        records = 0
        for head in self._session.connection.execute(
            "SELECT block, run, n, bytes FROM block WHERE class=? AND stream=? AND tbl=? AND rank=?"
            " AND run IN (SELECT run FROM runs WHERE id IS NOT NULL) ORDER BY first_seq",
            (class_, stream, table, rank),
        ):
            records += head[2]
            if records > most:
                break
            chosen.append(head)
        return chosen

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

"""News since a position, out of the tail; any reader's session.

Numbers of tail rows rise in the order of commits, and the upkeep leaves rows alone for a moment (`compact.KEEP_S`), so
who looks often finds there all that came. Whoever comes late learns which series to read anew: those with blocks that
were made since, of rows that may not have been seen.

What changes runs without a record (documents, edits, the bin) moves the position too (`move`).

Invariants: a point is in one answer, or its series is in `missed`; an answer takes no more than `most` points a series.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from logclient.shm.record import Shape

from ..news import NewPoints, News, Position, Question
from .rows import read_tail, values_of

if TYPE_CHECKING:
    import sqlite3

    from .database import Session
    from .shared import Shared

PACKED = "packed"  # in `meta`: the highest number of a tail row that was packed
MAX_KEYS = 1_000  # new ones of an answer
MAX_VALUES = 20_000  # of an answer
_SEQUENCES = ("tail", "block", "names")
_TEXT = "s"
_HEAD = "id, run, stream, tbl, rank, n"


def position(connection: sqlite3.Connection) -> Position:
    """Return the position of what this transaction sees."""
    found = dict(connection.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
    return Position(*(found.get(name, 0) for name in _SEQUENCES))


def move(connection: sqlite3.Connection) -> None:
    """Give the state that this transaction makes a position of its own, where it adds no tail row.

    A number of a tail row is left out for it: `sqlite_sequence` is a table like others, and numbers may have gaps.
    """
    found = connection.execute("UPDATE sqlite_sequence SET seq=seq+1 WHERE name=?", _SEQUENCES[:1])
    if not found.rowcount:
        connection.execute("INSERT INTO sqlite_sequence(name, seq) VALUES(?, 1)", _SEQUENCES[:1])


def note_packed(connection: sqlite3.Connection, row: int) -> None:
    """Note that tail rows up to this one may have been packed; in the transaction that does it."""
    connection.execute(
        "INSERT INTO meta VALUES(?1, ?2) ON CONFLICT(name) DO UPDATE SET value=?2"
        " WHERE CAST(value AS INTEGER) < CAST(?2 AS INTEGER)",
        (PACKED, str(row)),
    )


def news(session: Session, shared: Shared, questions: Sequence[Question], *, most: int) -> list[News]:
    """Answer all questions from one state of the store."""
    fetch = session.connection.execute
    now = position(session.connection)
    row = fetch("SELECT value FROM meta WHERE name=?", (PACKED,)).fetchone()
    packed = int(row[0]) if row is not None else 0
    numbers: dict[str, int] = {}
    for id in {id for question in questions for id in question.series}:
        row = fetch("SELECT run FROM runs WHERE id=?", (id,)).fetchone()
        if row is not None:
            numbers[id] = row[0]
    reader = _RowReader(session, shared)
    return [_answer(session, reader, numbers, each, now, packed, most) for each in questions]


def _answer(
    session: Session,
    reader: _RowReader,
    numbers: dict[str, int],
    question: Question,
    now: Position,
    packed: int,
    most: int,
) -> News:
    after = question.after
    if after is None or after == now:
        return News(now)
    ids = {numbers[id]: id for id in question.series if id in numbers}
    wanted = {run: frozenset(question.series[id]) for run, id in ids.items()}
    missed: set[tuple[str, str]] = set()
    if packed > after.row:
        for run, table in _packed_tables(session, after.block, wanted):
            names = reader.shape(table).names
            missed.update((ids[run], name) for name in names if name in wanted[run])
    heads = [
        head
        for head in session.connection.execute(
            f"SELECT {_HEAD} FROM tail WHERE id>? ORDER BY id", (after.row,)
        )
        if head[1] in wanted
    ]
    counts: dict[tuple[str, str], int] = {}
    for _, run, _, table, _, n in heads:
        shape = reader.shape(table)
        for name, code in zip(shape.names, shape.codes, strict=True):
            if name in wanted[run]:
                series = ids[run], name
                counts[series] = counts.get(series, 0) + n
                if code == _TEXT or counts[series] > most:
                    missed.add(series)
    if sum(counts.values()) > MAX_VALUES:
        missed.update(counts)
    points = []
    for head in heads:
        id, chosen = ids[head[1]], wanted[head[1]]
        shape = reader.shape(head[3])
        places = [
            place for place, name in enumerate(shape.names) if name in chosen and (id, name) not in missed
        ]
        if places:
            points.append(reader.points(head, id, places))
    keys, misses_keys = _new_keys(session, after.name, ids)
    return News(now, points, frozenset(missed), keys, misses_keys)


def _packed_tables(session: Session, block: int, runs: dict[int, frozenset[str]]) -> list[tuple[int, int]]:
    """Return runs and key tables of which blocks were made since that one."""
    return session.connection.execute(
        "SELECT DISTINCT run, tbl FROM block WHERE block>? AND run IN (SELECT value FROM json_each(?))",
        (block, json.dumps(list(runs))),
    ).fetchall()


def _new_keys(session: Session, name: int, ids: dict[int, str]) -> tuple[list[tuple[str, str]], bool]:
    rows = session.connection.execute(
        "SELECT run, name FROM names WHERE name_id>? AND run IN (SELECT value FROM json_each(?))"
        " ORDER BY name_id LIMIT ?",
        (name, json.dumps(list(ids)), MAX_KEYS + 1),
    ).fetchall()
    return [(ids[run], key) for run, key in rows[:MAX_KEYS]], len(rows) > MAX_KEYS


class _RowReader:
    """Reads tail rows for several questions: each column once."""

    def __init__(self, session: Session, shared: Shared) -> None:
        self._session = session
        self._shared = shared
        self._attempts: dict[int, dict[str, int]] = {}  # by run
        self._processes: dict[int, str] = {}  # by stream
        self._read: dict[tuple[int, tuple[int, ...]], NewPoints] = {}

    def shape(self, table: int) -> Shape:
        return self._shared.tables.shape(self._session, table)

    def points(self, head: tuple[int, int, int, int, int, int], id: str, places: Sequence[int]) -> NewPoints:
        """Return the points of these places of a tail row."""
        row, run, stream, table, rank, n = head
        found = self._read.get((row, tuple(places)))
        if found is None:
            (body,) = self._session.connection.execute("SELECT body FROM tail WHERE id=?", (row,)).fetchone()
            shape = self.shape(table)
            rows = read_tail(body, n, shape.codes, places)
            found = self._read[row, tuple(places)] = NewPoints(
                row,
                id,
                [shape.names[place] for place in places],
                self._attempt(run, stream),
                None if rank < 0 else rank,
                rows.step.tolist(),
                rows.time.tolist(),
                [values_of(shape.codes[place], rows.cells[place]) for place in places],
            )
        return found

    def _attempt(self, run: int, stream: int) -> int:
        fetch = self._session.connection.execute
        if run not in self._attempts:
            (packed,) = fetch("SELECT attempts FROM runs WHERE run=?", (run,)).fetchone()
            self._attempts[run] = json.loads(packed)
        if stream not in self._processes:
            (process,) = fetch("SELECT process FROM streams WHERE stream=?", (stream,)).fetchone()
            self._processes[stream] = process.hex()
        return self._attempts[run].get(self._processes[stream], 1)

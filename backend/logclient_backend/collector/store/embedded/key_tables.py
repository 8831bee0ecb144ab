"""Key tables: shapes of records <-> small numbers, per run; bounded caches of both directions.

Key names are data: a table's number comes from the row with its definition, never from a hash alone (the digest only
finds the row quickly, and a row with another definition is refused as damage by whoever reads it).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from hashlib import blake2b

from logclient.shm.record import Shape

from .database import Session

MAX_KEPT = 4096
MAX_KEYS_KEPT = 1 << 18  # in all tables that are kept


class WriterTables:
    """Numbers of the shapes that come in. What a failed transaction made is forgotten."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[tuple[int, Shape], int] = OrderedDict()
        self._fresh: list[tuple[int, Shape]] = []

    def number(self, session: Session, run: int, shape: Shape) -> int:
        key = (run, shape)
        found = self._numbers.get(key)
        if found is None:
            found, is_new = _number(session, run, shape)
            self._numbers[key] = found
            if is_new:
                self._fresh.append(key)
        self._numbers.move_to_end(key)
        return found

    def committed(self) -> None:
        self._fresh.clear()
        while len(self._numbers) > MAX_KEPT:
            self._numbers.popitem(last=False)

    def failed(self) -> None:
        for key in self._fresh:
            self._numbers.pop(key, None)
        self._fresh.clear()

    def forget(self) -> None:
        self._numbers.clear()
        self._fresh.clear()


def _number(session: Session, run: int, shape: Shape) -> tuple[int, bool]:
    connection = session.connection
    definition = shape.definition()
    digest = blake2b(definition, digest_size=16).digest()
    row = connection.execute("SELECT tbl FROM tables WHERE run=? AND digest=?", (run, digest)).fetchone()
    if row is not None:
        return row[0], False
    number = connection.execute(
        "INSERT INTO tables(run, digest, definition) VALUES(?, ?, ?)",
        (run, digest, session.packer.plain(definition)),
    ).lastrowid
    assert number is not None
    connection.executemany(
        "INSERT OR IGNORE INTO names(run, name) VALUES(?, ?)", ((run, name) for name in shape.names)
    )
    connection.executemany(
        "INSERT INTO places SELECT name_id, ?, ?, ? FROM names WHERE run=? AND name=?",
        (
            (number, place, code, run, name)
            for place, (name, code) in enumerate(zip(shape.names, shape.codes, strict=True))
        ),
    )
    return number, True


class ReaderTables:
    """Shapes of the tables that are asked for; any thread. Numbers are never used twice, so nothing grows stale."""

    def __init__(self) -> None:
        self._shapes: OrderedDict[int, Shape] = OrderedDict()
        self._keys = 0
        self._lock = threading.Lock()

    def shape(self, session: Session, number: int) -> Shape:
        """`ValueError` where there is none."""
        found = self.find(session, number)
        if found is None:
            raise ValueError(f"key table {number} is gone")
        return found

    def find(self, session: Session, number: int) -> Shape | None:
        with self._lock:
            found = self._shapes.get(number)
            if found is not None:
                self._shapes.move_to_end(number)
                return found
        row = session.connection.execute("SELECT definition FROM tables WHERE tbl=?", (number,)).fetchone()
        if row is None:
            return None
        found = Shape.from_definition(session.packer.read_plain(row[0]))
        with self._lock:
            if number not in self._shapes:
                self._shapes[number] = found
                self._keys += len(found.codes)
            while len(self._shapes) > 1 and (len(self._shapes) > MAX_KEPT or self._keys > MAX_KEYS_KEPT):
                self._keys -= len(self._shapes.popitem(last=False)[1].codes)
        return found

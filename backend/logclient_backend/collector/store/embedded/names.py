"""A run's keys: what is compacted of each is summed up in its row, what is in the tail is added when asked.

`count` runs in the upkeep's transaction, the rest in any reader's session. *First* and *last* are the points with the
lowest and the highest (time, order, stream, seq, place in the record).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from logclient.record import Shape

from ..interface import Key, KeyPage, Last
from .ledger import MOST_SEQ
from .rows import Rows, raw_value, read_tail, value_of

if TYPE_CHECKING:
    from .database import Session
    from .shared import Shared

_COUNT = """
UPDATE names SET points=points+:n, codes=CASE WHEN instr(codes, :code) THEN codes ELSE codes || :code END,
  min_step=min(min_step, :low), max_step=max(max_step, :high)
WHERE run=:run AND name=:name
"""
_FIRST = """
UPDATE names SET first_ns=:ns, first_order=:order, first_place=:place
WHERE run=:run AND name=:name AND (first_ns, first_order, first_place) > (:ns, :order, :place)
"""
_LAST = """
UPDATE names SET last_ns=:ns, last_order=:order, last_stream=:stream, last_seq=:seq, last_place=:place,
  last_step=:step, last_rank=:rank, last_code=:code, last_value=:value
WHERE run=:run AND name=:name
  AND (last_ns, last_order, last_stream, last_seq, last_place) < (:ns, :order, :stream, :seq, :place)
"""
_ROW = (
    "name_id, name, points, codes, min_step, max_step, first_ns, first_order, first_place,"
    " last_ns, last_order, last_stream, last_seq, last_place, last_step, last_rank, last_code, last_value"
)
_KEY = "name, codes, points, min_step, max_step, last_value, last_code, last_step, last_ns, last_rank"
_FIRST_CAME = "first_ns, first_order, first_place, name_id"


def count(connection: sqlite3.Connection, run: int, stream: int, rank: int, shape: Shape, rows: Rows) -> None:
    """Add these records to what is known of their keys."""
    n, low, high = len(rows), int(rows.step.min()), int(rows.step.max())
    keys = list(enumerate(zip(shape.names, shape.codes, strict=True)))
    base = {"run": run, "n": n, "low": low, "high": high, "stream": stream, "rank": rank}
    connection.executemany(_COUNT, [{**base, "name": name, "code": code} for _, (name, code) in keys])
    at = rows.oldest()
    base["ns"], base["order"] = int(rows.time[at]), min(int(rows.order[at]), MOST_SEQ)
    connection.executemany(_FIRST, [{**base, "name": name, "place": place} for place, (name, _) in keys])
    at = rows.newest()
    base["ns"], base["order"] = int(rows.time[at]), min(int(rows.order[at]), MOST_SEQ)
    base["seq"], base["step"] = int(rows.seq[at]), int(rows.step[at])
    connection.executemany(
        _LAST,
        [
            {**base, "name": name, "place": place, "code": code, "value": raw_value(rows.cells[place], at)}
            for place, (name, code) in keys
        ],
    )


@dataclass(slots=True)
class Known:
    """What is known of a key."""

    name: str
    points: int = 0
    codes: set[str] = field(default_factory=set)
    min_step: int = MOST_SEQ
    max_step: int = -MOST_SEQ - 1
    first: tuple[int, int, int] = (MOST_SEQ, 0, 0)
    newest: tuple[int, int, int, int, int] = (-MOST_SEQ - 1, 0, 0, 0, 0)
    step: int = 0
    rank: int = -1
    code: str = ""
    value: bytes = b""

    def last(self) -> Last:
        return Last(
            value_of(self.code, self.value),
            self.code,
            self.step,
            self.newest[0],
            None if self.rank < 0 else self.rank,
        )

    def key(self) -> Key:
        return Key(
            self.name, "".join(sorted(self.codes)), self.points, self.min_step, self.max_step, self.last()
        )


def _known(row: Sequence[Any]) -> Known:
    return Known(row[1], row[2], set(row[3]), row[4], row[5], tuple(row[6:9]), tuple(row[9:14]), *row[14:18])


def _key(
    name: str,
    codes: str,
    points: int,
    low: int,
    high: int,
    value: bytes,
    code: str,
    step: int,
    ns: int,
    rank: int,
) -> Key:
    """As `Known.key`: there may be very many of a run that is all compacted."""
    last = Last(value_of(code, value), code, step, ns, None if rank < 0 else rank)
    return Key(name, codes if len(codes) == 1 else "".join(sorted(codes)), points, low, high, last)


def page(session: Session, shared: Shared, run: int, start: int, most: int) -> KeyPage:
    """In the order in which they came first. Of those that are not on the page no more is read than their places."""
    fetch = session.connection.execute
    tail = _Tail(session, run)
    if not tail.sums:
        (total,) = fetch("SELECT count(*) FROM names WHERE run=? AND points>0", (run,)).fetchone()
        rows = fetch(
            f"SELECT {_KEY} FROM"
            f" (SELECT name_id AS id FROM names WHERE run=? AND points>0 ORDER BY {_FIRST_CAME} LIMIT ? OFFSET ?)"
            f" CROSS JOIN names ON name_id=id ORDER BY {_FIRST_CAME}",
            (run, most, start),
        )
        return KeyPage([_key(*row) for row in rows], total)
    first: dict[str, tuple[int, int, int]] = {}
    ids: dict[str, int] = {}
    for id, name, has_points, *came in fetch(
        "SELECT name_id, name, points>0, first_ns, first_order, first_place FROM names WHERE run=? ORDER BY name_id",
        (run,),
    ):
        ids[name] = id
        if has_points:
            first[name] = tuple(came)
    for table, (_, _, _, first_ns, first_order) in tail.sums.items():
        for place, name in enumerate(shared.tables.shape(session, table).names):
            came = (first_ns, first_order, place)
            first[name] = min(first.get(name, came), came)
    there = sorted((name for name in ids if name in first), key=first.__getitem__)
    wanted = there[start : start + most]
    rows = fetch(
        f"SELECT {_ROW} FROM json_each(?) AS wanted CROSS JOIN names ON name_id=wanted.value",
        (json.dumps([ids[name] for name in wanted]),),
    )
    found = {row[1]: _known(row) for row in rows}
    tail.add_to(session, shared, found)
    return KeyPage([found[name].key() for name in wanted], len(there))


def last_values(
    session: Session, shared: Shared, runs: Mapping[int, str], keys: Iterable[str]
) -> dict[tuple[str, str], Last]:
    """By (run, key); `runs` is number -> id."""
    fetch = session.connection.execute
    live = {run for (run,) in fetch("SELECT DISTINCT run FROM tail") if run in runs}
    made: dict[tuple[str, str], Last] = {}
    wanted = json.dumps([run for run in runs if run not in live])
    keys = list(keys)
    for name in keys:
        for run, value, code, step, ns, rank in fetch(
            "SELECT run, last_value, last_code, last_step, last_ns, last_rank"
            " FROM json_each(?) AS wanted CROSS JOIN names WHERE run=wanted.value AND name=? AND points>0",
            (wanted, name),
        ):
            made[runs[run], name] = Last(value_of(code, value), code, step, ns, None if rank < 0 else rank)
    for run in live:
        found = {}
        for name in keys:
            row = fetch(f"SELECT {_ROW} FROM names WHERE run=? AND name=?", (run, name)).fetchone()
            if row is not None:
                found[name] = _known(row)
        _Tail(session, run).add_to(session, shared, found)
        made |= {(runs[run], name): known.last() for name, known in found.items() if known.points}
    return made


class _Tail:
    """What waits to be compacted of a run, by key table."""

    def __init__(self, session: Session, run: int) -> None:
        self.newest: dict[int, Sequence[int]] = {}  # the row with the newest record
        self.sums: dict[int, list[int]] = {}  # records, lowest and highest step, first time and order
        for head in session.connection.execute(
            "SELECT tbl, id, stream, rank, n, min_step, max_step, first_ns, first_order, last_ns, last_order,"
            " last_newest FROM tail WHERE run=?",
            (run,),
        ):
            table, _, stream, _, n, low, high, first_ns, first_order, last_ns, last_order, seq = head
            there = self.newest.get(table)
            if there is None or (last_ns, last_order, stream, seq) > (
                there[9],
                there[10],
                there[2],
                there[11],
            ):
                self.newest[table] = head
            of_table = self.sums.setdefault(table, [0, low, high, first_ns, first_order])
            of_table[0] += n
            of_table[1:3] = min(of_table[1], low), max(of_table[2], high)
            of_table[3:] = min((of_table[3], of_table[4]), (first_ns, first_order))

    def add_to(self, session: Session, shared: Shared, found: dict[str, Known]) -> None:
        """Only keys that are in `found` matter."""
        for table, (n, low, high, first_ns, first_order) in self.sums.items():
            shape = shared.tables.shape(session, table)
            for place, (name, code) in enumerate(zip(shape.names, shape.codes, strict=True)):
                known = found.get(name)
                if known is not None:
                    known.points += n
                    known.codes.add(code)
                    known.min_step, known.max_step = min(known.min_step, low), max(known.max_step, high)
                    known.first = min(known.first, (first_ns, first_order, place))
        for head in self.newest.values():
            _add_newest(session, shared.tables.shape(session, head[0]), head, found)


def _add_newest(session: Session, shape: Shape, head: Sequence[int], found: dict[str, Known]) -> None:
    _, id, stream, rank, n, *_, last_ns, last_order, seq = head
    wanted = []
    for place, name in enumerate(shape.names):
        known = found.get(name)
        if known is not None and known.newest < (last_ns, last_order, stream, seq, place):
            wanted.append((place, known))
    if not wanted:
        return
    (body,) = session.connection.execute("SELECT body FROM tail WHERE id=?", (id,)).fetchone()
    rows = read_tail(session.packer, body, n, shape.codes, [place for place, _ in wanted])
    at = int(rows.seq.searchsorted(seq))
    for place, known in wanted:
        if known.newest < (last_ns, last_order, stream, seq, place):
            known.newest = (last_ns, last_order, stream, seq, place)
            known.step, known.rank, known.code = int(rows.step[at]), rank, shape.codes[place]
            known.value = raw_value(rows.cells[place], at)

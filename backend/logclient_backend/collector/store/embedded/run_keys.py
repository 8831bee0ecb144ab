"""A run's keys: what is compacted of each is summed up in its row, what is in the tail is added when asked.

`count` runs in the upkeep's transaction, the rest in any reader's session. *First* is the point with the lowest (time,
order, place in the record). *Last* is of a process the one that it logged last, by its own count; of several processes
that of the newest attempt, and within an attempt the newest by time, as `runs.contents` has it. So of each stream its
newest value is kept: clocks may have been set, and attempts become known later.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from logclient.shm.record import Shape

from ..interface import Key, KeyPage, Last
from .ledger import MAX_SEQ
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
INSERT INTO lasts SELECT name_id, :stream, :seq, :place, :number, :ns, :step, :rank, :code, :value FROM names
WHERE run=:run AND name=:name
ON CONFLICT(name_id, stream) DO UPDATE SET seq=excluded.seq, place=excluded.place, number=excluded.number,
  ns=excluded.ns, step=excluded.step, rank=excluded.rank, code=excluded.code, value=excluded.value
WHERE (excluded.seq, excluded.place) > (seq, place)
"""
_ROW = "name_id, name, points, codes, min_step, max_step, first_ns, first_order, first_place"
_KEY = "names.name_id, name, codes, points, min_step, max_step"
_NEWEST = "l.stream, l.seq, l.place, l.number, l.ns, l.step, l.rank, l.code, l.value"
_FIRST_CAME = "first_ns, first_order, first_place, names.name_id"


def count(connection: sqlite3.Connection, run: int, stream: int, rank: int, shape: Shape, rows: Rows) -> None:
    """Add these records to what is known of their keys."""
    n, low, high = len(rows), int(rows.step.min()), int(rows.step.max())
    keys = list(enumerate(zip(shape.names, shape.codes, strict=True)))
    base = {"run": run, "n": n, "low": low, "high": high, "stream": stream, "rank": rank}
    connection.executemany(_COUNT, [{**base, "name": name, "code": code} for _, (name, code) in keys])
    at = rows.oldest()
    base["ns"], base["order"] = int(rows.time[at]), min(int(rows.order[at]), MAX_SEQ)
    connection.executemany(_FIRST, [{**base, "name": name, "place": place} for place, (name, _) in keys])
    at = len(rows) - 1
    base["ns"], base["number"] = int(rows.time[at]), min(int(rows.order[at]), MAX_SEQ)
    base["seq"], base["step"] = int(rows.seq[at]), int(rows.step[at])
    connection.executemany(
        _LAST,
        [
            {**base, "name": name, "place": place, "code": code, "value": raw_value(rows.cells[place], at)}
            for place, (name, code) in keys
        ],
    )


class Newest(NamedTuple):
    """The newest point of a key in one stream."""

    stream: int
    seq: int
    place: int
    number: int  # of its record in its process
    ns: int
    step: int
    rank: int
    code: str
    value: bytes

    def last(self) -> Last:
        return Last(
            value_of(self.code, self.value),
            self.code,
            self.step,
            self.ns,
            None if self.rank < 0 else self.rank,
        )


class _Order:
    """The order of several streams' newest points in one run; asks the store only where there are several."""

    def __init__(self, session: Session, run: int) -> None:
        self._session = session
        self._run = run
        self._found: dict[int, tuple[int, bytes]] | None = None  # attempt and process, by stream

    def last(self, points: Sequence[Newest]) -> Last:
        if len(points) == 1:
            return points[0].last()
        if self._found is None:
            self._found = self._load()
        by_process: dict[bytes, tuple[int, Newest]] = {}
        for point in points:
            attempt, process = self._found[point.stream]
            known = by_process.get(process)
            if known is None or _count_of(point) > _count_of(known[1]):
                by_process[process] = attempt, point
        best = max(
            by_process.items(), key=lambda each: (each[1][0], each[1][1].ns, each[1][1].number, each[0])
        )
        return best[1][1].last()

    def _load(self) -> dict[int, tuple[int, bytes]]:
        fetch = self._session.connection.execute
        (packed,) = fetch("SELECT attempts FROM runs WHERE run=?", (self._run,)).fetchone()
        attempts = json.loads(packed)
        rows = fetch("SELECT stream, process FROM streams WHERE run=?", (self._run,))
        return {stream: (attempts.get(process.hex(), 1), process) for stream, process in rows}


def _count_of(point: Newest) -> tuple[int, int, int]:
    return point.number, point.seq, point.stream


@dataclass(slots=True)
class Known:
    """Description of a key."""

    name: str
    points: int = 0
    codes: set[str] = field(default_factory=set)
    min_step: int = MAX_SEQ
    max_step: int = -MAX_SEQ - 1
    first: tuple[int, int, int] = (MAX_SEQ, 0, 0)
    newest: dict[int, Newest] = field(default_factory=dict)  # by stream

    def last(self, order: _Order) -> Last:
        return order.last(list(self.newest.values()))

    def key(self, order: _Order) -> Key:
        codes = "".join(sorted(self.codes))
        return Key(self.name, codes, self.points, self.min_step, self.max_step, self.last(order))


def _known(session: Session, ids: Sequence[int]) -> dict[str, Known]:
    """Return what is compacted of these keys."""
    fetch = session.connection.execute
    wanted = json.dumps(ids)
    found = {
        row[0]: Known(row[1], row[2], set(row[3]), row[4], row[5], tuple(row[6:9]))
        for row in fetch(
            f"SELECT {_ROW} FROM json_each(?) AS wanted CROSS JOIN names ON name_id=wanted.value", (wanted,)
        )
    }
    for id, *newest in fetch(
        f"SELECT l.name_id, {_NEWEST} FROM json_each(?) AS wanted CROSS JOIN lasts AS l ON l.name_id=wanted.value",
        (wanted,),
    ):
        found[id].newest[newest[0]] = Newest(*newest)
    return {known.name: known for known in found.values()}


def page(session: Session, shared: Shared, run: int, start: int, most: int) -> KeyPage:
    """In the order in which they came first. Of those that are not on the page no more is read than their places."""
    fetch = session.connection.execute
    tail = _Tail(session, run)
    order = _Order(session, run)
    if not tail.sums:
        (total,) = fetch("SELECT count(*) FROM names WHERE run=? AND points>0", (run,)).fetchone()
        rows = fetch(
            f"SELECT {_KEY}, {_NEWEST} FROM"
            f" (SELECT name_id AS id FROM names WHERE run=? AND points>0 ORDER BY {_FIRST_CAME} LIMIT ? OFFSET ?)"
            f" CROSS JOIN names ON names.name_id=id CROSS JOIN lasts AS l ON l.name_id=id ORDER BY {_FIRST_CAME}",
            (run, most, start),
        )
        keys = []
        for (_, name, codes, points, low, high), group in groupby(rows, key=itemgetter(slice(6))):
            last = order.last([Newest(*row[6:]) for row in group])
            keys.append(Key(name, "".join(sorted(codes)), points, low, high, last))
        return KeyPage(keys, total)
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
    found = _known(session, [ids[name] for name in wanted])
    tail.add_to(session, shared, found)
    return KeyPage([found[name].key(order) for name in wanted], len(there))


def last_values(
    session: Session, shared: Shared, runs: Mapping[int, str], keys: Iterable[str]
) -> dict[tuple[str, str], Last]:
    """By (run, key); `runs` is number -> id."""
    fetch = session.connection.execute
    live = {run for (run,) in fetch("SELECT DISTINCT run FROM tail") if run in runs}
    made: dict[tuple[str, str], Last] = {}
    wanted = json.dumps([run for run in runs if run not in live])
    keys = list(keys)
    orders = {run: _Order(session, run) for run in runs}
    for name in keys:
        rows = fetch(
            f"SELECT names.run, {_NEWEST} FROM json_each(?) AS wanted CROSS JOIN names CROSS JOIN lasts AS l"
            " WHERE names.run=wanted.value AND name=? AND points>0 AND l.name_id=names.name_id",
            (wanted, name),
        )
        for run, group in groupby(rows, key=itemgetter(0)):
            made[runs[run], name] = orders[run].last([Newest(*row[1:]) for row in group])
    for run in live:
        ids = []
        for name in keys:
            row = fetch("SELECT name_id FROM names WHERE run=? AND name=?", (run, name)).fetchone()
            if row is not None:
                ids.append(row[0])
        found = _known(session, ids)
        _Tail(session, run).add_to(session, shared, found)
        made |= {(runs[run], name): known.last(orders[run]) for name, known in found.items() if known.points}
    return made


class _Tail:
    """Records of a run that wait to be compacted, by key table."""

    def __init__(self, session: Session, run: int) -> None:
        self.newest: dict[
            tuple[int, int], Sequence[int]
        ] = {}  # the row with the newest record of table and stream
        self.sums: dict[int, list[int]] = {}  # records, lowest and highest step, first time and order
        for head in session.connection.execute(
            "SELECT tbl, id, stream, rank, n, last_seq, min_step, max_step, first_ns, first_order"
            " FROM tail WHERE run=?",
            (run,),
        ):
            table, _, stream, _, n, last_seq, low, high, first_ns, first_order = head
            there = self.newest.get((table, stream))
            if there is None or last_seq > there[5]:
                self.newest[table, stream] = head
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
    _, id, stream, rank, n, seq, *_ = head
    wanted = []
    for place, name in enumerate(shape.names):
        known = found.get(name)
        if known is not None and _is_newer(known, stream, seq, place):
            wanted.append((place, known))
    if not wanted:
        return
    (body,) = session.connection.execute("SELECT body FROM tail WHERE id=?", (id,)).fetchone()
    rows = read_tail(body, n, shape.codes, [place for place, _ in wanted])
    number, ns, step = min(int(rows.order[-1]), MAX_SEQ), int(rows.time[-1]), int(rows.step[-1])
    for place, known in wanted:
        if _is_newer(known, stream, seq, place):
            value = raw_value(rows.cells[place], n - 1)
            known.newest[stream] = Newest(
                stream, seq, place, number, ns, step, rank, shape.codes[place], value
            )


def _is_newer(known: Known, stream: int, seq: int, place: int) -> bool:
    there = known.newest.get(stream)
    return there is None or (seq, place) > (there.seq, there.place)

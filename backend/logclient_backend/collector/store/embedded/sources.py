"""Records that a question is about: tail rows and blocks as one; any reader's session.

A `Source` is one tail row or block. Sources of one stream may overlap in seqs: records that came late, or key tables in
turn. `sweep` gives their records in order of seq while it holds only those that overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from .blocks import Head, read_rows
from .ledger import MAX_SEQ
from .rows import Rows, read_tail

if TYPE_CHECKING:
    from collections.abc import Callable

    from .database import Session

_BLOCK = (
    "block, b.stream, b.tbl, b.rank, b.n, b.first_seq, b.last_seq, b.min_step, b.max_step, b.groups, b.shift"
)
_TAIL = "id, b.stream, b.tbl, b.rank, b.n, b.first_seq, b.last_seq, b.min_step, b.max_step, 0, 0"
_BY_KEY = (
    "SELECT b.{columns}, p.place, p.code FROM places AS p JOIN {table} AS b ON b.tbl=p.tbl WHERE p.name_id=?"
)


@dataclass(slots=True)
class Source:
    """One tail row or block, and where in its records the key stands that was asked for."""

    head: Head  # of a tail row: made up, without groups
    is_tail: bool
    place: int = 0
    code: str = ""

    def read(self, session: Session, codes: str, places: Sequence[int] | None = None) -> Rows:
        head = self.head
        if not self.is_tail:
            return read_rows(session, head.block, head.n, codes, places)
        (body,) = session.connection.execute("SELECT body FROM tail WHERE id=?", (head.block,)).fetchone()
        return read_tail(body, head.n, codes, places)


def of_key(session: Session, name_id: int) -> list[Source]:
    """All that hold points of a key, by stream and first seq."""
    found = []
    for is_tail, table, columns in ((False, "block", _BLOCK), (True, "tail", _TAIL)):
        query = _BY_KEY.format(table=table, columns=columns)
        for row in session.connection.execute(query, (name_id,)):
            found.append(Source(Head(*row[:11]), is_tail, row[11], row[12]))
    found.sort(key=lambda source: (source.head.stream, source.head.first_seq, source.place))
    return found


def of_stream(session: Session, run: int, stream: int, first: int, last: int) -> list[Source]:
    """Return the sources of a stream with seqs from `first` to `last`, by first seq."""
    fetch = session.connection.execute
    found = [
        Source(Head(*row), False)
        for row in fetch(
            f"SELECT b.{_BLOCK} FROM block AS b WHERE stream=? AND first_seq<=? AND last_seq>=?",
            (stream, last, first),
        )
    ]
    found += [
        Source(Head(*row), True)
        for row in fetch(
            f"SELECT b.{_TAIL} FROM tail AS b WHERE run=? AND stream=? AND first_seq<=? AND last_seq>=?",
            (run, stream, last, first),
        )
    ]
    found.sort(key=lambda source: source.head.first_seq)
    return found


Loaded: TypeAlias = "tuple[Source, Rows]"
Loader: TypeAlias = "Callable[[Source], Rows]"


def sweep(loaded: Iterable[tuple[int, Source]], load: Loader) -> Iterator[list[Loaded]]:
    """For sources by first seq: groups of (source, part of its rows) such that each group's seqs lie behind the last's.

    Within a group parts overlap in seqs.
    """
    pending: list[Loaded] = []
    for first, source in loaded:
        ready = [(each, rows.between(0, first - 1)) for each, rows in pending]
        ready = [(each, rows) for each, rows in ready if len(rows)]
        if ready:
            yield ready
        pending = [
            (each, rows)
            for each, rows in ((each, rows.between(first, MAX_SEQ)) for each, rows in pending)
            if len(rows)
        ]
        pending.append((source, load(source)))
    if pending:
        yield pending

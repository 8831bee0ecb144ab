"""News of a store since a position: new points of chosen series, new keys; for pages that follow runs live.

A `Position` is the state of a store as a few numbers that only grow. `Position.row` alone orders the positions of one
store: whatever was committed later has a higher one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logclient.errors import BadArgument

if TYPE_CHECKING:
    from logclient.shm.record import Value

_STORE_CHARACTERS = 8  # of the store's id, in a cursor


@dataclass(frozen=True, slots=True)
class Position:
    """The state up to which somebody has seen a store."""

    row: int = 0  # the newest group of records that arrived
    block: int = 0  # the newest that upkeep has made
    name: int = 0  # the newest key of any run

    def cursor(self, store: str) -> str:
        """Return it as text, for `position_of`; `store`: the id of its store."""
        return f"{store[:_STORE_CHARACTERS]}-{self.row}-{self.block}-{self.name}"


def position_of(cursor: str, store: str) -> Position | None:
    """Return the position of a cursor; None where it is another store's. `BadArgument` where it is no cursor."""
    parts = cursor.split("-")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts[1:]):
        raise BadArgument("after: no cursor that `curves` or an event of `stream` gave.")
    if parts[0] != store[:_STORE_CHARACTERS]:
        return None
    return Position(*map(int, parts[1:]))


@dataclass(frozen=True, slots=True)
class NewPoints:
    """Points of some keys of one run that were logged in the same records; lists of one length, by seq."""

    at: int  # `Position.row` of the commit, about: never lower than that of an earlier one
    run: str
    keys: Sequence[str]
    attempt: int
    rank: int | None
    step: Sequence[int]
    time_ns: Sequence[int]
    values: Sequence[Sequence[Value]]  # by key


@dataclass(frozen=True, slots=True)
class Question:
    """Series that somebody follows, and from where on."""

    after: Position | None  # None: from now on
    series: Mapping[str, Sequence[str]]  # keys by run, as the store names them


@dataclass(frozen=True, slots=True)
class News:
    """The answer to a question."""

    position: Position
    points: Sequence[NewPoints] = ()
    missed: frozenset[tuple[str, str]] = (
        frozenset()
    )  # (run, key): too much is new, texts are, or it was packed
    keys: Sequence[tuple[str, str]] = field(default_factory=list)  # (run, key) that are new
    misses_keys: bool = False  # more keys are new than are given

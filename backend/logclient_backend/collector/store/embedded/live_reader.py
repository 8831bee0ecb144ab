"""The reader for pages that follow runs: charts of many series, and what is new. Any number of threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..interface import Buckets, ColumnKeys
from ..news import News, Position, Question
from . import buckets as charts
from . import column_keys, news
from .reader import find_key

if TYPE_CHECKING:
    from .database import Connections, DatabaseWatch
    from .shared import Shared


class EmbeddedLiveReader:
    """See `interface.LiveReader`."""

    def __init__(self, database: Connections, shared: Shared) -> None:
        self._database = database
        self._shared = shared

    def curves(
        self,
        series: Sequence[tuple[str, str]],
        *,
        most: int = 1000,
        most_buckets: int = 200_000,
        first_step: int | None = None,
        last_step: int | None = None,
        all_attempts: bool = False,
        main_rank: bool = False,
    ) -> tuple[Position, Sequence[Buckets | None]]:
        found: list[Buckets | None] = []
        left = most_buckets
        with self._database.reading() as session:
            for run, key in series:
                _, name, attempts = find_key(session, run, key)
                made = None
                if name is not None:
                    made = charts.buckets(
                        session,
                        self._shared,
                        name,
                        attempts,
                        most=most,
                        first_step=first_step,
                        last_step=last_step,
                        all_attempts=all_attempts,
                        main_rank=main_rank,
                    )
                    left -= len(made.start)
                found.append(made if made is not None and made.codes else None)
                if left <= 0:
                    break
            return news.position(session.connection), found

    def position(self) -> Position:
        with self._database.reading() as session:
            return news.position(session.connection)

    def news(self, questions: Sequence[Question], *, most: int = 2_000) -> Sequence[News]:
        with self._database.reading() as session:
            return news.news(session, self._shared, questions, most=most)

    def column_keys(self, newest: int) -> ColumnKeys:
        """Return the keys of so many runs, those that were created last."""
        with self._database.reading() as session:
            return column_keys.of_newest(session.connection, newest)

    def watch(self) -> DatabaseWatch:
        return self._database.watch()

"""`EmbeddedStore`: the engine as a whole. What is where: `__init__.py`."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..clock import Clock
from . import schema
from .backup import backup as write_backup
from .catalog import SIDE
from .compact import Compactor
from .database import Connections, Database, ReadOnlyDatabase
from .last_seen import SeenFeed
from .live_reader import EmbeddedLiveReader
from .reader import EmbeddedReader
from .shared import Shared
from .writer import EmbeddedWriter

if TYPE_CHECKING:
    from .schema import Migration


class _Answering:
    """Readers over the connections of one process, for a store of its own or of another process."""

    def __init__(self, connections: Connections, shared: Shared) -> None:
        self._connections = connections
        self._reader = EmbeddedReader(connections, shared)
        self._live = EmbeddedLiveReader(connections, shared)

    @property
    def id(self) -> str:
        return self._connections.id

    @property
    def reader(self) -> EmbeddedReader:
        return self._reader

    @property
    def live(self) -> EmbeddedLiveReader:
        return self._live


class EmbeddedStore(_Answering):
    """See `interface.Store`. Belongs to one process; not used over a fork."""

    def __init__(
        self,
        folder: str,
        *,
        synchronous: str = "FULL",
        version: int = schema.VERSION,
        migrations: Mapping[int, Migration] = schema.MIGRATIONS,
        clock: Clock | None = None,
    ) -> None:
        self._database = Database(folder, synchronous=synchronous, version=version, migrations=migrations)
        self._shared = Shared(clock, self._database.open_ns)
        self._upkeep = threading.Lock()
        self._is_closed = False
        self._compactor = Compactor(self._database, self._shared)
        self._writer = EmbeddedWriter(self._database, self._shared)
        super().__init__(self._database, self._shared)

    @property
    def writer(self) -> EmbeddedWriter:
        return self._writer

    def compact(self, *, deadline_s: float, now: bool = False) -> bool:
        """Do what upkeep is due; `now`: all of it is. Called again and again by one thread; False: nothing was due."""
        with self._upkeep:
            return not self._is_closed and self._compactor.run(deadline_s=deadline_s, now=now)

    def backup(self, folder: str) -> None:
        write_backup(self._database.folder, folder)

    def seen_feed(self) -> SeenFeed:
        """Return what a process that only reads this store is given now and then (`ReadOnlyStore.take_seen`)."""
        return self._shared.seen.feed()

    def statistics(self) -> Mapping[str, float]:
        return {
            **_statistics(self._database),
            "uncompacted_points": max(0, self._shared.tail.points),
            "uncompacted_age_s": self._shared.tail.age_s(),
        }

    def close(self) -> None:
        """Waits for the upkeep's present round; what was written is durable already."""
        with self._upkeep:
            if self._is_closed:
                return
            self._is_closed = True
            self._writer.save_last_seen()
            self._compactor.close()
            self._writer.close()
            self._database.close()


class ReadOnlyStore(_Answering):
    """A store that another process has open; see `interface.ReadableStore`."""

    def __init__(self, folder: str, clock: Clock | None = None) -> None:
        self._database = ReadOnlyDatabase(folder)
        self._shared = Shared(clock)
        super().__init__(self._database, self._shared)

    def take_seen(self, news: Mapping[str, Any]) -> None:
        """Take over what the process that writes knows of runs that were seen (`EmbeddedStore.seen_feed`)."""
        self._shared.seen.take_news(news)

    def statistics(self) -> Mapping[str, float]:
        return _statistics(self._database)

    def close(self) -> None:
        self._database.close()


def open_store(folder: str, *, synchronous: str = "FULL") -> EmbeddedStore:
    """The store in that folder, made if there is none.

    `synchronous`: FULL (what is acknowledged survives a power cut) or NORMAL (it survives the death of this process).
    `StoreError` where the folder cannot be used or another process has it, `Unsupported` for a newer version's store.
    """
    return EmbeddedStore(folder, synchronous=synchronous)


def _statistics(database: Connections) -> dict[str, float]:
    with database.reading() as session:
        fetch = session.connection.execute
        runs, records, points = fetch(
            "SELECT count(*), coalesce(sum(records), 0), coalesce(sum(points), 0) FROM runs WHERE deleted_ns!=?",
            (SIDE,),
        ).fetchone()
        (deleted,) = fetch("SELECT count(*) FROM runs WHERE deleted_ns>0").fetchone()
        (pages,) = fetch("PRAGMA page_count").fetchone()
        (page_bytes,) = fetch("PRAGMA page_size").fetchone()
        (free,) = fetch("PRAGMA freelist_count").fetchone()
        (blocks,) = fetch("SELECT count(*) FROM block").fetchone()
        (waiting,) = fetch("SELECT coalesce(sum(points), 0) FROM tail").fetchone()
    return {
        "runs": runs,
        "deleted_runs": deleted,
        "records": records,
        "points": points,
        "bytes": pages * page_bytes,
        "free_bytes": free * page_bytes,
        "log_bytes": _size(database.path + "-wal"),
        "blocks": blocks,
        "uncompacted_points": waiting,
    }


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0

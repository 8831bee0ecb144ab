"""Sources of runs: a folder, or a collector's HTTP API, and how each gives the parts of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from logclient.errors import NoRun

from ..remote import listing
from ..remote import runs as remote_runs
from ..remote.runs import RemoteRun
from ..remote.server import Server
from ..runs import contents
from ..runs.folder import Found
from ..runs.strict import ODD_FLOATS
from ..runs.view import RunView, view
from ..wal.encoded import StreamColumns
from .decoded import Looker
from .reduce import Buckets

_FLOATS = ("float", "rounded")


class Facts(NamedTuple):
    """A run as a list shows it."""

    id: str
    name: str
    project: str
    group: str
    tags: tuple[str, ...]
    state: str
    cause: str
    created_ns: int


class Extreme(NamedTuple):
    """Newest, lowest and highest value of a key. NaN and infinities are no extremes."""

    last: Any
    min: Any
    max: Any


class Origin(Protocol):
    """One run."""

    def facts(self) -> Facts: ...

    def view(self) -> RunView:
        """All that its documents contain."""

    def keys(self) -> list[str]:
        """In the order in which they were logged first."""

    def columns(self, keys: list[str]) -> Iterator[StreamColumns]:
        """Records that have one of these keys, perhaps with others; some may come twice."""

    def buckets(self, key: str, most: int, *, every: bool) -> Buckets | None:
        """A key reduced by who keeps it; None: nobody does, reduce the points."""

    def extremes(self) -> dict[str, Extreme]:
        """Newest, lowest and highest value of each key."""


class FolderRun:
    """A run of a folder."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._looker = Looker([node.path for node in found.nodes])

    def facts(self) -> Facts:
        return _facts(self.view())

    def view(self) -> RunView:
        return view(self._found)

    def keys(self) -> list[str]:
        first: dict[str, tuple[int, int, int]] = {}
        for item in self._blocks():
            columns = item.columns
            for place, name in enumerate(columns.shape.names):
                here = (columns.time[0], columns.order[0], place)
                first[name] = min(here, first.get(name, here))
        return sorted(first, key=first.__getitem__)

    def columns(self, keys: list[str]) -> Iterator[StreamColumns]:
        kept = self._looker.kept()
        return self._blocks() if kept is None else kept.columns(keys)

    def _blocks(self) -> Iterator[StreamColumns]:
        kept = self._looker.kept()
        return iter(kept.items) if kept is not None else self._looker.keep(self._found.records().blocks())

    def buckets(self, key: str, most: int, *, every: bool) -> Buckets | None:
        return None

    def extremes(self) -> dict[str, Extreme]:
        keys = contents.read(self.view()).keys.values()
        return {key.name: Extreme(key.last.value, key.low, key.high) for key in keys if key.last is not None}


class ServerRun:
    """A run behind an HTTP API."""

    def __init__(self, server: Server, row: dict[str, Any]) -> None:
        self._server = server
        self._row = row
        self._loaded: RemoteRun | None = None

    def facts(self) -> Facts:
        row = self._row
        return Facts(
            row["id"],
            row["name"] or row["id"],
            row["project"],
            row["group"],
            tuple(row["tags"]),
            row["state"],
            row["reason"],
            row["created_ns"],
        )

    @property
    def _run(self) -> RemoteRun:
        if self._loaded is None:
            self._loaded = remote_runs.load(self._server, self._row["id"])
        return self._loaded

    def view(self) -> RunView:
        return self._run.view()

    def keys(self) -> list[str]:
        return [row["key"] for row in self._run.key_rows()]

    def columns(self, keys: list[str]) -> Iterator[StreamColumns]:
        return self._run.columns(keys)

    def extremes(self) -> dict[str, Extreme]:
        found = {}
        for row in self._run.extremes():
            last = row["last"]
            value = ODD_FLOATS.get(last["value"], last["value"]) if last["type"] in _FLOATS else last["value"]
            found[row["key"]] = Extreme(value, row["min"], row["max"])
        return found

    def buckets(self, key: str, most: int, *, every: bool) -> Buckets | None:
        try:
            answer = self._run.buckets(key, most, every=every)
        except NoRun:
            return None
        start, count, nans, infs, neg_infs = (
            np.array(answer[name], np.int64) for name in ("start", "count", "nans", "infs", "neg_infs")
        )
        low, high, last = (
            np.array(
                [ODD_FLOATS[value] if isinstance(value, str) else value for value in answer[name]], float
            )
            for name in ("min", "max", "last")
        )
        leaves_out_texts = bool(answer.get("leaves_out_texts"))
        return Buckets(answer["width"], start, count, nans, infs, neg_infs, low, high, last, leaves_out_texts)


def _facts(run: RunView) -> Facts:
    return Facts(
        run.id,
        run.name,
        run.project,
        run.group,
        tuple(run.tags),
        run.state.name,
        run.state.cause,
        run.created_ns,
    )


def of_server(server: Server) -> list[ServerRun]:
    """All runs, the newest last."""
    found = [ServerRun(server, row) for row in listing.rows(server)]
    return found[::-1]

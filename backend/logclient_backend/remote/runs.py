"""One run of a server, as readers of folders have it: its nodes' documents, and its records page by page.

What a run is, is derived from the documents by the same code as everywhere (`runs.node`, `runs.view`). What the
collector knows better is handed to it: how long nothing has come from the run, by the collector's clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any
from urllib.parse import quote

from logclient.errors import NoRun, Unsupported
from logclient.shm.side_stream import SYSTEM

from ..runs import node as nodes
from ..runs import source, strict
from ..runs.contents import Contents, Only, Progress
from ..runs.edits import edits_of
from ..runs.extremes import Extreme
from ..runs.folder import Found
from ..runs.media import NoBlob
from ..runs.node import Node
from ..runs.paged import PagedReader
from ..runs.state import State
from ..runs.view import COUNTS, RunView, view
from ..wal.coverage import Spans
from ..wal.encoded import StreamColumns
from ..wire import pages
from . import contents
from .access import ServerError
from .follow import ServerFollower
from .server import Server

Row = dict[str, Any]  # as the API has it, see `RunRow` in collector/web/response_models.py

PAGE_FIELDS = ["step", "value", "time_ns", "rank", "stream", "seq", "order"]  # of points: all columns
_BY_SILENCE = ("late", "lost")  # what only the collector's clock shows


class ServerRun:
    """A run behind an HTTP API. What its documents contain is asked for once, and again by `look_again`."""

    def __init__(self, server: Server, listed: Row, *, side: str = "") -> None:
        """`listed`: as the API lists it. `side`: records of that side, instead of what was logged."""
        self.id = str(listed["id"])
        self._server = server
        self._listed = listed
        self._side = side
        # parameters of each question for values; collectors of the version before know `system` alone
        self._which = {"system": "1"} if side == SYSTEM else {"side": side} if side else {}
        self._described: dict[str, Any] = {}
        self._found: Found | None = None

    @cached_property
    def row(self) -> source.Row:
        """Correct an agent's counts, which may be older than what is stored."""
        row = self._listed
        return source.Row(
            row["id"],
            row["name"] or row["id"],
            row["project"],
            row["group"],
            row["tags"],
            row["state"],
            row["reason"],
            row["created_ns"],
            row["ended_ns"] or row["last_seen_ns"],
            row["active_ns"],
            row["attempts"],
            {**dict.fromkeys((*COUNTS, "waiting"), 0), **row["counts"], "stored": row["records"]},
            self._server.url,
            [],
            row.get("observed"),
            row.get("edited") or [],
        )

    def look_again(self) -> None:
        """Ask for its documents, as they are now; `NoRun` where there is no such run any more."""
        server, id = self._server, self.id
        described = server.json("/run", run=id)
        found = Found(id, f"{server.url}/api/v1/run?run={quote(id, safe='')}", reader=self._records)
        found.edits = edits_of(nodes.table(described.get("more")).get("edits"))
        documents = server.json("/run/documents", run=id)
        silent_ns = max(0, nodes.whole(documents.get("now_ns")) - nodes.whole(documents.get("last_seen_ns")))
        for node, wrapped in sorted(nodes.table(documents.get("nodes")).items()):
            found.nodes.append(self._node(f"{found.path}#{node}", node, wrapped, silent_ns))
        self._described, self._found = described, found

    def _node(self, path: str, id: str, wrapped: Any, silent_ns: int) -> Node:
        made = Node(path, id, spans=self.coverage)
        try:
            nodes.take(made, strict.unwrap(wrapped))
        except Unsupported:
            made.problem = "written by a newer logclient: update to read it"
        except ValueError as error:
            made.problem = f"its documents are damaged: {error}"
        made.now_ns = made.heard_ns + silent_ns
        return made

    def view(self) -> RunView:
        """Merged, with the state as the collector has it where it is about silence."""
        run = view(self._documents())
        state = self._described.get("state")
        if run.state.name == "running" and state in _BY_SILENCE:
            since = self._described.get("last_seen_ns")
            run.state = State(
                state, nodes.text(self._described.get("reason")), since if isinstance(since, int) else 0
            )
        return run.of_side(self._side) if self._side else run

    def of_side(self, side: str) -> ServerRun:
        return ServerRun(self._server, self._listed, side=side)

    @property
    def blob(self) -> Callable[[str], bytes]:
        return partial(_blob, self._server, self.id)

    def _documents(self) -> Found:
        if self._found is None:
            self.look_again()
        assert self._found is not None
        return self._found

    def contents(
        self, run: RunView, curves: int = 0, only: Only = None, progress: Progress = None
    ) -> Contents:
        return contents.read(self, self._key_rows, run, curves, only, progress)

    def follower(self) -> source.Follower:
        return ServerFollower(self)

    def _records(self) -> PagedReader:
        found = self._documents()
        mine = [node.of_side(self._side) if self._side else node for node in found.nodes]
        paths = {bytes.fromhex(stream): node.path for node in mine for stream in node.streams}
        return PagedReader(self.coverage(), self.fetch, paths)

    def coverage(self) -> Spans:
        """Return the coverage of each stream now, and its gaps."""
        return pages.read_contents(self._server.data("/run/contents", run=self.id, **self._which))

    def fetch(
        self, stream: bytes, first: int, most: int, keys: list[str] | None = None
    ) -> tuple[list[StreamColumns], int]:
        """Records from that seq on, whole or these keys of them, and the seq to ask for next."""
        data = self._server.data(
            "/run/records",
            run=self.id,
            stream=stream.hex(),
            first=first,
            limit=most,
            key=keys or [],
            **self._which,
        )
        return pages.read_page(data)

    def columns(self, keys: list[str]) -> Iterator[StreamColumns]:
        """All records that have one of these keys, without their other keys; stream by stream."""
        for stream, span in self.coverage().items():
            first = span.first or 0
            while first:
                found, after = self.fetch(stream, first, 1 << 16, keys)
                yield from found
                first = after if after > first else 0

    def _key_rows(self) -> Iterator[dict[str, Any]]:
        """Its keys as the API has them, in the order in which they came first."""
        after = ""
        while True:
            page = self._server.json("/run/keys", run=self.id, after=after, **self._which)
            yield from page["keys"]
            after = page["next"]
            if not after:
                return

    def keys(self) -> list[str]:
        return [row["key"] for row in self._key_rows()]

    def extremes(self) -> dict[str, Extreme]:
        """Newest, lowest and highest value of its keys; nothing from a collector without them."""
        found: dict[str, Extreme] = {}
        after = ""
        while True:
            try:
                page = self._server.json("/run/extremes", run=self.id, after=after, **self._which)
            except NoRun:
                return found
            for row in page["keys"]:
                found[row["key"]] = Extreme(contents.last_value(row["last"]), row["min"], row["max"])
            after = page["next"]
            if not after:
                return found

    def pages(self, key: str, first_step: int, last_step: int) -> Iterator[dict[str, Any]] | None:
        """Points of a key in a range of steps; None from a collector that cannot be asked for one."""
        asked = {"run": self.id, "key": key, "first_step": first_step, "last_step": last_step, **self._which}
        try:
            first = self._server.json("/run/series", limit=1_000_000, field=PAGE_FIELDS, **asked)
        except NoRun:
            return iter(())
        except ServerError as error:
            if "no such parameter" in str(error):  # it is older
                return None
            raise
        return self._rest(first, asked)

    def _rest(self, page: dict[str, Any], asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield page
        while not page["is_all"]:
            page = self._server.json(
                "/run/series", limit=1_000_000, field=PAGE_FIELDS, after=page["next"], **asked
            )
            yield page

    def buckets(
        self, key: str, most: int, *, every: bool = False, steps: tuple[int, int] | None = None
    ) -> dict[str, Any] | None:
        asked: dict[str, Any] = {"run": self.id, "key": key, "most": most, "all_attempts": str(every).lower()}
        if steps is not None:
            asked["first_step"], asked["last_step"] = steps
        try:
            return self._server.json("/run/buckets", **asked, **self._which)
        except NoRun:
            return None


def _blob(server: Server, run: str, sha256: str) -> bytes:
    try:
        data = server.file("/run/blob", run=run, sha256=sha256)
    except NoRun as error:
        raise NoBlob(str(error)) from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise NoBlob(f"{server.url} answers with other bytes than those of the blob {sha256[:12]}")
    return data

"""One run of a server, as readers of folders have it: its nodes' documents, and its records page by page.

What a run is, is derived from the documents by the same code as everywhere (`runs.node`, `runs.view`). What the
collector knows better is handed to it: how long nothing has come from the run, by the collector's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from logclient.errors import NoRun, Unsupported

from ..runs import node as nodes
from ..runs import strict
from ..runs.folder import Found
from ..runs.node import Node
from ..runs.order import Records
from ..runs.paged import PagedReader
from ..runs.state import State
from ..runs.view import RunView, view
from ..wal.coverage import Spans
from ..wal.encoded import StreamColumns
from ..wire import pages
from .server import Server

_BY_SILENCE = ("late", "lost")  # what only the collector's clock shows


@dataclass(slots=True)
class RemoteRun(Found):
    """A run behind an HTTP API. `name` is its id, `path` where it is shown to be."""

    server: Server | None = None
    described: dict[str, Any] = field(default_factory=dict)  # as the API describes it

    @property
    def id(self) -> str:
        return self.name

    def records(self) -> Records:
        """Return the records that are stored now."""
        paths = {bytes.fromhex(stream): found.path for found in self.nodes for stream in found.streams}
        return PagedReader(self.contents(), self.fetch, paths)

    def contents(self) -> Spans:
        """Return the coverage of each stream now, and its gaps."""
        return pages.read_contents(self._asked.data("/run/contents", run=self.name))

    def fetch(
        self, stream: bytes, first: int, most: int, keys: list[str] | None = None
    ) -> tuple[list[StreamColumns], int]:
        """Records from that seq on, whole or these keys of them, and the seq to ask for next."""
        data = self._asked.data(
            "/run/records", run=self.name, stream=stream.hex(), first=first, limit=most, key=keys or []
        )
        return pages.read_page(data)

    def columns(self, keys: list[str]) -> Iterator[StreamColumns]:
        """All records that have one of these keys, without their other keys; stream by stream."""
        for stream, span in self.contents().items():
            first = span.first or 0
            while first:
                found, after = self.fetch(stream, first, 1 << 16, keys)
                yield from found
                first = after if after > first else 0

    def key_rows(self) -> Iterator[dict[str, Any]]:
        """Its keys as the API has them, in the order in which they came first."""
        after = ""
        while True:
            page = self._asked.json("/run/keys", run=self.name, after=after)
            yield from page["keys"]
            after = page["next"]
            if not after:
                return

    def extremes(self) -> Iterator[dict[str, Any]]:
        """Newest, lowest and highest value of its keys, as the API has them; nothing from a collector without them."""
        after = ""
        while True:
            try:
                page = self._asked.json("/run/extremes", run=self.name, after=after)
            except NoRun:
                return
            yield from page["keys"]
            after = page["next"]
            if not after:
                return

    def buckets(self, key: str, most: int, *, every: bool = False) -> dict[str, Any]:
        """A key reduced, as the API has it; `NoRun` where there is none. `every`: of all attempts."""
        flag = str(every).lower()
        return self._asked.json("/run/buckets", run=self.name, key=key, most=most, all_attempts=flag)

    @property
    def _asked(self) -> Server:
        assert self.server is not None
        return self.server

    def view(self) -> RunView:
        """Merged, with the state as the collector has it where it is about silence."""
        run = view(self)
        state = self.described.get("state")
        if run.state.name == "running" and state in _BY_SILENCE:
            since = self.described.get("last_seen_ns")
            run.state = State(
                state, nodes.text(self.described.get("reason")), since if isinstance(since, int) else 0
            )
        return run


def load(server: Server, run: str) -> RemoteRun:
    """The run with that id; `NoRun` where there is none."""
    described = server.json("/run", run=run)
    found = RemoteRun(
        run, f"{server.url}/api/v1/run?run={quote(run, safe='')}", server=server, described=described
    )
    documents = server.json("/run/documents", run=run)
    silent_ns = max(0, nodes.whole(documents.get("now_ns")) - nodes.whole(documents.get("last_seen_ns")))
    for id, wrapped in sorted(nodes.table(documents.get("nodes")).items()):
        found.nodes.append(_node(found, id, wrapped, silent_ns))
    return found


def _node(found: RemoteRun, id: str, wrapped: Any, silent_ns: int) -> Node:
    made = Node(f"{found.path}#{id}", id, spans=found.contents)
    try:
        nodes.take(made, strict.unwrap(wrapped))
    except Unsupported:
        made.problem = "written by a newer logclient: update to read it"
    except ValueError as error:
        made.problem = f"its documents are damaged: {error}"
    made.now_ns = made.heard_ns + silent_ns
    return made

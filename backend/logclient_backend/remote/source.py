"""`ServerSource`: runs of a server in lists, and which of them somebody means; filtered and sorted there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from logclient.errors import NoRun

from ..runs import node as nodes
from ..runs.source import Listing, StoredRun
from . import access
from .access import NoPath, ServerError
from .many_runs import ManyRuns
from .runs import Row, ServerRun
from .server import Server

PAGE_RUNS = 1_000
_MAX_LISTED = 20
_SEARCHED = ("id", "name", "project", "tag")


class ServerSource:
    """Runs of a server."""

    kind = "server"

    def __init__(self, address: str, *, token: str | None = None, token_file: str = "") -> None:
        self._server = Server(access.find(address, token=token, token_file=token_file))
        self.where = self._server.url
        self.many = ManyRuns(self._server)

    def list(self, text: str | None = None, most: int | None = None) -> Listing:
        if text:
            found = search(self._server, text)
            older = 0 if most is None else max(0, len(found) - most)
            found = found[older:]
        else:
            found, older = newest(self._server, most)
        return Listing(list[StoredRun](ServerRun(self._server, row) for row in found), older)

    def run(self, wanted: str | None) -> ServerRun:
        return ServerRun(self._server, resolve(self._server, wanted))

    def node_reports(self, id: str) -> Iterator[dict[str, Any]]:
        """Nodes of a run, with the reports of those on which it does not get on."""
        after = ""
        while True:
            try:
                page = self._server.json("/run/reports", run=id, after=after)
            except NoPath:
                raise ServerError(
                    f"{self.where} keeps no reports of nodes: update it, or use `logclient why --merge`"
                ) from None
            yield from filter(_is_table, nodes.listed(page.get("nodes")))
            before, after = after, nodes.text(page.get("next"))
            if after <= before:
                return


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def rows(server: Server, *, most: int | None = None, **asked: Any) -> Iterator[Row]:
    """Runs page by page, the newest first."""
    after = ""
    while most is None or most > 0:
        limit = PAGE_RUNS if most is None else min(most, PAGE_RUNS)
        page = server.json("/runs", limit=limit, after=after, **asked)
        found = page.get("runs") or []
        yield from found
        after = page.get("next") or ""
        if not after or not found:
            return
        most = None if most is None else most - len(found)


def newest(server: Server, most: int | None) -> tuple[list[Row], int]:
    """The newest runs, the newest last, and how many older ones there are."""
    if most == 0:
        return [], int(server.json("/runs", limit=1).get("total") or 0)
    found = list(rows(server, most=most))
    total = len(found)
    if most is not None and total == most:
        total = int(server.json("/runs", limit=1).get("total") or total)
    return found[::-1], max(0, total - len(found))


def search(server: Server, text: str) -> list[Row]:
    """Runs that have the text in their id, name, project or tags; the newest last."""
    found = {
        row["id"]: row
        for field in _SEARCHED
        for row in rows(server, where=json.dumps([field, "contains", text]))
    }
    return sorted(found.values(), key=lambda row: (row["created_ns"], row["id"]))


def resolve(server: Server, wanted: str | None) -> Row:
    """The run that is meant, by the rules of `runs.folder.resolve`."""
    if wanted is None:
        for row in rows(server, most=1):
            return row
        raise NoRun(f"there is no run at {server.url}")
    if wanted:
        for row in rows(server, most=1, where=json.dumps(["id", "=", wanted])):
            return row
        for row in rows(server, most=1, name=wanted):
            return row
    parts = (
        list(rows(server, most=_MAX_LISTED + 1, where=json.dumps(["id", "contains", wanted])))
        if wanted
        else []
    )
    if len(parts) == 1:
        return parts[0]
    if parts:
        raise NoRun(f"{wanted!r} is part of several ids; say more of it:\n{_listed(parts)}")
    there = list(rows(server, most=_MAX_LISTED + 1))
    if not there:
        raise NoRun(f"there is no run at {server.url}")
    raise NoRun(
        f"no run at {server.url} has {wanted!r} as its id, in its id, or as its name; there are:\n{_listed(there)}"
    )


def _listed(found: list[Row]) -> str:
    lines = [
        f"  {row['id']}" + (f"  {row['name']}" if row["name"] not in ("", row["id"]) else "")
        for row in found[:_MAX_LISTED]
    ]
    if len(found) > _MAX_LISTED:
        lines.append("  and older ones")
    return "\n".join(lines)

"""The two sources that runs are shown from, a folder and a server's HTTP API, as one protocol.

A server is never taken from the environment unasked: what `logclient ls` shows would depend on a variable that was set
for the trainer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from logclient.config import Config

from ..runs import contents, folder, live
from ..runs.contents import Contents
from ..runs.folder import Found
from ..runs.follow import FolderFollower
from ..runs.view import COUNTS, RunView, view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..remote.server import Server
    from ..wal.encoded import StreamColumns
    from ..wal.scan import Item


class Follower(Protocol):
    """A run that is looked at again and again."""

    poll_s: float
    run: RunView

    def last(self, count: int) -> Iterator[StreamColumns]: ...

    def poll(self) -> Iterator[Item]: ...

    def look_again(self) -> None: ...

    def notices(self) -> list[str]: ...

    @property
    def is_over(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Row:
    """A run in the list."""

    id: str
    name: str
    project: str
    group: str
    tags: list[str]
    state: str
    cause: str
    created_ns: int
    last_ns: int
    active_ns: int
    attempts: int
    counts: dict[str, int]
    path: str
    problems: list[str]
    observed: dict[str, Any] | None = None  # while it runs: whether it gets on


@dataclass(slots=True)
class Listing:
    """Runs of a source, oldest first."""

    base: str  # the folder, or the server's address
    rows: list[Row]
    older: int = 0  # how many were left off
    problems: list[Found] = field(default_factory=list)  # folders that are no runs, and why


class RunSource(Protocol):
    """A source that runs are shown from."""

    kind: str  # the option that names it, and the key of its address in JSON

    def list(self, text: str | None, most: int | None) -> Listing:
        """The newest `most` runs, or all; with `text`, those that have it in id, name, project or tags."""

    def run(self, wanted: str | None) -> RunView:
        """The run that is meant; `NoRun` where that is none or more than one."""

    def contents(
        self,
        run: RunView,
        *,
        curves: int,
        only: Callable[[str], bool] | None,
        progress: Callable[[int], None],
    ) -> Contents:
        """The stored contents of a run that `run` gave."""

    def follower(self, run: RunView) -> Follower:
        """A follower of new records of a run that `run` gave."""


class FolderSource:
    """Runs of a folder; by default LOGCLIENT_DIR, else ./logclient-runs."""

    kind = "dir"

    def __init__(self, dir: str | None = None) -> None:
        self._dir = dir

    def list(self, text: str | None, most: int | None) -> Listing:
        base, found = all_runs(self._dir)
        good = sorted((run for run in found if not run.problem), key=lambda run: (run.newest_ns, run.name))
        none = [run for run in found if run.problem]
        if text:
            runs = [run for each in good if _has(run := view(each), text)]
            none = [run for run in none if text in run.name]
            left = 0 if most is None else max(0, len(runs) - most)
            runs = runs[left:]
        else:
            left = 0 if most is None else max(0, len(good) - most)
            runs = [view(run) for run in good[left:]]
        return Listing(base, [_row(run) for run in runs], left, none)

    def run(self, wanted: str | None) -> RunView:
        return one_run(self._dir, wanted)

    def contents(
        self,
        run: RunView,
        *,
        curves: int,
        only: Callable[[str], bool] | None,
        progress: Callable[[int], None],
    ) -> Contents:
        return contents.read(run, curves=curves, only=only, progress=progress)

    def follower(self, run: RunView) -> Follower:
        return FolderFollower(run, run_folder(self._dir))


class ServerSource:
    """Runs of a server. What it needs (requests, grpc) is loaded when it is used: folders do without."""

    kind = "server"

    def __init__(self, address: str, token_file: str = "") -> None:
        self._address = address
        self._token_file = token_file

    def _open(self) -> Server:
        from ..remote import access, server

        return server.Server(access.find(self._address, token_file=self._token_file))

    def list(self, text: str | None, most: int | None) -> Listing:
        from ..remote import listing

        server = self._open()
        if text:
            found = listing.search(server, text)
            older = 0 if most is None else max(0, len(found) - most)
            found = found[older:]
        else:
            found, older = listing.newest(server, most)
        return Listing(server.url, [_row_of_server(server.url, row) for row in found], older)

    def run(self, wanted: str | None) -> RunView:
        from ..remote import listing, runs

        asked = self._open()
        return runs.load(asked, listing.resolve(asked, wanted)).view()

    def contents(
        self,
        run: RunView,
        *,
        curves: int,
        only: Callable[[str], bool] | None,
        progress: Callable[[int], None],
    ) -> Contents:
        from ..remote import contents as remote_contents

        return remote_contents.read(run, curves=curves, only=only, progress=progress)

    def follower(self, run: RunView) -> Follower:
        from ..remote.follow import ServerFollower

        return ServerFollower(run)


def run_folder(dir: str | None) -> str:
    """The folder that is meant."""
    return os.path.abspath(dir or Config.from_env().dir or "logclient-runs")


def all_runs(dir: str | None) -> tuple[str, list[Found]]:
    """The folder, and what lies in it."""
    base = run_folder(dir)
    return base, folder.find(base, live_dirs=live.scan())


def one_run(dir: str | None, wanted: str | None) -> RunView:
    """The run that is meant; `NoRun` where that is none or more than one."""
    base, runs = all_runs(dir)
    return view(folder.resolve(runs, wanted, base))


def _row(run: RunView) -> Row:
    return Row(
        run.id,
        run.name,
        run.project,
        run.group,
        run.tags,
        run.state.name,
        run.state.cause,
        run.created_ns,
        run.last_ns,
        run.active_ns,
        len(run.attempts),
        run.counts(),
        run.found.path,
        [node.problem for node in run.nodes if node.problem],
        None if run.observed is None or run.observed.is_ok else run.observed.as_dict(),
    )


def _row_of_server(url: str, row: dict[str, Any]) -> Row:
    """Correct an agent's counts, which may be older than what is stored."""
    counts = {**dict.fromkeys((*COUNTS, "waiting"), 0), **row["counts"], "stored": row["records"]}
    return Row(
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
        counts,
        url,
        [],
        row.get("observed"),
    )


def _has(run: RunView, text: str) -> bool:
    return any(text in each for each in (run.id, run.name, run.project, *run.tags))

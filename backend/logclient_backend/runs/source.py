"""Sources of runs as one protocol: `RunSource`, and `StoredRun` for one run of it.

For whatever shows or reads runs: the command line and `logclient.read`. Behind it are `FolderSource`, here, and
`ServerSource` in `remote/source.py`. Each answer is read when it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

from ..wal.encoded import StreamColumns
from ..wal.scan import Item
from . import contents, folder
from .contents import Contents, Only, Progress
from .decoded import Looker
from .extremes import Extreme
from .folder import Found
from .follow import FolderFollower
from .media import read_blob
from .media_reference import FOLDER
from .view import RunView, view


class Row(NamedTuple):
    """A run as a list shows it."""

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
    observed: dict[str, Any] | None = None  # while it runs and does not get on: what an observer has found
    edited: Sequence[str] = ()  # fields that were edited after the fact


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


class StoredRun(Protocol):
    """One run of a source."""

    @property
    def row(self) -> Row:
        """Return what a list shows of it, as it was when it was found."""

    def view(self) -> RunView:
        """All that its documents contain."""

    def contents(
        self, run: RunView, curves: int = 0, only: Only = None, progress: Progress = None
    ) -> Contents:
        """The stored contents; `run` is what `view` gave."""

    def follower(self) -> Follower:
        """A follower of its new records."""

    def keys(self) -> list[str]:
        """In the order in which they were logged first."""

    def columns(self, keys: list[str]) -> Iterator[StreamColumns]:
        """Records that have one of these keys, perhaps with others; some may come twice."""

    def pages(self, key: str, first_step: int, last_step: int) -> Iterator[dict[str, Any]] | None:
        """Points of a key in a range of steps, as the API has them; None where nobody looks them up: read them all."""

    def buckets(
        self, key: str, most: int, *, every: bool = False, steps: tuple[int, int] | None = None
    ) -> dict[str, Any] | None:
        """A key reduced, as the API has it; None where nobody keeps that: reduce the points. `every`: all attempts."""

    def extremes(self) -> dict[str, Extreme]:
        """Newest, lowest and highest value of each key."""

    def of_side(self, side: str) -> StoredRun:
        """Return this run with the records of a side in the place of what was logged (`shm/side_stream.py`)."""

    @property
    def blob(self) -> Callable[[str], bytes]:
        """Return a function that gives the bytes of a media value by their SHA-256, or raises `NoBlob`."""


@dataclass(slots=True)
class Listing:
    """Runs of a source, the newest last."""

    runs: list[StoredRun]
    older: int = 0  # how many were left off
    problems: list[Found] = field(default_factory=list)  # folders that are no runs, and why


class RunSource(Protocol):
    """A folder or a server."""

    kind: str  # the option that names it, and the key of its address in JSON
    where: str  # the folder, or the server's address

    def list(self, text: str | None = None, most: int | None = None) -> Listing:
        """The newest `most` runs, or all; with `text`, those that have it in id, name, project or tags."""

    def run(self, wanted: str | None) -> StoredRun:
        """The run that is meant; `NoRun` where that is none or more than one."""


class FolderSource:
    """Runs of a folder."""

    kind = "dir"

    def __init__(self, folder: str) -> None:
        self.where = os.path.abspath(folder)

    def list(self, text: str | None = None, most: int | None = None) -> Listing:
        found = sorted(folder.find(self.where), key=lambda run: (run.newest_ns, run.name))
        runs = [FolderRun(run, self.where) for run in found if not run.problem]
        none = [run for run in found if run.problem]
        if text:
            runs = [run for run in runs if _has(run.row, text)]
            none = [run for run in none if text in run.name]
        left = 0 if most is None else max(0, len(runs) - most)
        return Listing(list[StoredRun](runs[left:]), left, none)

    def run(self, wanted: str | None) -> FolderRun:
        return FolderRun(folder.resolve(folder.find(self.where), wanted, self.where), self.where)


class FolderRun:
    """A run of a folder."""

    def __init__(self, found: Found, base: str, *, side: str = "") -> None:
        """`base`: the folder that it was found in. `side`: records of that side, instead of what was logged."""
        self._whole = found
        self._side = side
        self._found = found.of_side(side) if side else found
        self._base = base
        self._looker = Looker([node.path for node in found.nodes])

    @cached_property
    def row(self) -> Row:
        run = self.view()
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
            run.found.edits.fields,
        )

    def view(self) -> RunView:
        run = view(self._whole)
        return run.of_side(self._side) if self._side else run

    def of_side(self, side: str) -> FolderRun:
        return FolderRun(self._whole, self._base, side=side)

    @property
    def blob(self) -> Callable[[str], bytes]:
        return partial(read_blob, [f"{node.path}/{FOLDER}" for node in self._whole.nodes])

    def contents(
        self, run: RunView, curves: int = 0, only: Only = None, progress: Progress = None
    ) -> Contents:
        return contents.read(run, curves, only, progress)

    def follower(self) -> Follower:
        return FolderFollower(self.view(), self._base)

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

    def pages(self, key: str, first_step: int, last_step: int) -> None:
        return None

    def buckets(
        self, key: str, most: int, *, every: bool = False, steps: tuple[int, int] | None = None
    ) -> None:
        return None

    def extremes(self) -> dict[str, Extreme]:
        keys = contents.read(self.view()).keys.values()
        return {key.name: Extreme(key.last.value, key.low, key.high) for key in keys if key.last is not None}


def _has(row: Row, text: str) -> bool:
    return any(text in each for each in (row.id, row.name, row.project, *row.tags))

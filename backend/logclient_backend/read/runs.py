"""`read` and `Runs`: the runs of a folder or a server, chosen, listed and compared."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from logclient.errors import BadArgument, NoRun

from ..remote import access
from ..remote.source import ServerSource
from ..runs import folder
from ..runs.source import FolderRun, FolderSource, StoredRun
from . import conditions, table
from .curves import Band, Curves, band_of
from .many import FolderMany, Many, ServerMany
from .run import Attempts, Run, is_every, range_of

if TYPE_CHECKING:
    from pandas import DataFrame

_MAX_NAMED = 20
_LIKE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_USUAL = (0.25, 0.5, 0.75)
OneOrMore = str | Iterable[str]


def read(path_or_url: str | os.PathLike[str], *, token: str | None = None) -> Runs:
    """The runs of a folder (or one run's own folder), or of a server; see `logclient.read`."""
    where = os.fspath(path_or_url)
    if access.is_url(where):
        server = ServerSource(where, token=token)
        found = server.list().runs
        many = ServerMany(server.many, [each.row.id for each in found])
        return Runs(server.where, [_run(each, many) for each in found], many)
    if token is not None:
        raise BadArgument("token is for a server; a folder needs none")
    if _LIKE_URL.match(where) and not os.path.exists(where):
        raise access.unknown_scheme(where)
    base = os.path.abspath(where)
    own = folder.load(os.path.basename(base), base) if os.path.isdir(base) else None
    if own is not None and not own.problem:
        return Runs(base, [Run(FolderRun(own, base))], FolderMany())
    return Runs(base, [Run(each) for each in FolderSource(base).list().runs], FolderMany())


def _run(stored: StoredRun, many: Many) -> Run:
    run = stored.row.id
    return Run(stored, lambda: many.settings(run))


class Runs(Sequence[Any]):  # of Run; Any, so that type checkers take `"name" in runs`
    """Runs, the newest last: ``runs[-1]``, ``runs["an id or name"]``, ``"name" in runs``, ``for run in runs``."""

    def __init__(self, source: str, runs: Sequence[Run], many: Many) -> None:
        self.source = source
        self._runs = list(runs)
        self._many = many

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, which: int | str) -> Run: ...

    @overload
    def __getitem__(self, which: slice) -> Runs: ...

    def __getitem__(self, which: int | str | slice) -> Run | Runs:
        """By place; or by id, by name (the newest with it), by a part of one id. `NoRun` where that is none."""
        if isinstance(which, slice):
            return self._of(self._runs[which])
        if not isinstance(which, str):
            return self._runs[which]
        for run in self._runs:
            if run.id == which:
                return run
        for run in reversed(self._runs):
            if run.name == which:
                return run
        parts = [run for run in self._runs if which and which in run.id]
        if len(parts) == 1:
            return parts[0]
        there = ", ".join(run.id for run in self._runs[-_MAX_NAMED:]) or "none"
        if parts:
            raise NoRun(f"{which!r} is part of {len(parts)} ids at {self.source}; say more of it")
        raise NoRun(
            f"no run at {self.source} has {which!r} as its id, in its id, or as its name; there are: {there}"
        )

    def __contains__(self, which: object) -> bool:
        """Would `runs[which]` give a run? Or is it one of these?"""
        if isinstance(which, Run):
            return any(run.id == which.id for run in self._runs)
        try:
            return isinstance(which, str) and bool(self[which])
        except NoRun:
            return False

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __repr__(self) -> str:
        return f"<Runs of {self.source}: {len(self)}>"

    def _of(self, runs: Sequence[Run]) -> Runs:
        return Runs(self.source, runs, self._many)

    def _load(self, runs: Sequence[Run]) -> None:
        """Config and summary of these are needed next."""
        self._many.load([run.id for run in runs])

    def where(
        self,
        *texts: str,
        project: OneOrMore | None = None,
        name: OneOrMore | None = None,
        group: OneOrMore | None = None,
        state: OneOrMore | None = None,
        tags: OneOrMore | None = None,
        config: Mapping[str, Any] | None = None,
        summary: Mapping[str, Any] | None = None,
    ) -> Runs:
        """Return the runs that meet all of these conditions.

        `project`, `name`, `group`, `state`: a text, or several of which one is to match. `tags`: a tag, or several that
        a run must all have. `config`, `summary`: a dict of names and values; a value may be a set of which one is to
        match, or a function. `texts`: conditions as `"config.lr < 0.01"`, with = != < <= > >= contains.
        """
        fields = {"project": project, "name": name, "group": group, "state": state}
        quick = [conditions.of_field(each, value) for each, value in fields.items() if value is not None]
        if tags is not None:
            quick.append(conditions.of_tags(tags))
        slow = [conditions.of_text(text) for text in texts]
        for tree, wanted in (("config", config), ("summary", summary)):
            if wanted is not None:
                slow += conditions.of_tree(tree, wanted)
        found = [run for run in self._runs if all(meets(run) for meets in quick)]
        if slow:
            self._load(found)
            found = [run for run in found if all(meets(run) for meets in slow)]
        return self._of(found)

    def by(self, name: str) -> dict[Any, Runs]:
        """Return the runs by a value, as `by("group")` or `by("config.lr")`; those without it are under None."""
        read_value = conditions.reader_of(name)
        if name.partition(".")[0] in conditions.TREES:
            self._load(self._runs)
        found: dict[Any, list[Run]] = {}
        for run in self._runs:
            value = read_value(run)
            if value is conditions.MISSING:
                value = None
            if isinstance(value, (list, dict)):
                value = json.dumps(value, default=str)
            found.setdefault(value, []).append(run)
        return {value: self._of(runs) for value, runs in found.items()}

    def rows(self, keys: OneOrMore = ()) -> list[dict[str, Any]]:
        """Return a dict per run: what it is, `config.NAME`, `summary.NAME`, and of `keys` the extremes.

        These are `last.KEY`, `min.KEY` and `max.KEY`, as `run.extremes` has them.
        """
        wanted = [keys] if isinstance(keys, str) else list(keys)
        self._load(self._runs)
        extremes = self._many.extremes(self._runs, wanted)
        return [table.row_of(run, extremes.get(run.id, {}), wanted) for run in self._runs]

    def table(self, keys: OneOrMore = ()) -> DataFrame:
        """Return `rows` as a pandas DataFrame, with the ids as its index. No value is rounded."""
        table.pandas()  # before anything is asked
        return table.frame_of(self.rows(keys))

    def series(
        self,
        key: str,
        *,
        first_step: int | None = None,
        last_step: int | None = None,
        attempts: Attempts = "newest",
    ) -> Curves:
        """All points of a key of each run that has it, or those in a range of steps."""
        every, steps = is_every(attempts), range_of(first_step, last_step)
        if not isinstance(key, str):
            raise BadArgument(f"series: {key!r} is no key: one key of many runs, or many keys of one run")
        return Curves(key, self._many.series(self._runs, key, steps, every=every), self._runs)

    def frame(
        self,
        key: str,
        *,
        wide: bool = False,
        first_step: int | None = None,
        last_step: int | None = None,
        attempts: Attempts = "newest",
    ) -> DataFrame:
        """One key of all runs as a pandas DataFrame: a row per point; `wide`: a column per run, a row per step."""
        table.pandas()
        found = self.series(key, first_step=first_step, last_step=last_step, attempts=attempts)
        return found.to_pandas(wide=wide)

    def band(
        self,
        key: str,
        *,
        quantiles: Iterable[float] = _USUAL,
        first_step: int | None = None,
        last_step: int | None = None,
    ) -> Band:
        """Return mean, range and quantiles of a key over the runs, step by step, from all points; see `Band`."""
        wanted = [float(at) for at in quantiles]
        for at in wanted:
            if not 0 <= at <= 1:
                raise BadArgument(f"quantiles: {at} is not from 0 to 1")
        steps = range_of(first_step, last_step)  # of the answer: what is carried into it lies before
        return band_of(self.series(key), wanted, steps)

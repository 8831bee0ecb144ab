"""`read`, `Runs` and `Run`: what a user holds. Questions are answered when they are asked, with what is there then."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from logclient.errors import BadArgument, NoRun
from logclient.shm.side_stream import MEDIA, SIDES, SYSTEM

from ..remote import access
from ..remote.source import ServerSource
from ..runs import folder
from ..runs.extremes import Extreme, of_summary
from ..runs.media import media_items
from ..runs.source import FolderRun, FolderSource, StoredRun
from ..runs.view import RunView
from .gather import gather
from .media import Media
from .reduce import of_answer, reals, reduce
from .series import Reduced, Series, Table

if TYPE_CHECKING:
    from pandas import DataFrame

Attempts = Literal["newest", "all"]
_MAX_NAMED = 20
_LIKE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def read(path_or_url: str | os.PathLike[str], *, token: str | None = None) -> Runs:
    """The runs of a folder (or one run's own folder), or of a server; see `logclient.read`."""
    where = os.fspath(path_or_url)
    if access.is_url(where):
        server = ServerSource(where, token=token)
        return Runs(server.where, server.list().runs)
    if token is not None:
        raise BadArgument("token is for a server; a folder needs none")
    if _LIKE_URL.match(where) and not os.path.exists(where):
        raise access.unknown_scheme(where)
    base = os.path.abspath(where)
    own = folder.load(os.path.basename(base), base) if os.path.isdir(base) else None
    if own is not None and not own.problem:
        return Runs(base, [FolderRun(own, base)])
    return Runs(base, FolderSource(base).list().runs)


class Runs(Sequence["Run"]):
    """Runs, the newest last: ``runs[-1]``, ``runs["an id or name"]``, ``for run in runs``."""

    def __init__(self, where: str, stored: Sequence[StoredRun]) -> None:
        self.where = where
        self._runs = [Run(each) for each in stored]

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, which: int | str) -> Run: ...

    @overload
    def __getitem__(self, which: slice) -> list[Run]: ...

    def __getitem__(self, which: int | str | slice) -> Run | list[Run]:
        """By place; or by id, by name (the newest with it), by a part of one id. `NoRun` where that is none."""
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
            raise NoRun(f"{which!r} is part of {len(parts)} ids at {self.where}; say more of it")
        raise NoRun(
            f"no run at {self.where} has {which!r} as its id, in its id, or as its name; there are: {there}"
        )

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __repr__(self) -> str:
        return f"<Runs of {self.where}: {len(self)}>"


class Run:
    """One run, as it was when `read` found it; its points are those of now."""

    def __init__(self, stored: StoredRun) -> None:
        self._stored = stored
        self._view: RunView | None = None

    @property
    def _whole(self) -> RunView:
        if self._view is None:
            self._view = self._stored.view()
        return self._view

    @property
    def id(self) -> str:
        return self._stored.row.id

    @property
    def name(self) -> str:
        return self._stored.row.name

    @property
    def project(self) -> str:
        return self._stored.row.project

    @property
    def state(self) -> str:
        """Return the state; why it is that one is in `about`.

        One of running, late, finished, failed, preempted, killed, terminated, replaced and lost.
        """
        return self._stored.row.state

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(self._stored.row.tags)

    @property
    def created(self) -> datetime | None:
        """Start of the first attempt, UTC; None where its documents are not there."""
        created_ns = self._stored.row.created_ns
        return datetime.fromtimestamp(created_ns / 1e9, UTC) if created_ns else None

    @property
    def config(self) -> Mapping[str, Any]:
        """The config as it was given, nested."""
        return self._whole.config

    @property
    def summary(self) -> Mapping[str, Any]:
        """The summary as it was given, nested."""
        return self._whole.summary

    @property
    def about(self) -> Mapping[str, Any]:
        """The rest: group, notes, edits, why it ended, counts of records, ranks, attempts, alerts, notices."""
        row, whole = self._stored.row, self._whole
        return {
            "group": row.group,
            "notes": whole.notes,
            "edits": [each.as_dict() for each in whole.edits],
            "cause": row.cause,
            "counts": whole.counts(),
            "ranks": whole.ranks,
            "attempts": len(whole.attempts),
            "alerts": whole.alerts,
            "notices": whole.notices,
        }

    @property
    def extremes(self) -> Mapping[str, Extreme]:
        """Newest, lowest and highest value of each key: `run.extremes["loss"].min`. Reads the whole run.

        What the program has stored itself in its summary wins: `loss.min`, `loss.max` and `loss`.
        """
        summary = self.summary
        made = {}
        for key, found in self._stored.extremes().items():
            own = {what: of_summary(summary, key, what) for what in Extreme._fields}
            made[key] = found._replace(**{what: value for what, value in own.items() if value is not None})
        return made

    @property
    def system(self) -> Run:
        """This run with its host and device metrics in the place of what was logged.

        `run.system.keys()`, `run.system.series("system/cpu_percent")`: steps are seconds since 1970.
        """
        return self.side(SYSTEM)

    @property
    def media(self) -> Media:
        """Images, histograms, tables, texts and files that were logged, with those of all attempts.

        `run.media["sample"]`, `run.media.at(step=100)`, `for each in run.media: each.load()`.
        """
        side = self._stored.of_side(MEDIA)
        return Media(self._stored, media_items(side.columns(side.keys())))

    def side(self, name: str) -> Run:
        """Return this run with the records of a side in the place of what was logged: system, console or media.

        What the program printed is easier to read with `run.console`, see docs/console.md.
        """
        if name not in SIDES:
            raise BadArgument(f"side({name!r}): expected one of {', '.join(SIDES)}")
        return Run(self._stored.of_side(name))

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name != self.id else ""
        return f"<Run {self.id}{name}: {self.state}>"

    def keys(self) -> list[str]:
        """Return the keys, in the order in which they were logged first."""
        return self._stored.keys()

    @overload
    def series(self, key: str, *, buckets: None = None, attempts: Attempts = "newest") -> Series: ...

    @overload
    def series(self, key: str, *, buckets: int, attempts: Attempts = "newest") -> Reduced: ...

    @overload
    def series(
        self, key: list[str] | tuple[str, ...], *, buckets: None = None, attempts: Attempts = "newest"
    ) -> Table: ...

    def series(
        self,
        key: str | list[str] | tuple[str, ...],
        *,
        buckets: int | None = None,
        attempts: Attempts = "newest",
    ) -> Series | Reduced | Table:
        """All points of a key; of several keys a `Table` over the union of their steps.

        Where attempts overlap in steps the newest counts; `attempts="all"` gives the rest too. `buckets`: at most so
        many ranges of steps with the lowest and highest value of each, instead of the points; the answer states that.
        """
        if attempts not in ("newest", "all"):
            raise BadArgument(f"attempts={attempts!r}: expected 'newest' or 'all'")
        every = attempts == "all"
        if not isinstance(key, str):
            if buckets is not None:
                raise BadArgument("buckets: reduce one key at a time")
            return Table(self._gathered(list(key), every))
        if buckets is None:
            return self._gathered([key], every)[key]
        if type(buckets) is not int or not 1 <= buckets <= 100_000:
            raise BadArgument(f"buckets={buckets!r}: expected a whole number from 1 to 100,000")
        return self._reduced(key, buckets, every)

    def frame(self, keys: Sequence[str], *, attempts: Attempts = "newest") -> DataFrame:
        """Several keys as a pandas DataFrame over the union of their steps."""
        return self.series(list(keys), attempts=attempts).to_pandas()

    def _gathered(self, keys: list[str], every: bool) -> dict[str, Series]:
        found = gather(self._stored.columns(keys), keys)
        numbers = self._attempts(found.processes)
        made = {}
        for key in keys:
            series = found.series(key, numbers, every=every)
            if series is None:
                raise self._no_key(key)
            made[key] = series
        return made

    def _attempts(self, processes: list[bytes]) -> dict[str, int]:
        """Return the attempt of each process; asked again where one came that was not known."""
        numbers = self._whole.attempt_numbers()
        if any(process.hex() not in numbers for process in processes):
            numbers = self._stored.view().attempt_numbers()
        return numbers

    def _reduced(self, key: str, most: int, every: bool) -> Reduced:
        answer = self._stored.buckets(key, most, every=every)
        leaves_out_texts = bool(answer and answer.get("leaves_out_texts"))
        if answer is not None:
            found = of_answer(answer)
        else:
            series = self._gathered([key], every)[key]
            step, value = series.step, series.value
            if value.dtype == object:
                is_number = np.array([not isinstance(each, str) for each in value], bool)
                leaves_out_texts = not bool(is_number.all())
                if not is_number.any():
                    raise BadArgument(
                        f"key {key!r} of run {self.id!r} holds texts, which have no buckets: series({key!r}) gives them"
                    )
                step, value = step[is_number], value[is_number]
            found = reduce(step, reals(value), most)
        return Reduced(
            key,
            found.width,
            found.start,
            found.min,
            found.max,
            found.last,
            found.count,
            found.nans,
            found.infs,
            found.neg_infs,
            int(found.count.sum()),
            leaves_out_texts,
        )

    def _no_key(self, key: str) -> BadArgument:
        there = self.keys()
        shown = ", ".join(repr(each) for each in there[:_MAX_NAMED])
        more = f" and {len(there) - _MAX_NAMED} more" if len(there) > _MAX_NAMED else ""
        return BadArgument(f"run {self.id} has no key {key!r}; there are: {shown or 'none'}{more}")

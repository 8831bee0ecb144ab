"""`Run`: one run, as a user holds it. Questions are answered when they are asked, with what is there then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from logclient.errors import BadArgument
from logclient.shm.side_stream import MEDIA, SIDES, SYSTEM

from ..runs.console import Console
from ..runs.extremes import Extreme, of_summary
from ..runs.media import media_items
from ..runs.source import StoredRun
from ..runs.view import RunView
from .gather import EVERY_STEP, Steps, gather
from .media import Media
from .pages import of_pages
from .reduce import of_answer, reals, reduce
from .series import Reduced, Series, Table

if TYPE_CHECKING:
    from pandas import DataFrame

Attempts = Literal["newest", "all"]
Settings = tuple[Mapping[str, Any], Mapping[str, Any]]  # config and summary
_MAX_NAMED = 20


class Run:
    """One run, as it was when `read` found it; its points are those of now."""

    def __init__(self, stored: StoredRun, settings: Callable[[], Settings | None] | None = None) -> None:
        """`settings`: config and summary, where they are known without reading the rest of the run's documents."""
        self._stored = stored
        self._view: RunView | None = None
        self._settings = settings

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
    def group(self) -> str:
        return self._stored.row.group

    @property
    def active_s(self) -> float:
        """Seconds in which it ran: gaps between attempts are not counted."""
        return self._stored.row.active_ns / 1e9

    @property
    def attempts(self) -> int:
        """Return the number of times that it was started."""
        return self._stored.row.attempts

    @property
    def config(self) -> Mapping[str, Any]:
        """The config as it was given, nested."""
        return self._set()[0]

    @property
    def summary(self) -> Mapping[str, Any]:
        """The summary as it was given, nested."""
        return self._set()[1]

    def _set(self) -> Settings:
        found = self._settings() if self._settings is not None and self._view is None else None
        return (self._whole.config, self._whole.summary) if found is None else found

    @property
    def about(self) -> Mapping[str, Any]:
        """The rest: group, notes, edits, why it ended, counts of records, ranks, attempts, alerts, notices."""
        row, whole = self._stored.row, self._whole
        return {
            "group": row.group,
            "notes": whole.notes,
            "environments": [each.as_dict() for each in whole.environments],
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
        return with_stored(self._stored.extremes(), self.summary)

    @property
    def system(self) -> Run:
        """This run with its host and device metrics in the place of what was logged.

        `run.system.keys()`, `run.system.series("system/cpu_percent")`: steps are seconds since 1970.
        """
        return self.side(SYSTEM)

    def side(self, name: str) -> Run:
        """Return this run with the records of a side in the place of what was logged: system, console or media.

        What the program printed is easier to read with `run.console`, see docs/console.md.
        """
        if name not in SIDES:
            raise BadArgument(f"side({name!r}): expected one of {', '.join(SIDES)}")
        return Run(self._stored.of_side(name))

    @property
    def media(self) -> Media:
        """Images, histograms, tables, texts and files that were logged, with those of all attempts.

        `run.media["sample"]`, `run.media.at(step=100)`, `for each in run.media: each.load()`.
        """
        side = self._stored.of_side(MEDIA)
        return Media(self._stored, media_items(side.columns(side.keys())))

    @property
    def console(self) -> Console:
        """The output of the program, if it was captured: `for line in run.console: print(line.text)`.

        Lines as they stand now; `run.console.pieces()` gives what was written, piece by piece. See docs/console.md.
        """
        return Console(self._stored)

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name != self.id else ""
        return f"<Run {self.id}{name}: {self.state}>"

    def keys(self) -> list[str]:
        """Return the keys, in the order in which they were logged first."""
        return self._stored.keys()

    @overload
    def series(
        self,
        key: str,
        *,
        buckets: None = None,
        first_step: int | None = None,
        last_step: int | None = None,
        attempts: Attempts = "newest",
    ) -> Series: ...

    @overload
    def series(
        self,
        key: str,
        *,
        buckets: int,
        first_step: int | None = None,
        last_step: int | None = None,
        attempts: Attempts = "newest",
    ) -> Reduced: ...

    @overload
    def series(
        self,
        key: list[str] | tuple[str, ...],
        *,
        buckets: None = None,
        first_step: int | None = None,
        last_step: int | None = None,
        attempts: Attempts = "newest",
    ) -> Table: ...

    def series(
        self,
        key: str | list[str] | tuple[str, ...],
        *,
        buckets: int | None = None,
        first_step: int | None = None,
        last_step: int | None = None,
        attempts: Attempts = "newest",
    ) -> Series | Reduced | Table:
        """All points of a key, or those from `first_step` to `last_step`; of several keys a `Table`.

        The table is over the union of their steps. A collector is asked for the range of steps alone.
        Where attempts overlap in steps the newest counts; `attempts="all"` gives the rest too. `buckets`: at most so
        many ranges of steps with the lowest and highest value of each, instead of the points; the answer states that.
        """
        every = is_every(attempts)
        steps = range_of(first_step, last_step)
        if not isinstance(key, str):
            if buckets is not None:
                raise BadArgument("buckets: reduce one key at a time")
            return Table(self._gathered(list(key), every, steps))
        if buckets is None:
            return self._gathered([key], every, steps)[key]
        if type(buckets) is not int or not 1 <= buckets <= 100_000:
            raise BadArgument(f"buckets={buckets!r}: expected a whole number from 1 to 100,000")
        return self._reduced(key, buckets, every, steps)

    def frame(
        self,
        keys: Sequence[str],
        *,
        first_step: int | None = None,
        last_step: int | None = None,
        attempts: Attempts = "newest",
    ) -> DataFrame:
        """Several keys as a pandas DataFrame over the union of their steps."""
        return self.series(
            list(keys), first_step=first_step, last_step=last_step, attempts=attempts
        ).to_pandas()

    def find(self, key: str, *, every: bool = False, steps: Steps = EVERY_STEP) -> Series | None:
        """Return the points of a key; None where the run has no such key."""
        if steps != EVERY_STEP:
            pages = self._stored.pages(key, *steps)
            if pages is not None:
                return of_pages(key, pages, every=every, steps=steps)
        found = gather(self._stored.columns([key]), [key])
        return found.series(key, self._attempts(found.processes), every=every, steps=steps)

    def _gathered(self, keys: list[str], every: bool, steps: Steps) -> dict[str, Series]:
        made: dict[str, Series] = {}
        if steps == EVERY_STEP:  # one pass over the records for all keys
            found = gather(self._stored.columns(keys), keys)
            numbers = self._attempts(found.processes)
        for key in keys:
            series = (
                found.series(key, numbers, every=every)
                if steps == EVERY_STEP
                else self.find(key, every=every, steps=steps)
            )
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

    def _reduced(self, key: str, most: int, every: bool, steps: Steps) -> Reduced:
        answer = self._stored.buckets(key, most, every=every, steps=None if steps == EVERY_STEP else steps)
        leaves_out_texts = bool(answer and answer.get("leaves_out_texts"))
        if answer is not None:
            found = of_answer(answer)
        else:
            series = self._gathered([key], every, steps)[key]
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


def is_every(attempts: str) -> bool:
    """Are all attempts asked for?"""
    if attempts not in ("newest", "all"):
        raise BadArgument(f"attempts={attempts!r}: expected 'newest' or 'all'")
    return attempts == "all"


def range_of(first_step: int | None, last_step: int | None) -> Steps:
    """Return the range of steps that is asked for."""
    for name, step in (("first_step", first_step), ("last_step", last_step)):
        if step is not None and (isinstance(step, bool) or not hasattr(step, "__index__")):
            raise BadArgument(f"{name}={step!r}: expected a whole number")
    first = EVERY_STEP[0] if first_step is None else max(EVERY_STEP[0], int(first_step))
    last = EVERY_STEP[1] if last_step is None else min(EVERY_STEP[1], int(last_step))
    if first > last:
        raise BadArgument(f"first_step {first} lies behind last_step {last}")
    return first, last


def with_stored(found: Mapping[str, Extreme], summary: Mapping[str, Any]) -> dict[str, Extreme]:
    """Put what the program has stored itself in its summary in the place of what was found."""
    made = {}
    for key, extreme in found.items():
        own = {what: of_summary(summary, key, what) for what in Extreme._fields}
        made[key] = extreme._replace(**{what: value for what, value in own.items() if value is not None})
    return made

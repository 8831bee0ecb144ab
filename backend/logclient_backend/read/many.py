"""Questions about many runs at once: to a folder run by run, to a collector in few requests.

A collector that is older is asked run by run as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ..remote.access import NoPath
from ..remote.many_runs import ManyRuns
from ..runs.extremes import Extreme
from .gather import EVERY_STEP, Steps
from .pages import of_pages
from .run import Run, Settings, with_stored
from .series import Series

_MOST = 500  # runs whose config is asked for at once because that of one of them was needed


class Many(Protocol):
    """Bulk questions to the source of one list of runs."""

    def settings(self, id: str) -> Settings | None:
        """Config and summary of a run; None: its documents have them."""

    def load(self, ids: Sequence[str]) -> None:
        """Get config and summary of these runs, which are all needed."""

    def extremes(self, runs: Sequence[Run], keys: Sequence[str]) -> dict[str, dict[str, Extreme]]:
        """Newest, lowest and highest value of these keys, by run."""

    def series(
        self, runs: Sequence[Run], key: str, steps: Steps, *, every: bool
    ) -> Iterator[tuple[Run, Series]]:
        """Yield the points of a key of each run that has it."""


class FolderMany:
    """Runs of a folder: each is read by itself."""

    def settings(self, id: str) -> None:
        return None

    def load(self, ids: Sequence[str]) -> None:
        return None

    def extremes(self, runs: Sequence[Run], keys: Sequence[str]) -> dict[str, dict[str, Extreme]]:
        if not keys:
            return {}
        return {
            run.id: {key: extreme for key, extreme in run.extremes.items() if key in keys} for run in runs
        }

    def series(
        self, runs: Sequence[Run], key: str, steps: Steps, *, every: bool
    ) -> Iterator[tuple[Run, Series]]:
        for run in runs:
            series = run.find(key, every=every, steps=steps)
            if series is not None:
                yield run, series


class ServerMany:
    """Runs of a collector. Config and summary are asked for once and kept: with those of one run, those of the next."""

    def __init__(self, asked: ManyRuns, ids: Sequence[str]) -> None:
        self._asked = asked
        self._ids = ids
        self._place = {id: place for place, id in enumerate(ids)}
        self._kept: dict[str, Settings] = {}
        self._is_old = False  # the collector has no such questions

    def settings(self, id: str) -> Settings | None:
        if id not in self._kept and not self._is_old:
            # the more were needed one by one, the more will be
            size = min(_MOST, 2 * len(self._kept) + 1)
            place = self._place[id]
            self.load([each for each in self._ids[place : place + size] if each not in self._kept])
        return self._kept.get(id)

    def load(self, ids: Sequence[str]) -> None:
        missing = [id for id in ids if id not in self._kept]
        if missing and not self._is_old:
            try:
                self._kept |= self._asked.settings(missing)
            except NoPath:
                self._is_old = True

    def extremes(self, runs: Sequence[Run], keys: Sequence[str]) -> dict[str, dict[str, Extreme]]:
        if not keys:
            return {}
        try:
            found = self._asked.extremes([run.id for run in runs], keys)
        except NoPath:
            return FolderMany().extremes(runs, keys)
        return {run.id: with_stored(found[run.id], run.summary) for run in runs if run.id in found}

    def series(
        self, runs: Sequence[Run], key: str, steps: Steps, *, every: bool
    ) -> Iterator[tuple[Run, Series]]:
        by_id = {run.id: run for run in runs}
        first, last = (None if step in EVERY_STEP else step for step in steps)
        try:
            for id, pages in self._asked.series(list(by_id), key, first, last):
                series = of_pages(key, pages, every=every, steps=steps)
                if series is not None:
                    yield by_id.pop(id), series
        except NoPath:
            yield from FolderMany().series(list(by_id.values()), key, steps, every=every)

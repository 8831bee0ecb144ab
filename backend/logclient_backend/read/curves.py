"""One key of many runs: `Curves`, all points run by run, and `Band`, mean, range and quantiles over the runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..combine.band import band
from ..combine.part import Part
from . import table
from .gather import Steps
from .reduce import reals
from .series import Series, Table

if TYPE_CHECKING:
    from pandas import DataFrame

    from .run import Run


class Curves(Mapping[str, Series]):
    """The points of one key by run id, of those runs that have it, in their order: ``curves["id"].value``."""

    def __init__(self, key: str, found: Iterable[tuple[Run, Series]], runs: Sequence[Run]) -> None:
        """`runs`: all that were asked, in order."""
        series = {run.id: each for run, each in found}
        self.key = key
        self.runs = [run for run in runs if run.id in series]
        self.without = [run for run in runs if run.id not in series]
        self._series = {run.id: series[run.id] for run in self.runs}

    def __getitem__(self, id: str) -> Series:
        return self._series[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._series)

    def __len__(self) -> int:
        return len(self._series)

    def __repr__(self) -> str:
        points = sum(map(len, self._series.values()))
        return f"<Curves {self.key!r}: {points:,} points of {len(self):,} runs>"

    def to_pandas(self, *, wide: bool = False) -> DataFrame:
        """A DataFrame with a row per point: run, step, value, time, rank, attempt.

        `wide`: a column per run instead, over the union of their steps; a step that came twice shows its newest value.
        """
        if wide:
            return Table(self._series).to_pandas()
        module = table.pandas()
        sizes = [len(each) for each in self._series.values()]
        parts = list(self._series.values())
        run = module.Categorical.from_codes(np.repeat(np.arange(len(sizes)), sizes), list(self._series))
        columns = {
            name: _joined([getattr(each, name) for each in parts])
            for name in ("step", "value", "rank", "attempt")
        }
        time = _joined([each.time for each in parts]) if parts else np.empty(0, "datetime64[ns]")
        made: DataFrame = module.DataFrame(
            {
                "run": run,
                "step": columns["step"],
                "value": columns["value"],
                "time": module.to_datetime(time, utc=True),
                "rank": columns["rank"],
                "attempt": columns["attempt"],
            }
        )
        return made


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """One array that holds all of them as they are: of several types, objects."""
    if not parts:
        return np.empty(0)
    if len({part.dtype for part in parts}) == 1:
        return np.concatenate(parts)
    return np.concatenate([part.astype(object) for part in parts])


@dataclass(frozen=True, slots=True)
class Band:
    """A key over several runs, step by step: arrays of one length.

    A run counts at a step if it has a point there, or points before and after: between its own points its last value is
    carried forward, never behind its last one. NaN and infinities are in no mean, quantile or range.
    """

    key: str
    step: npt.NDArray[np.int64]  # each at which any run has a point
    runs: npt.NDArray[np.int64]  # that count there
    finite: npt.NDArray[np.int64]  # of them with a finite value
    mean: npt.NDArray[np.float64]  # over the runs; NaN where no value is finite
    min: npt.NDArray[np.float64]  # of all points of the step, and of values carried forward
    max: npt.NDArray[np.float64]
    quantiles: Mapping[float, npt.NDArray[np.float64]] = field(default_factory=dict)
    members: tuple[str, ...] = ()  # ids of the runs that have the key

    def __len__(self) -> int:
        return len(self.step)

    def __repr__(self) -> str:
        return f"<Band {self.key!r}: {len(self.members):,} runs, {len(self):,} steps>"

    def to_pandas(self) -> DataFrame:
        """A DataFrame with a row per step, which is its index; quantiles are the columns q0.25 and so on."""
        module = table.pandas()
        names = ("runs", "finite", "mean", "min", "max")
        columns = {name: getattr(self, name) for name in names}
        columns |= {f"q{at:g}": values for at, values in self.quantiles.items()}
        made: DataFrame = module.DataFrame(columns, index=module.Index(self.step, name="step"))
        return made


def band_of(curves: Curves, quantiles: Iterable[float], steps: Steps) -> Band:
    """Combine all runs by the rule of `combine/band.py`: exactly, from all points. `steps`: of the answer."""
    made = band([_part(each) for each in curves.values()], quantiles)
    first, last = steps
    inside = (first <= made.start) & (made.start <= last)
    return Band(
        curves.key,
        made.start[inside],
        made.runs[inside],
        made.finite[inside],
        made.mean[inside],
        made.min[inside],
        made.max[inside],
        {at: values[inside] for at, values in made.quantiles.items()},
        tuple(curves),
    )


def _part(series: Series) -> Part:
    """Return the points as buckets of one step; texts are no points."""
    step, value = series.step, series.value
    if value.dtype == object:
        is_number = np.array([not isinstance(each, str) for each in value], bool)
        step, value = step[is_number], value[is_number]
    real = reals(value)
    if not len(step):
        nothing, none = np.empty(0, np.int64), np.empty(0)
        return Part(nothing, nothing, nothing, nothing, nothing, none, none, none)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(step)) + 1))
    ends = np.append(starts[1:], len(step)) - 1
    finite = np.where(np.isfinite(real), real, np.nan)
    nans, infs, neg_infs = (
        np.add.reduceat(odd.astype(np.int64), starts)
        for odd in (np.isnan(real), real == np.inf, real == -np.inf)
    )
    return Part(
        step[starts],
        ends - starts + 1,
        nans,
        infs,
        neg_infs,
        np.fmin.reduceat(finite, starts),
        np.fmax.reduceat(finite, starts),
        real[ends],
    )

"""Results of questions about values: arrays of numpy, all of one length. Nothing here reads anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import table

if TYPE_CHECKING:
    from pandas import DataFrame

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Series:
    """All points of a key, by step; those of one step in the order of their time. None was left out or reduced.

    `value` is an array of float64, int64 or bool where one of them holds all values exactly, else of objects.
    """

    key: str
    step: npt.NDArray[np.int64]
    value: Array
    time: npt.NDArray[np.datetime64]  # UTC, ns
    rank: npt.NDArray[np.int32]  # -1: none
    stream: npt.NDArray[np.int32]  # index into `streams`
    attempt: npt.NDArray[np.int32]  # from 1
    streams: tuple[str, ...] = ()
    is_reduced: bool = field(default=False, init=False)

    def __len__(self) -> int:
        return len(self.step)

    def __repr__(self) -> str:
        steps = f", steps {self.step[0]} to {self.step[-1]}" if len(self) else ""
        return f"<Series {self.key!r}: {len(self):,} points{steps}>"

    def to_pandas(self) -> DataFrame:
        """A DataFrame with a row per point."""
        pandas = table.pandas()
        streams = pandas.Categorical.from_codes(self.stream, list(self.streams))
        made: DataFrame = pandas.DataFrame(
            {
                "step": self.step,
                "value": self.value,
                "time": pandas.to_datetime(self.time, utc=True),
                "rank": self.rank,
                "stream": streams,
                "attempt": self.attempt,
            }
        )
        return made


@dataclass(frozen=True, slots=True)
class Reduced:
    """A key reduced to ranges of steps: the lowest and highest value of each, so that nothing that sticks out is lost.

    A bucket covers the steps from `start` to `start + width - 1`; those that hold nothing are left out.
    """

    key: str
    width: int  # a power of two
    start: npt.NDArray[np.int64]
    min: npt.NDArray[np.float64]  # over what is finite; NaN where there is nothing else
    max: npt.NDArray[np.float64]
    last: npt.NDArray[np.float64]  # value of the highest step
    count: npt.NDArray[np.int64]  # points, NaN and infinities included
    nans: npt.NDArray[np.int64]
    infs: npt.NDArray[np.int64]  # of plus infinity
    neg_infs: npt.NDArray[np.int64]  # of minus infinity
    points: int  # that went in
    leaves_out_texts: bool = False  # the key was logged with texts, too
    method: str = "min_max"
    is_reduced: bool = field(default=True, init=False)

    def __len__(self) -> int:
        return len(self.start)

    def __repr__(self) -> str:
        return (
            f"<Reduced {self.key!r}: {self.points:,} points in {len(self):,} buckets of {self.width:,} steps>"
        )

    def to_pandas(self) -> DataFrame:
        """A DataFrame with a row per bucket."""
        names = ("start", "min", "max", "last", "count", "nans", "infs", "neg_infs")
        made: DataFrame = table.pandas().DataFrame({name: getattr(self, name) for name in names})
        return made


class Table(Mapping[str, Array]):
    """Several keys over the union of their steps: per step the newest value of each, and which steps have one.

    ``table["loss"]`` is an array as long as ``table.step``; where a key has no value it holds NaN (None in an array of
    objects), and ``table.has("loss")`` is False there, which distinguishes it from a NaN that was logged.
    """

    def __init__(self, series: Mapping[str, Series]) -> None:
        steps = [each.step for each in series.values()]
        self.step: npt.NDArray[np.int64] = (
            np.unique(np.concatenate(steps)) if steps else np.empty(0, np.int64)
        )
        self._values: dict[str, Array] = {}
        self._there: dict[str, npt.NDArray[np.bool_]] = {}
        for key, each in series.items():
            # of one step, the last point is the newest
            is_last = np.append(each.step[1:] != each.step[:-1], True) if len(each) else np.empty(0, bool)
            at = np.searchsorted(self.step, each.step[is_last])
            there = np.zeros(len(self.step), bool)
            there[at] = True
            self._there[key] = there
            self._values[key] = _spread(each.value[is_last], at, len(self.step))

    def __getitem__(self, key: str) -> Array:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<Table of {', '.join(map(repr, self))}: {len(self.step):,} steps>"

    def has(self, key: str) -> npt.NDArray[np.bool_]:
        """At which steps the key has a value."""
        return self._there[key]

    def to_pandas(self) -> DataFrame:
        """A DataFrame with a column per key; its index is the step."""
        pandas = table.pandas()
        made: DataFrame = pandas.DataFrame(
            dict(self._values), index=pandas.Index(self.step, name="step"), columns=list(self._values)
        )
        return made


def _spread(values: Array, at: Array, size: int) -> Array:
    """The values at their places; the dtype stays where every place has one, or where it has a NaN."""
    if len(values) == size:
        made: Array = np.empty(size, values.dtype)
    elif values.dtype.kind == "f" or (values.dtype.kind in "iu" and _is_exact(values)):
        made = np.full(size, np.nan)
    else:
        made = np.full(size, None, object)
    made[at] = values
    return made


def _is_exact(values: Array) -> bool:
    """Are these ints floats too?"""
    return not len(values) or bool(values.min() >= -(1 << 53) and values.max() <= 1 << 53)

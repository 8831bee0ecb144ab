"""Lowest and highest value of each key of a run: counted while its records are read, never where they are logged.

Runs in any reader. NaN and infinities are no extremes. Where attempts overlap in steps the newest counts,
as everywhere: the steps that a later attempt logged again are known when all is read, so keys with such steps are read
once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from logclient.shm.columns import read_column
from logclient.shm.record import NUMBERS

from ..wal.encoded import StreamColumns
from ..wal.seal import unseen_part
from ..wal.seqs import SeqSet

Number = int | float


class Extreme(NamedTuple):
    """Newest, lowest and highest value of a key. NaN and infinities are no extremes."""

    last: Any
    min: Any
    max: Any


@dataclass(slots=True)
class Extremes:
    """The lowest and the highest finite value; None while there is none."""

    low: Number | None = None
    high: Number | None = None

    def take(self, values: Sequence[Number]) -> None:
        """Add values; of all kinds of numbers."""
        if not _are_finite(values):
            values = [value for value in values if _are_finite((value,))]
        if values:
            self.add(min(values), max(values))

    def add(self, low: Number | None, high: Number | None) -> None:
        """Add the extremes of other values."""
        if low is not None and (self.low is None or low < self.low):
            self.low = low
        if high is not None and (self.high is None or high > self.high):
            self.high = high


def merged(by_attempt: Iterable[Extremes]) -> Extremes:
    """The extremes of all of them."""
    whole = Extremes()
    for each in by_attempt:
        whole.add(each.low, each.high)
    return whole


def of_newest(
    items: Iterable[StreamColumns],
    attempts: Mapping[str, int],
    hidden: Mapping[str, Callable[[int], Sequence[tuple[int, int]]]],
) -> dict[str, dict[int, Extremes]]:
    """Extremes of some keys by attempt, without the steps that `hidden` gives for a key and an attempt."""
    found: dict[str, dict[int, Extremes]] = {}
    seen: dict[bytes, SeqSet] = {}
    for item in items:
        columns = unseen_part(item.columns, seen.setdefault(item.stream, SeqSet()))
        if columns is None:
            continue
        seen[item.stream].add_seqs(columns.seq)
        attempt = attempts.get(item.process.hex(), 1)
        shape = columns.shape
        for name, code, cells in zip(shape.names, shape.codes, columns.cells, strict=True):
            if name in hidden and code in NUMBERS:
                ranges = hidden[name](attempt)
                values: Any = read_column(code, cells)
                kept = [
                    value
                    for step, value in zip(columns.step, values, strict=True)
                    if not any(first <= step <= last for first, last in ranges)
                ]
                found.setdefault(name, {}).setdefault(attempt, Extremes()).take(kept)
    return found


def of_summary(summary: Mapping[str, Any], key: str, what: str) -> Any:
    """A number or text that a program has stored itself: `summary["loss.min"]`, or `summary["loss"]["min"]`.

    `summary["loss"]` itself is the last one.
    """
    own, entry = summary.get(f"{key}.{what}"), summary.get(key)
    if own is None:
        own = entry.get(what) if isinstance(entry, Mapping) else entry if what == "last" else None
    return own if isinstance(own, (int, float, str)) else None


def _are_finite(values: Sequence[Number]) -> bool:
    try:
        return math.isfinite(sum(values))
    except OverflowError:  # ints beyond what a float holds
        return all(isinstance(value, int) or math.isfinite(value) for value in values)

"""Events of the stream as text/event-stream has them, and the numbers by which they name series. Pure.

The last of the events that one look made has an id: the cursor of all that was seen. A comment carries the newest one
now and then. Points take few bytes: series are numbers, and what was logged together shares steps and times.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from logclient.shm.side_stream import SYSTEM

from ..store.interface import side_id
from ..store.news import NewPoints, News
from .responses import numbers

RETRY_MS = 1_000
MAX_GROUPS = 200  # of one event
MAX_ROWS = 200
Event: TypeAlias = tuple[str, Mapping[str, Any]]  # its name and data
_encoded = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class Series:
    """Series of a stream by number: run by run, of each its keys, then those of host and device metrics."""

    def __init__(self, runs: Sequence[str], keys: Sequence[str], system_keys: Sequence[str] = ()) -> None:
        self.runs = runs
        self.numbers: dict[tuple[str, str], int] = {}  # by (run, key) as the store names them
        self.by_run: dict[str, Sequence[str]] = {}
        self.run_of: dict[
            str, tuple[int, bool]
        ] = {}  # number of the run, and whether these are its host's metrics
        for number, run in enumerate(runs):
            base = number * (len(keys) + len(system_keys))
            self._add(run, keys, base)
            self.run_of[run] = number, False
            self._add(side_id(run, SYSTEM), system_keys, base + len(keys))
            self.run_of[side_id(run, SYSTEM)] = number, True

    def _add(self, id: str, keys: Sequence[str], base: int) -> None:
        self.by_run[id] = keys
        for number, key in enumerate(keys, base):
            self.numbers[id, key] = number

    @property
    def all(self) -> list[int]:
        return sorted(self.numbers.values())

    @property
    def run_numbers(self) -> list[int]:
        return list(range(len(self.runs)))


def joined(several: Sequence[Series]) -> Mapping[str, Sequence[str]]:
    """Return the keys by run of all of them."""
    if len(several) == 1:
        return several[0].by_run
    found: dict[str, dict[str, None]] = {}
    for each in several:
        for run, keys in each.by_run.items():
            found.setdefault(run, {}).update(dict.fromkeys(keys))
    return {run: list(keys) for run, keys in found.items()}


def hello(series: Series, at: int) -> Event:
    """The first event: from here on nothing is missed."""
    return "hello", {"at": at, "series": len(series.numbers), "now_ns": time.time_ns()}


def end(reason: str, message: str) -> bytes:
    """Return the last event."""
    return _text(("end", {"reason": reason, "message": message}), "")


def heartbeat(cursor: str) -> bytes:
    """Return a comment, with the id of all that was sent."""
    return f":\nid: {cursor}\n\n".encode() if cursor else b":\n\n"


def reload(at: int, series: Sequence[int], *, runs: bool = False, keys: Sequence[int] = ()) -> Event:
    """Name what has to be loaded anew: series, the list of runs, the keys of runs."""
    return "reload", {"at": at, "series": series, "runs": runs, "keys": keys}


def of_news(series: Series, news: News) -> list[Event]:
    """Return the events of one look, as far as they concern these series."""
    at = news.position.row
    groups = [group for each in news.points for group in _group(series, each)]
    made = [_points(groups[start : start + MAX_GROUPS], at) for start in range(0, len(groups), MAX_GROUPS)]
    keys = [
        [series.run_of[run][0], key, series.run_of[run][1]] for run, key in news.keys if run in series.run_of
    ]
    if keys:
        made.append(("keys", {"at": at, "keys": keys}))
    missed = sorted(series.numbers[each] for each in news.missed if each in series.numbers)
    if missed or news.misses_keys:
        made.append(reload(at, missed, keys=series.run_numbers if news.misses_keys else []))
    return made


def _group(series: Series, points: NewPoints) -> Iterable[list[Any]]:
    """[at, series, attempt, rank, steps, times, values], where a series is among these."""
    chosen = [
        (series.numbers[points.run, key], values)
        for key, values in zip(points.keys, points.values, strict=True)
        if (points.run, key) in series.numbers
    ]
    if chosen:
        yield [
            points.at,
            [number for number, _ in chosen],
            points.attempt,
            points.rank,
            points.step,
            points.time_ns,
            [numbers(values) for _, values in chosen],
        ]


def _points(groups: Sequence[list[Any]], at: int) -> Event:
    """Give times by how far they lie behind the first: that takes 10 bytes less each."""
    first = groups[0][5][0]
    rows = [[*group[:5], [each - first for each in group[5]], group[6]] for group in groups]
    return "points", {"at": at, "time_ns": first, "groups": rows}


def of_runs(at: int, rows: Sequence[Mapping[str, Any]], gone: Sequence[str]) -> list[Event]:
    """Return events with rows that changed."""
    return [
        (
            "runs",
            {
                "at": at,
                "now_ns": time.time_ns(),
                "rows": rows[start : start + MAX_ROWS],
                "gone": gone if start == 0 else [],
            },
        )
        for start in range(0, max(1, len(rows)), MAX_ROWS)
    ]


def packed(made: Sequence[Event], cursor: str) -> list[bytes]:
    """Return events as bytes. The last has the id: who has but some of them begins before them all."""
    return [_text(each, cursor if each is made[-1] else "") for each in made]


def _text(event: Event, cursor: str) -> bytes:
    name, content = event
    head = f"id: {cursor}\n" if cursor else ""
    if name == "hello":
        head += f"retry: {RETRY_MS}\n"
    return f"event: {name}\n{head}data: {_encoded(content)}\n\n".encode("ascii")

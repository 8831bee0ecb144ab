"""The points of some keys out of records, each once, in one order that depends on nothing but what is stored.

The order: by step; points of one step by attempt, within it process by process, in the order of the time at which each
logged its last one; those of one process by their number in it: a clock that was set turns nothing round. Of attempts
that overlap the newest counts, by the rule of `runs.contents`: of an older attempt's points of a key, those are left
out that lie between the lowest and the highest step that a later attempt logged of that key.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from logclient.shm.columns import read_column
from logclient.shm.record import FLOATS

from ..wal.encoded import StreamColumns
from ..wal.seal import unseen_part
from ..wal.seqs import SeqSet
from .series import Series

Array = npt.NDArray[Any]
Steps = tuple[int, int]  # the first and the last
EVERY_STEP: Steps = (-(1 << 63), (1 << 63) - 1)
EXACT = 1 << 53


@dataclass(slots=True)
class _Chunk:
    """Points of one key in some columns; keeps nothing of the other keys."""

    step: array[int]
    time: array[int]
    order: array[int]
    seq: array[int]
    rank: int
    code: str
    cells: Any
    stream: int

    def values(self) -> Array:
        if self.code in FLOATS:
            return np.frombuffer(self.cells, np.float64)
        if self.code == "q":
            return np.frombuffer(self.cells, np.int64)
        if self.code == "b":
            return np.frombuffer(self.cells, np.int64).astype(bool)
        return objects_of(read_column(self.code, self.cells))


@dataclass(slots=True)
class Gathered:
    """Chunks by key, and the streams they come from."""

    chunks: dict[str, list[_Chunk]] = field(default_factory=dict)
    streams: dict[bytes, int] = field(default_factory=dict)
    processes: list[bytes] = field(default_factory=list)  # by stream

    def series(
        self, key: str, attempts: Mapping[str, int], *, every: bool, steps: Steps = EVERY_STEP
    ) -> Series | None:
        """The points of a key; None where there are none. `every`: of all attempts. `steps`: first and last."""
        chunks = self.chunks.get(key)
        if not chunks:
            return None
        counts = [len(chunk.step) for chunk in chunks]
        points = Points(
            _joined([chunk.step for chunk in chunks], np.int64),
            _values([chunk.values() for chunk in chunks]),
            _joined([chunk.time for chunk in chunks], np.int64),
            np.repeat(np.array([chunk.rank for chunk in chunks], np.int32), counts),
            np.repeat(np.array([chunk.stream for chunk in chunks], np.int32), counts),
            _joined([chunk.seq for chunk in chunks], np.uint64),
            _joined([chunk.order for chunk in chunks], np.uint64),
        )
        return ordered(key, points, Streams(self.streams, self.processes, attempts), every=every, steps=steps)


@dataclass(frozen=True, slots=True)
class Points:
    """Points of one key in any order: arrays of one length."""

    step: Array
    value: Array
    time: Array
    rank: Array  # -1: none
    stream: Array  # index
    seq: Array
    order: Array


class Streams:
    """The streams of a run: id, process and attempt of each, by index."""

    def __init__(self, ids: Iterable[bytes], processes: Sequence[bytes], attempts: Mapping[str, int]) -> None:
        self.ids = tuple(id.hex() for id in ids)
        self.attempt = np.array([attempts.get(process.hex(), 1) for process in processes], np.int32)
        index_of = {process: at for at, process in enumerate(sorted(set(processes)))}
        self.process = np.array([index_of[process] for process in processes], np.int32)
        self.has_several = len(index_of) > 1  # processes


def ordered(
    key: str,
    points: Points,
    streams: Streams,
    *,
    every: bool,
    steps: Steps = EVERY_STEP,
    spans: Mapping[int, Steps] | None = None,
) -> Series:
    """Put points into the order of this module; without `every`, leave out those that a later attempt logged again.

    `spans`: the steps of each attempt, where points of a range of steps alone are given; else they follow from these.
    """
    step, time = points.step, points.time
    attempt, process = streams.attempt[points.stream], streams.process[points.stream]
    chosen = np.lexsort((points.seq, points.stream, points.order, process, attempt, step))
    if streams.has_several:
        chosen = _by_time(chosen, step, attempt, process, time)
    if not every:
        chosen = chosen[_is_newest(step, attempt, _spans(step, attempt) if spans is None else spans)[chosen]]
    first, last = steps
    if steps != EVERY_STEP:
        inside = step[chosen]
        chosen = chosen[(first <= inside) & (inside <= last)]
    return Series(
        key,
        step[chosen],
        points.value[chosen],
        time[chosen].view("datetime64[ns]"),
        points.rank[chosen],
        points.stream[chosen],
        attempt[chosen],
        streams.ids,
    )


def gather(items: Iterable[StreamColumns], keys: Iterable[str]) -> Gathered:
    """One pass; records that come again are counted once."""
    wanted = frozenset(keys)
    found = Gathered()
    seen: dict[bytes, SeqSet] = {}
    for item in items:
        if wanted.isdisjoint(item.columns.shape.names):
            continue
        known = seen.setdefault(item.stream, SeqSet())
        columns = unseen_part(item.columns, known)
        if columns is None:
            continue
        known.add_seqs(columns.seq)
        stream = found.streams.get(item.stream)
        if stream is None:
            stream = found.streams[item.stream] = len(found.streams)
            found.processes.append(item.process)
        shape, rank = columns.shape, -1 if columns.rank is None else columns.rank
        heads = columns.step, columns.time, columns.order, columns.seq, rank
        for name, code, cells in zip(shape.names, shape.codes, columns.cells, strict=True):
            if name in wanted:
                found.chunks.setdefault(name, []).append(_Chunk(*heads, code, cells, stream))
    return found


def _joined(parts: list[array[int]], dtype: type) -> Array:
    return np.concatenate([np.frombuffer(part, dtype) for part in parts])


def _values(parts: Sequence[Array]) -> Array:
    """One array that holds all of them as they are."""
    kinds = {part.dtype.kind for part in parts}
    if len(kinds) == 1:
        return np.concatenate(parts)
    if kinds == {"f", "i"} and all(
        part.min(initial=0) >= -EXACT and part.max(initial=0) <= EXACT
        for part in parts
        if part.dtype.kind == "i"
    ):
        return np.concatenate([part.astype(np.float64) for part in parts])
    return np.concatenate([objects_of(part.tolist()) for part in parts])


def objects_of(values: Any) -> Array:
    made = np.empty(len(values), object)
    made[:] = values
    return made


def _by_time(chosen: Array, step: Array, attempt: Array, process: Array, time: Array) -> Array:
    """`chosen` orders by step, attempt and process: of one step and attempt, put the processes in order of time."""
    step, attempt, process, time = (column[chosen] for column in (step, attempt, process, time))
    is_other = (np.diff(step) != 0) | (np.diff(attempt) != 0) | (np.diff(process) != 0)
    starts = np.concatenate(([0], np.flatnonzero(is_other) + 1))
    sizes = np.diff(starts, append=len(chosen))
    latest = time[starts + sizes - 1]
    groups = np.lexsort((process[starts], latest, attempt[starts], step[starts]))
    before = np.concatenate(([0], np.cumsum(sizes[groups])[:-1]))
    at = np.repeat(starts[groups] - before, sizes[groups]) + np.arange(len(chosen))
    return chosen[at]


def _spans(step: Array, attempt: Array) -> dict[int, Steps]:
    """Return the lowest and the highest step of each attempt."""
    found = {}
    for number in np.unique(attempt).tolist():
        theirs = step[attempt == number]
        found[number] = int(theirs.min()), int(theirs.max())
    return found


def _is_newest(step: Array, attempt: Array, spans: Mapping[int, Steps]) -> npt.NDArray[np.bool_]:
    kept = np.ones(len(step), bool)
    for number, (low, high) in spans.items():
        kept &= ~((attempt < number) & (low <= step) & (step <= high))
    return kept

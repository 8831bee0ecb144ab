"""A series out of pages of `/run/series` of a collector's HTTP API, in the order of `gather.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..runs.strict import ODD_FLOATS
from .gather import EXACT, Points, Steps, Streams, objects_of, ordered
from .series import Series

Array = npt.NDArray[Any]
_LETTERS = {"float": "f", "int": "i", "bool": "b", "text": "t"}  # of the API's types


def of_pages(key: str, pages: Iterable[Mapping[str, Any]], *, every: bool, steps: Steps) -> Series | None:
    """Return the points of pages that a collector's HTTP API has answered with; None where it has no such key."""
    parts: list[tuple[Array, ...]] = []
    values: list[Any] = []
    kinds: list[str] = []
    streams: dict[str, int] = {}
    processes: list[bytes] = []
    attempts: dict[str, int] = {}
    spans: dict[int, Steps] = {}
    for page in pages:
        for stream in page["streams"]:
            if stream["stream"] not in streams:
                streams[stream["stream"]] = len(streams)
                processes.append(bytes.fromhex(stream["process"]))
            attempts[stream["process"]] = stream["attempt"]
        spans = {each["attempt"]: (each["first_step"], each["last_step"]) for each in page["spans"]}
        parts.append(_columns(page, streams))
        values += page["value"]
        kinds.append(page["types"] or _LETTERS[page["type"]] * len(page["value"]))
    if not spans:
        return None
    step, time, rank, at, seq, order = (np.concatenate(column) for column in zip(*parts, strict=True))
    points = Points(step, _of_kinds(values, "".join(kinds)), time, rank, at, seq, order)
    known = Streams(map(bytes.fromhex, streams), processes, attempts)
    return ordered(key, points, known, every=every, steps=steps, spans=spans)


def _columns(page: Mapping[str, Any], streams: Mapping[str, int]) -> tuple[Array, ...]:
    """Return step, time, rank, index of the stream, seq and order of the points of a page."""
    names = [each["stream"] for each in page["streams"]]
    return (
        np.array(page["step"], np.int64),
        np.array(page["time_ns"], np.int64),
        np.array([-1 if rank is None else rank for rank in page["rank"]], np.int32),
        np.array([streams[names[at]] for at in page["stream"]], np.int32),
        np.array(page["seq"], np.uint64),
        np.array(page["order"], np.uint64),
    )


def _of_kinds(values: Sequence[Any], kinds: str) -> Array:
    """One array of values as JSON has them, by the letter of each: f float, i int, b bool, t text."""
    letters = set(kinds)
    if letters <= {"f"}:
        return np.array([ODD_FLOATS[each] if isinstance(each, str) else each for each in values], np.float64)
    kept = [
        float(ODD_FLOATS.get(value, value)) if kind == "f" else value
        for value, kind in zip(values, kinds, strict=True)
    ]
    if letters == {"b"}:
        return np.array(kept, bool)
    if letters == {"i"} and all(-(1 << 63) <= value < 1 << 63 for value in kept):
        return np.array(kept, np.int64)
    if letters == {"f", "i"} and all(
        abs(value) <= EXACT for value, kind in zip(kept, kinds, strict=True) if kind == "i"
    ):
        return np.array(kept, np.float64)
    return objects_of(kept)

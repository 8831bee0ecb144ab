"""Keys of a run and their values: raw pages, buckets, the newest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from ..store.interface import Last, Points
from .access import Stands, reader
from .listing import known_run
from .parameters import (
    INT64,
    MAX_BUCKETS,
    MAX_NAMED,
    MAX_POINTS,
    Cursor,
    Key,
    Name,
    RunId,
    Side,
    Step,
    in_store,
)
from .response_models import KeyList, LastList, Reduced, Series
from .responses import Refused, as_json, kinds, number, numbers
from .strict_query import only_known

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])

PAGE_POINTS = 200_000  # of one answer, whatever was asked for: some 15 MB of JSON
MAX_KEYS = 10_000  # of one answer
_TYPES = {"d": "float", "r": "rounded", "q": "int", "i": "int", "b": "bool", "s": "text"}
_TEXT = "s"
_BUCKET_COLUMNS = ("start", "count", "nans", "infs", "neg_infs", "min", "max", "last")
_WORDS = {"f": "float", "i": "int", "b": "bool", "t": "text"}
Field = Literal["step", "value", "time_ns", "rank", "stream", "seq", "order"]
_USUAL: tuple[Field, ...] = ("step", "value", "time_ns", "rank", "stream")


@router.get("/run/keys", response_model=KeyList)
def keys(
    request: Request,
    stands_on: Stands,
    run: RunId,
    side: Side,
    limit: Annotated[int, Query(ge=1, le=MAX_KEYS)] = MAX_KEYS,
    after: Annotated[str, Query(max_length=20, pattern=r"^[0-9]*$")] = "",
) -> Response:
    """The keys of a run in the order in which they came first: types, points, steps, newest value."""
    known_run(stands_on, run)
    start = int(after or 0)
    if start >= INT64:
        raise Refused(400, "bad_request", f"after={after}: no cursor of this question")
    found = stands_on.store.reader.keys(in_store(run, side), start=start, most=limit)
    rows = [
        {
            "key": key.name,
            "types": sorted({_TYPES[code] for code in key.codes}),
            "points": key.points,
            "first_step": key.first_step,
            "last_step": key.last_step,
            "last": last_value(key.last),
        }
        for key in found.keys
    ]
    following = str(start + limit) if start + limit < found.total else ""
    return as_json(request, {"run": run, "keys": rows, "next": following, "total": found.total})


def last_value(last: Last) -> dict[str, Any]:
    """A newest value for JSON."""
    return {
        "value": number(last.value),
        "type": _TYPES[last.code],
        "step": last.step,
        "time_ns": last.time_ns,
        "rank": last.rank,
    }


@router.get("/run/last", response_model=LastList)
def last(
    request: Request,
    stands_on: Stands,
    run: RunId,
    side: Side,
    key: Annotated[list[Name], Query(max_length=MAX_NAMED, description="Which; default: all.")] = [],  # noqa: B006
) -> Response:
    """The newest value of each key of a run: of the record that was logged last."""
    known_run(stands_on, run)
    if not key:
        found = stands_on.store.reader.keys(in_store(run, side), most=MAX_KEYS)
        values = [{"run": run, "key": each.name, "last": last_value(each.last)} for each in found.keys]
        return as_json(request, {"values": values, "unknown_keys": [], "unknown_runs": []})
    return as_json(request, _last_of(stands_on, [run], key, side))


@router.get("/last", response_model=LastList)
def last_of_runs(
    request: Request,
    stands_on: Stands,
    run: Annotated[list[Name], Query(min_length=1, max_length=MAX_NAMED)],
    key: Annotated[list[Name], Query(min_length=1, max_length=100)],
) -> Response:
    """The newest values of some keys of some runs; names the keys that none has, and the runs that are not here."""
    return as_json(request, _last_of(stands_on, run, key))


def _last_of(stands_on: Stands, runs: list[str], keys: list[str], side: str = "") -> dict[str, Any]:
    reader = stands_on.store.reader
    runs, keys = list(dict.fromkeys(runs)), list(dict.fromkeys(keys))
    stored = {in_store(run, side): run for run in runs}
    found = {(stored[id], key): last for (id, key), last in reader.last_values(list(stored), keys).items()}
    values = [
        {"run": run, "key": key, "last": last_value(found[run, key])}
        for run in runs
        for key in keys
        if (run, key) in found
    ]
    have = {run for run, _ in found}, {key for _, key in found}
    return {
        "values": values,
        "unknown_keys": [key for key in keys if key not in have[1]],
        "unknown_runs": [run for run in runs if run not in have[0] and reader.run(run) is None],
    }


@router.get("/run/series", response_model=Series)
def series(
    request: Request,
    stands_on: Stands,
    run: RunId,
    key: Key,
    side: Side,
    after: Cursor = "",
    limit: Annotated[
        int,
        Query(
            ge=1,
            le=MAX_POINTS,
            description=f"At most so many points; an answer holds at most {PAGE_POINTS:,}.",
        ),
    ] = 10_000,
    first_step: Step = None,
    last_step: Step = None,
    field: Annotated[
        list[Field] | None, Query(max_length=7, description="Columns; default all but seq and order.")
    ] = None,
) -> Response:
    """All points of a key, or those in a range of steps, as they were logged, page by page: the same each time.

    They come stream by stream. The last page is there when `is_all`; its `next` gives what came since, for live curves.
    """
    check_steps(first_step, last_step)
    known_run(stands_on, run)
    page = stands_on.store.reader.points(
        in_store(run, side),
        key,
        after=after,
        most=min(limit, PAGE_POINTS),
        first_step=first_step,
        last_step=last_step,
    )
    if not len(page.step) and not after:
        _check_key(stands_on, run, key, side)
    return as_json(request, series_page(run, key, page, field or _USUAL))


def check_steps(first_step: int | None, last_step: int | None) -> None:
    """Refuse a range of steps that ends before it begins."""
    if first_step is not None and last_step is not None and first_step > last_step:
        raise Refused(400, "bad_request", f"first_step {first_step} lies behind last_step {last_step}")


def series_page(run: str, key: str, page: Points, fields: Sequence[Field]) -> dict[str, Any]:
    """Points as `Series` has them."""
    made: dict[str, Any] = {"run": run, "key": key, "is_reduced": False}
    for name in fields:
        made[name] = _column(page, name)
    found = kinds(page.values)
    letters = set(found)
    made["type"] = _WORDS[letters.pop()] if len(letters) == 1 else "mixed" if letters else "float"
    made["types"] = found if made["type"] == "mixed" else ""
    made["streams"] = [
        {
            "stream": each.stream.hex(),
            "process": each.process.hex(),
            "lane": each.lane,
            "attempt": each.attempt,
        }
        for each in page.streams
    ]
    made["spans"] = [
        {"attempt": attempt, "first_step": low, "last_step": high}
        for attempt, (low, high) in sorted(page.spans.items())
    ]
    made["next"], made["is_all"] = page.next, page.is_all
    return made


def _check_key(stands_on: Stands, run: str, key: str, side: str) -> None:
    """Check the key of a series without points: a key that nobody logged is no key."""
    if key not in stands_on.store.reader.key_names(in_store(run, side)):
        raise Refused(404, "no_key", f"run {run[:100]!r} has no key {key[:100]!r}")


def _column(page: Points, name: Field) -> list[Any]:
    if name == "value":
        return numbers(page.values)
    if name == "rank":
        return [rank if rank >= 0 else None for rank in page.rank.tolist()]
    found: list[Any] = getattr(page, name).tolist()
    return found


@router.get("/run/buckets", response_model=Reduced)
def buckets(
    request: Request,
    stands_on: Stands,
    run: RunId,
    key: Key,
    side: Side,
    most: Annotated[int, Query(ge=1, le=MAX_BUCKETS)] = 2000,
    first_step: Step = None,
    last_step: Step = None,
    all_attempts: Annotated[
        bool, Query(description="Also what a later attempt logged again; default: the newest counts.")
    ] = False,
) -> Response:
    """A series reduced to the lowest and highest value of ranges of steps: nothing that sticks out is lost.

    Widths are powers of two and starts are multiples of them: the same data give the same picture. Texts are not in it:
    `leaves_out_texts` means that the key has some, and one that has nothing else is refused (`no_numbers`).
    """
    check_steps(first_step, last_step)
    known_run(stands_on, run)
    found = stands_on.store.reader.buckets(
        in_store(run, side),
        key,
        most=most,
        first_step=first_step,
        last_step=last_step,
        all_attempts=all_attempts,
    )
    if not found.codes:
        _check_key(stands_on, run, key, side)
    if found.codes == _TEXT:
        raise Refused(
            400,
            "no_numbers",
            f"key {key[:100]!r} of run {run[:100]!r} holds texts, which have no buckets: /run/series gives them",
        )
    made = {
        "run": run,
        "key": key,
        "is_reduced": True,
        "method": "min_max",
        "leaves_out_texts": _TEXT in found.codes,
        "points": found.points,
        "width": found.width,
        "first_step": found.first_step,
        "last_step": found.last_step,
        **{name: numbers(getattr(found, name)) for name in _BUCKET_COLUMNS},
    }
    return as_json(request, made)

"""Charts of many series in one answer, and how series are numbered in it and in the stream (`stream.py`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from ..store.interface import Buckets
from .access import Stands, reader
from .chart_models import Curves
from .parameters import Cursor, Name, Side, Step, in_store
from .responses import Refused, as_json, numbers
from .strict_query import only_known

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])

MAX_CHOSEN = 200  # runs, and keys, of one question
MAX_SERIES = 4_000  # of one question
MAX_BUCKETS = 20_000  # of one curve
PAGE_BUCKETS = 200_000  # of one answer, about: some 12 MB of JSON
_TEXT = "s"


def chosen(what: str, names: Sequence[str]) -> Sequence[str]:
    """Check names whose places number series."""
    if len(set(names)) != len(names):
        raise Refused(400, "bad_request", f"{what}: a name comes twice, and its place numbers the series")
    return names


def check_count(series: int) -> None:
    """`Refused` where a question names too many series."""
    if series > MAX_SERIES:
        raise Refused(400, "bad_request", f"{series:,} series, at most {MAX_SERIES:,}: ask several times")


@router.get("/curves", response_model=Curves)
def curves(
    request: Request,
    stands_on: Stands,
    run: Annotated[list[Name], Query(min_length=1, max_length=MAX_CHOSEN)],
    key: Annotated[list[Name], Query(min_length=1, max_length=MAX_CHOSEN)],
    side: Side,
    most: Annotated[int, Query(ge=1, le=MAX_BUCKETS, description="Buckets of a curve.")] = 1000,
    first_step: Step = None,
    last_step: Step = None,
    all_attempts: Annotated[bool, Query(description="Also what a later attempt logged again.")] = False,
    ranks: Annotated[
        Literal["all", "main"],
        Query(description="main: the lowest rank that logged the key, and records without a rank."),
    ] = "all",
    after: Cursor = "",
) -> Response:
    """Each key of each run, reduced to buckets as by `/run/buckets`, all from one state of the store.

    Series are numbered run by run: that of run i and key j, counted from 0 in the order given, is `i * keys + j`. One
    that is not there is left out. An answer ends after some 200,000 buckets; `next` gives the others.

    `cursor` is what has been seen: `/stream` goes on there, and `at` of its updates is higher than `at` here for what
    is not in these curves.
    """
    runs, keys = chosen("run", run), chosen("key", key)
    check_count(len(runs) * len(keys))
    if first_step is not None and last_step is not None and first_step > last_step:
        raise Refused(400, "bad_request", f"first_step {first_step} lies behind last_step {last_step}")
    if not after.isdecimal() and after:
        raise Refused(400, "bad_request", "after: no `next` of this question")
    start = int(after or 0) if len(after) < 9 else MAX_SERIES
    names = [(each, name) for each in runs for name in keys]
    store = stands_on.store
    position, found = store.live.curves(
        [(in_store(each, side), name) for each, name in names[start:]],
        most=most,
        most_buckets=PAGE_BUCKETS,
        first_step=first_step,
        last_step=last_step,
        all_attempts=all_attempts,
        main_rank=ranks == "main",
    )
    rows = [
        {"series": number, "run": names[number][0], "key": names[number][1], **_curve(each)}
        for number, each in enumerate(found, start)
        if each is not None
    ]
    reached = start + len(found)
    there = {row["run"] for row in rows}
    return as_json(
        request,
        {
            "at": position.row,
            "cursor": position.cursor(store.id),
            "next": str(reached) if reached < len(names) else "",
            "now_ns": time.time_ns(),
            "unknown_runs": [each for each in runs if each not in there and store.reader.run(each) is None],
            "curves": rows,
        },
    )


def _curve(found: Buckets) -> dict[str, Any]:
    """Return the columns; those that say nothing are empty."""
    is_single = bool((found.count == 1).all())
    made: dict[str, Any] = {
        "width": found.width,
        "points": found.points,
        "first_step": found.first_step,
        "last_step": found.last_step,
        "rank": found.rank if found.rank >= 0 else None,
        "leaves_out_texts": _TEXT in found.codes,
        "start": found.start.tolist(),
        "count": [] if is_single else found.count.tolist(),
    }
    for name in ("nans", "infs", "neg_infs"):
        column = getattr(found, name)
        made[name] = column.tolist() if column.any() else []
    for name in ("min", "max"):
        made[name] = [] if is_single else numbers(getattr(found, name))
    made["last"] = numbers(found.last)
    made["time_ns"] = found.last_ns.tolist()
    return made

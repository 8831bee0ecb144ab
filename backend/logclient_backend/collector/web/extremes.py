"""Lowest and highest value of a run's keys, out of the summaries that the store keeps for charts."""

from __future__ import annotations

import math
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from ..store.interface import Reader
from .access import Stands, reader
from .listing import known_run
from .parameters import INT64, RunId, Side, in_store
from .response_models import ExtremesList
from .responses import Refused, as_json, number
from .strict_query import only_known
from .values import last_value

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])

MAX_KEYS = 1_000  # of one answer; each asks the store for a chart of one bucket
_TEXT = "s"


@router.get("/run/extremes", response_model=ExtremesList)
def extremes(
    request: Request,
    stands_on: Stands,
    run: RunId,
    side: Side,
    limit: Annotated[int, Query(ge=1, le=MAX_KEYS)] = 200,
    after: Annotated[str, Query(max_length=20, pattern=r"^[0-9]*$")] = "",
) -> Response:
    """Newest, lowest and highest value of each key of a run, in the order in which the keys came first.

    NaN and infinities are no extremes, and texts have none (null). Where attempts overlap the newest counts.
    """
    known_run(stands_on, run)
    start = int(after or 0)
    if start >= INT64:
        raise Refused(400, "bad_request", f"after={after}: no cursor of this question")
    found = stands_on.store.reader.keys(in_store(run, side), start=start, most=limit)
    rows: list[dict[str, Any]] = []
    for key in found.keys:
        low = high = None
        if key.codes != _TEXT:
            low, high = lowest_and_highest(stands_on.store.reader, in_store(run, side), key.name)
        rows.append({"key": key.name, "last": last_value(key.last), "min": number(low), "max": number(high)})
    following = str(start + limit) if start + limit < found.total else ""
    return as_json(request, {"run": run, "keys": rows, "next": following, "total": found.total})


def lowest_and_highest(asked: Reader, run: str, key: str) -> tuple[float | None, float | None]:
    """Return the extremes of the finite values of a key; None where there are none."""
    whole = asked.buckets(run, key, most=1)
    return _finite(whole.min.tolist(), min), _finite(whole.max.tolist(), max)


def _finite(values: list[float], of: Any) -> float | None:
    kept = [value for value in values if math.isfinite(value)]
    return of(kept) if kept else None

"""Questions about many runs in one request: config and summary, newest, lowest and highest values, raw series.

Runs are named by their ids. An answer that would get too large or take too long stops before a run, and `left` has the
ids that were not answered: whoever asks goes on with these.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from ...runs import strict
from .access import Stands, reader
from .extremes import lowest_and_highest
from .parameters import MAX_NAMED, Key, Name, Step
from .response_models import RunsExtremes, SeriesList, SettingsList
from .responses import as_json, number, packed
from .strict_query import only_known
from .values import PAGE_POINTS, Field, check_steps, last_value, series_page

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])

MAX_BYTES = 8 << 20  # of config and summary in one answer, about
MAX_PAIRS = (
    2_000  # of run and key whose extremes are looked up for one answer; each takes a millisecond or less
)
_KEYS = 100
_EXACT: tuple[Field, ...] = ("step", "value", "time_ns", "rank", "stream", "seq", "order")
_encoded = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode

Ids = Annotated[list[Name], Query(min_length=1, max_length=MAX_NAMED)]


@router.get("/configs", response_model=SettingsList)
def configs(request: Request, stands_on: Stands, run: Ids) -> Response:
    """Config and summary of several runs, nested as they were given; NaN is {"$float": "nan"} here."""
    rows: list[str] = []
    unknown: list[str] = []
    left = list(dict.fromkeys(run))
    size = 0
    while left and size < MAX_BYTES:
        id = left.pop(0)
        found = stands_on.store.reader.run(id)
        if found is None:
            unknown.append(id)
            continue
        described = found.description
        row = {"config": dict(described.config), "summary": dict(described.summary)}
        rows.append(_encoded({"run": id, **{name: strict.wrap(values) for name, values in row.items()}}))
        size += len(rows[-1])
    rest = _encoded({"unknown_runs": unknown, "left": left})
    return packed(request, f'{{"runs":[{",".join(rows)}],{rest[1:]}'.encode("ascii"), "application/json")


@router.get("/extremes", response_model=RunsExtremes)
def extremes_of_runs(
    request: Request,
    stands_on: Stands,
    run: Ids,
    key: Annotated[list[Name], Query(min_length=1, max_length=_KEYS)],
) -> Response:
    """Newest, lowest and highest value of some keys of several runs, where they have them."""
    asked = stands_on.store.reader
    keys = list(dict.fromkeys(key))
    ids = list(dict.fromkeys(run))
    count = max(1, MAX_PAIRS // len(keys))
    ids, left = ids[:count], ids[count:]
    lasts = asked.last_values(ids, keys)
    values: list[dict[str, Any]] = []
    for id, name in ((id, name) for id in ids for name in keys if (id, name) in lasts):
        low, high = lowest_and_highest(asked, id, name)
        values.append(
            {
                "run": id,
                "key": name,
                "last": last_value(lasts[id, name]),
                "min": number(low),
                "max": number(high),
            }
        )
    have = {id for id, _ in lasts}
    unknown = [id for id in ids if id not in have and asked.run(id) is None]
    return as_json(request, {"values": values, "unknown_runs": unknown, "left": left})


@router.get("/series", response_model=SeriesList)
def series_of_runs(
    request: Request,
    stands_on: Stands,
    run: Ids,
    key: Key,
    first_step: Step = None,
    last_step: Step = None,
) -> Response:
    """All points of one key of several runs, or those in a range of steps, with all columns of `/run/series`."""
    check_steps(first_step, last_step)
    asked = stands_on.store.reader
    found: list[dict[str, Any]] = []
    without: list[str] = []
    unknown: list[str] = []
    left = list(dict.fromkeys(run))
    room = PAGE_POINTS
    while left and room > 0:
        id = left.pop(0)
        page = asked.points(id, key, most=room, first_step=first_step, last_step=last_step)
        if page.spans:
            found.append(series_page(id, key, page, _EXACT))
            room -= max(1, len(page.step))
        elif asked.run(id) is None:
            unknown.append(id)
        else:
            without.append(id)
    rest = {"without_key": without, "unknown_runs": unknown, "left": left}
    return as_json(request, {"key": key, "series": found, **rest})

"""One key of several runs as a band: mean, range and quantiles over the runs. The rule is in `combine/band.py`.

Each run is reduced by the store, from its summaries; then all are brought to one width of buckets. So an answer takes
the time of as many charts as there are runs, and the memory of runs times buckets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from ...combine.band import Band, band, same_width
from ...combine.part import Part
from ..store.interface import Buckets, Filter, Reader, RunQuery
from .access import Stands, reader
from .chart_models import RunsBand
from .parameters import Key, Name, Side, Step, in_store
from .responses import Refused, as_json, numbers
from .run_filters import Filters
from .strict_query import only_known
from .values import check_steps

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])

MAX_RUNS = 500  # of one band
MAX_BUCKETS = 4_000
MAX_QUANTILES = 16
_TEXT = "s"
_USUAL = (0.25, 0.5, 0.75)
_WHOLE = ("start", "runs", "finite", "nans", "infs", "neg_infs")
_REAL = ("mean", "min", "max")


@router.get("/band", response_model=RunsBand)
def runs_band(
    request: Request,
    stands_on: Stands,
    key: Key,
    chosen: Filters,
    side: Side,
    run: Annotated[
        list[Name],
        Query(
            max_length=MAX_RUNS,
            description=f"Ids; without any, the filters choose, the newest {MAX_RUNS} runs at most.",
        ),
    ] = [],  # noqa: B006  # fastapi copies it
    most: Annotated[int, Query(ge=2, le=MAX_BUCKETS)] = 1000,
    first_step: Step = None,
    last_step: Step = None,
    quantile: Annotated[
        list[float],
        Query(max_length=MAX_QUANTILES, description="From 0 to 1; default 0.25, 0.5 and 0.75."),
    ] = [],  # noqa: B006
) -> Response:
    """One key of several runs as mean, range and quantiles over the runs.

    In a bucket a run counts where it has a point, or points before and after: between its own points its last value is
    carried forward, never past its last step. `runs` says how many count. `mean` and `quantiles` are over each run's
    last known value at the end of the bucket; `min` and `max` are those of all points in it, so no spike is hidden.
    NaN and infinities are in none of them, and counted.
    """
    check_steps(first_step, last_step)
    for at in quantile:
        if not 0 <= at <= 1:
            raise Refused(400, "bad_request", f"quantile={at}: expected a number from 0 to 1")
    found, unknown, left_out = _members(stands_on.store.reader, run, chosen)
    asked = _Asked(stands_on.store.reader, key, most, first_step, last_step, side)
    parts: list[tuple[Part, int]] = []
    members: list[dict[str, Any]] = []
    without: list[str] = []
    for row in found:
        reduced = asked.of_run(row["run"])
        if reduced is None:
            without.append(row["run"])
            continue
        parts.append(reduced)
        members.append({**row, **asked.edges})
    if not members:
        raise _nothing(key, asked.codes)
    same, width = same_width(parts, most)
    made = band(same, quantile or _USUAL)
    return as_json(
        request,
        {
            "key": key,
            "is_reduced": True,
            "method": "band",
            "width": width,
            "first_step": min((row["first_step"] for row in members if row["points"]), default=0),
            "last_step": max((row["last_step"] for row in members if row["points"]), default=0),
            **_columns(made),
            "points": sum(row["points"] for row in members),
            "leaves_out_texts": _TEXT in asked.codes,
            "members": members,
            "without_key": without,
            "unknown_runs": unknown,
            "left_out_runs": left_out,
        },
    )


def _columns(made: Band) -> dict[str, Any]:
    return {
        **{name: getattr(made, name).tolist() for name in _WHOLE},
        **{name: numbers(getattr(made, name)) for name in _REAL},
        "quantiles": [{"quantile": at, "value": numbers(column)} for at, column in made.quantiles.items()],
    }


def _nothing(key: str, codes: set[str]) -> Refused:
    if codes == {_TEXT}:
        text = f"key {key[:100]!r} holds texts in these runs, which have no bands"
        return Refused(400, "no_numbers", text)
    return Refused(404, "no_key", f"none of these runs has the key {key[:100]!r}")


def _members(
    asked: Reader, ids: Sequence[str], chosen: Sequence[Filter]
) -> tuple[list[dict[str, Any]], list[str], int]:
    """Runs that are meant, ids that are not here, and how many runs are beyond the limit."""
    if not ids:
        page = asked.runs(RunQuery(chosen, limit=MAX_RUNS))
        rows = []
        for each in page.runs:
            brief = json.loads(each.brief)
            rows.append({"run": each.id, "name": brief["name"], "state": brief["state"]})
        return rows, [], page.total - len(rows)
    if chosen:
        raise Refused(400, "bad_request", "give ids (`run`) or filters, not both")
    rows, unknown = [], []
    for id in dict.fromkeys(ids):
        found = asked.run(id)
        if found is None:
            unknown.append(id)
        else:
            rows.append({"run": id, "name": found.description.name, "state": found.description.state})
    return rows, unknown, 0


class _Asked:
    """A question that is put to one run after the other."""

    def __init__(
        self, asked: Reader, key: str, most: int, first_step: int | None, last_step: int | None, side: str
    ) -> None:
        self.codes: set[str] = set()  # types under this key, of all runs so far
        self.edges: dict[str, int] = {}  # of the run that was asked for last
        self._reader = asked
        self._key = key
        self._most = most
        self._first = first_step
        self._last = last_step
        self._side = side

    def of_run(self, run: str) -> tuple[Part, int] | None:
        """Its series and the width of the buckets; None where it has no number under this key."""
        found = self._buckets(run, self._most, self._first, self._last)
        self.codes.update(found.codes)
        if not found.codes.replace(_TEXT, ""):
            return None
        self.edges = {"points": found.points, "first_step": found.first_step, "last_step": found.last_step}
        before = None
        if self._first is not None:
            earlier = self._buckets(run, 1, None, self._first - 1)
            before = float(earlier.last[-1]) if earlier.points else None
        goes_on = self._last is not None and self._buckets(run, 1, self._last + 1, None).points > 0
        counts = found.count, found.nans, found.infs, found.neg_infs
        part = Part(found.start, *counts, found.min, found.max, found.last, before, goes_on)
        return part, found.width

    def _buckets(self, run: str, most: int, first_step: int | None, last_step: int | None) -> Buckets:
        return self._reader.buckets(
            in_store(run, self._side), self._key, most=most, first_step=first_step, last_step=last_step
        )

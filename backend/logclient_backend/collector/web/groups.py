"""Runs by a value (their group, a setting): how many, in which states, and columns as mean and range over the runs."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from ...runs.flatten import SEPARATOR
from ..store.interface import Listed, Reader, RunQuery
from .access import Stands, reader
from .context import Backing
from .listing import column_path, state_of_listed
from .parameters import INT64, MAX_COLUMNS, MAX_RUNS, Name
from .response_models import GroupList
from .responses import Refused, as_json, number
from .run_filters import Filters
from .strict_query import only_known

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])

MAX_GROUPS = 1_000  # of one answer
MAX_LOOKED_AT = 50_000  # runs, for one answer
_SIMPLE = ("group", "project", "name", "state")
_BY = rf"^({'|'.join(_SIMPLE)}|(config|summary)::[^\x00]+)$"

Columns = Sequence[tuple[str, str]]


@router.get("/groups", response_model=GroupList)
def groups(
    request: Request,
    stands_on: Stands,
    chosen: Filters,
    by: Annotated[
        str,
        Query(
            max_length=600,
            pattern=_BY,
            description="group, project, name, state, config::KEY or summary::KEY.",
        ),
    ] = "group",
    column: Annotated[
        list[Name],
        Query(
            max_length=MAX_COLUMNS,
            description="config::KEY, summary::KEY, last::KEY: mean, min and max of each.",
        ),
    ] = [],  # noqa: B006  # fastapi copies it
    limit: Annotated[int, Query(ge=1, le=MAX_GROUPS)] = MAX_GROUPS,
    after: Annotated[str, Query(max_length=20, pattern=r"^[0-9]*$")] = "",
) -> Response:
    """Runs by group, or by another value: how many, their states, mean, lowest and highest value of columns.

    Numbers alone are in columns, and NaN and infinities are not. Runs that have no such value come last, under null.
    """
    start = int(after or 0)
    if start >= INT64:
        raise Refused(400, "bad_request", f"after={after}: no cursor of this question")
    columns = [column_path(each) for each in dict.fromkeys(column)]
    found = _Groups(stands_on, by, columns)
    left_out = found.take(stands_on.store.reader, RunQuery(chosen, limit=MAX_RUNS, columns=found.needed))
    made = found.in_order()
    following = str(start + limit) if start + limit < len(made) else ""
    return as_json(
        request,
        {
            "by": by,
            "groups": [group.row(columns) for group in made[start : start + limit]],
            "next": following,
            "total": len(made),
            "runs": sum(group.runs for group in made),
            "left_out_runs": left_out,
        },
    )


@dataclass(slots=True)
class _Group:
    """The runs of one value, summed up."""

    value: Any
    runs: int = 0
    states: Counter[str] = field(default_factory=Counter)
    created_ns: int = 0
    last_seen_ns: int = 0
    numbers: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def row(self, columns: Columns) -> dict[str, Any]:
        return {
            "value": number(self.value),
            "runs": self.runs,
            "states": dict(self.states),
            "created_ns": self.created_ns,
            "last_seen_ns": self.last_seen_ns,
            "columns": {SEPARATOR.join(path): _spread(self.numbers.get(path, [])) for path in columns},
        }


def _spread(values: list[float]) -> dict[str, Any]:
    if not values:
        return {"runs": 0, "mean": None, "min": None, "max": None}
    mean = math.fsum(value / len(values) for value in values)  # no sum that is more than a float holds
    return {"runs": len(values), "mean": number(mean), "min": min(values), "max": max(values)}


class _Groups:
    """Groups as they are found."""

    def __init__(self, stands_on: Backing, by: str, columns: Columns) -> None:
        kind, mark, key = by.partition(SEPARATOR)
        self._stands_on = stands_on
        self._by = (kind, key) if mark else None
        self._field = "" if mark else by
        self._columns = columns
        self._now_ns = time.time_ns()
        self._found: dict[tuple[str, Any], _Group] = {}
        self.needed = [path for path in columns if path[0] != "last"]  # of the runs' descriptions
        if self._by is not None and self._by not in self.needed:
            self.needed.append(self._by)

    def take(self, asked: Reader, query: RunQuery) -> int:
        """Add all runs, page by page; return how many there are beyond the limit."""
        keys = [key for kind, key in self._columns if kind == "last"]
        seen = 0
        while True:
            page = asked.runs(query)
            lasts = asked.last_values([run.id for run in page.runs], keys) if keys else {}
            for run in page.runs:
                self._add(run, {key: lasts[run.id, key].value for key in keys if (run.id, key) in lasts})
            seen += len(page.runs)
            if not page.next:
                return 0
            if seen >= MAX_LOOKED_AT:
                return max(0, page.total - seen)
            query = RunQuery(
                query.filters, query.sort, query.descending, query.limit, page.next, columns=query.columns
            )

    def _add(self, run: Listed, lasts: Mapping[str, Any]) -> None:
        described = json.loads(run.brief)
        state = described["state"]
        if run.state == "running":
            state = state_of_listed(self._stands_on, run, described, self._now_ns)["state"]
        if self._by is not None:
            value = run.columns.get(self._by)
        else:
            value = (state if self._field == "state" else described[self._field]) or None
        if isinstance(value, (list, dict)):
            value = json.dumps(value)
        group = self._found.setdefault((type(value).__name__, repr(value)), _Group(value))
        group.runs += 1
        group.states[state] += 1
        created = described["created_ns"]
        if created and (not group.created_ns or created < group.created_ns):
            group.created_ns = created
        group.last_seen_ns = max(group.last_seen_ns, run.last_seen_ns)
        for path in self._columns:
            number = lasts.get(path[1]) if path[0] == "last" else run.columns.get(path)
            if isinstance(number, (int, float)) and not isinstance(number, bool) and _is_finite(number):
                group.numbers.setdefault(path, []).append(number)

    def in_order(self) -> list[_Group]:
        """Return the groups as their newest runs come in a list; that without a value last."""
        return sorted(self._found.values(), key=lambda group: group.value is None)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an int beyond what a float holds has no part in a mean
        return False

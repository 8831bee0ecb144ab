"""Runs: listed, one by one, deleted and taken back."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response

from ...runs import strict
from ..store.interface import Description, Filter, Run, RunQuery
from .access import Stands, administrator, reader
from .answers import Refused, as_json, no_run
from .backing import Backing
from .parameters import (
    MOST_COLUMNS,
    MOST_FILTERS,
    MOST_RUNS,
    SEPARATOR,
    Cursor,
    MaybeName,
    Name,
    RunId,
    filters,
    sort_key,
)
from .questions import only_known
from .shapes import Deleted, Documents, RunList, RunWhole, Tree

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])
_BY_ADMIN = [Depends(administrator)]
_SIMPLE = ("project", "name", "group", "state", "tag")


@router.get("/runs", response_model=RunList)
def list_runs(
    request: Request,
    stands_on: Stands,
    project: MaybeName = None,
    name: MaybeName = None,
    group: MaybeName = None,
    state: MaybeName = None,
    tag: MaybeName = None,
    where: Annotated[
        list[str],
        Query(
            max_length=MOST_FILTERS,
            description='Conditions that must all hold, each a JSON array: ["last_seen_ns",">",0], '
            '["config","lr","<",0.1], ["tag","contains","base"]. Fields: id, project, name, group, state, tag, '
            "created_ns, last_seen_ns, config, summary. Operators: = != < <= > >= contains.",
        ),
    ] = [],  # noqa: B006  # fastapi copies it
    column: Annotated[
        list[Name],
        Query(
            max_length=MOST_COLUMNS, description="Values to show with each run: config::KEY, summary::KEY."
        ),
    ] = [],  # noqa: B006
    sort: Annotated[
        str,
        Query(
            max_length=600,
            pattern=r"^((created_ns|last_seen_ns|name|project|state)|(config|summary)::[^\x00]+)$",
            description="created_ns, last_seen_ns, name, project, state, config::KEY or summary::KEY.",
        ),
    ] = "created_ns",
    order: Literal["asc", "desc"] = "desc",
    limit: Annotated[int, Query(ge=1, le=MOST_RUNS)] = 100,
    after: Cursor = "",
    deleted: Annotated[bool, Query(description="Those that were deleted instead.")] = False,
) -> Response:
    """Runs with filter and sort, page by page."""
    wanted = filters(where)
    given = {"project": project, "name": name, "group": group, "state": state, "tag": tag}
    wanted += [Filter(field, value=given[field]) for field in _SIMPLE if given[field] is not None]
    paths = [_path(each) for each in column]
    query = RunQuery(wanted, sort_key(sort), order == "desc", limit, after, deleted)
    page = stands_on.store.reader.runs(query)
    now_ns = time.time_ns()
    rows = [_row(stands_on, run, now_ns) for run in page.runs]
    if paths:
        for row, run in zip(rows, page.runs, strict=True):
            row["columns"] = dict(_columns(run.description, paths))
    return as_json(request, {"runs": rows, "next": page.next, "total": page.total, "now_ns": now_ns})


def _row(stands_on: Backing, run: Run, now_ns: int) -> dict[str, Any]:
    told = run.description
    state = stands_on.state(run, now_ns)
    active = told.more.get("active_ns")
    return {
        "id": run.id,
        "name": told.name,
        "project": told.project,
        "group": told.group,
        "tags": list(told.tags),
        "state": state.name,
        "reason": state.cause,
        "created_ns": told.created_ns,
        "ended_ns": told.ended_ns,
        "active_ns": active if isinstance(active, int) else 0,
        "last_seen_ns": run.last_seen_ns,
        "attempts": max(told.attempts.values(), default=0),
        "records": run.records,
        "points": run.points,
        "bytes": run.bytes,
        "counts": dict(told.counts),
        "deleted_ns": run.deleted_ns,
    }


def _path(column: str) -> tuple[str, str]:
    group, mark, key = column.partition(SEPARATOR)
    if group not in ("config", "summary") or not mark or not key:
        raise Refused(400, "bad_request", f"column={column[:100]}: expected config::KEY or summary::KEY")
    return group, key


def _columns(told: Description, paths: list[tuple[str, str]]) -> Any:
    flat = {"config": flatten(told.config), "summary": flatten(told.summary)}
    for group, key in paths:
        if key in flat[group]:
            yield f"{group}{SEPARATOR}{key}", strict.plain(flat[group][key])


def flatten(values: Any, before: str = "") -> dict[str, Any]:
    """Nested values as one level, keys joined as `log` joins them; lists by their indices."""
    found: dict[str, Any] = {}
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        name = f"{before}{key}"
        if isinstance(value, (dict, list)) and value:
            found.update(flatten(value, name + SEPARATOR))
        else:
            found[name] = value
    return found


def known_run(stands_on: Backing, run: str) -> Run:
    """Also one that was deleted and is still there."""
    found = stands_on.store.reader.run(run)
    if found is None:
        raise no_run(run)
    return found


@router.get("/run", response_model=RunWhole)
def one_run(request: Request, stands_on: Stands, run: RunId) -> Response:
    """All that is known of a run but its points; its state as of now."""
    found = known_run(stands_on, run)
    now_ns = time.time_ns()
    told = found.description
    base, named = str(request.url_for("one_run").path), f"?run={quote(run, safe='')}"
    parts = ("config", "summary", "documents", "keys", "last", "contents", "export")
    whole = {
        **_row(stands_on, found, now_ns),
        "notes": told.notes,
        "config": strict.plain(told.config),
        "summary": strict.plain(told.summary),
        "ranks": list(told.ranks),
        "processes": dict(told.attempts),
        "more": strict.plain(told.more),
        "links": {"self": base + named, **{part: f"{base}/{part}{named}" for part in parts}},
        "now_ns": now_ns,
    }
    return as_json(request, whole)


@router.get("/run/config", response_model=Tree)
def config(request: Request, stands_on: Stands, run: RunId) -> Response:
    """What was configured, nested as it was given."""
    return as_json(
        request, {"run": run, "values": strict.plain(known_run(stands_on, run).description.config)}
    )


@router.get("/run/summary", response_model=Tree)
def summary(request: Request, stands_on: Stands, run: RunId) -> Response:
    """What the run summed up."""
    return as_json(
        request, {"run": run, "values": strict.plain(known_run(stands_on, run).description.summary)}
    )


@router.get("/run/documents", response_model=Documents)
def documents(request: Request, stands_on: Stands, run: RunId) -> Response:
    """What the agents told of the run, node by node, as they stored it; NaN is {"$float": "nan"} here."""
    found = known_run(stands_on, run)
    stored = stands_on.store.reader.documents(run)
    nodes = {node: strict.wrap(json.loads(text)) for node, text in stored.items()}
    return as_json(
        request,
        {"run": run, "last_seen_ns": found.last_seen_ns, "now_ns": time.time_ns(), "nodes": nodes},
    )


@router.delete("/run", response_model=Deleted, dependencies=_BY_ADMIN)
def delete_run(request: Request, stands_on: Stands, run: RunId) -> Response:
    """Delete a run: it can be taken back for some days, and late data does not bring it back."""
    if not stands_on.delete(run):
        raise no_run(run)
    return as_json(request, {"run": run, "deleted": True})


@router.post("/run/undelete", response_model=Deleted, dependencies=_BY_ADMIN)
def undelete_run(request: Request, stands_on: Stands, run: RunId) -> Response:
    """Take a deleted run back; where its data are gone already, let new data in."""
    if not stands_on.undelete(run):
        raise Refused(404, "not_deleted", f"no run {run[:100]!r} is deleted here")
    return as_json(request, {"run": run, "deleted": False})

"""Runs: listed, one by one, deleted and taken back."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response

from ...runs import strict
from ...runs.flatten import SEPARATOR
from ..store.interface import Description, Filter, Last, Listed, Run, RunQuery
from .access import Stands, administrator, reader
from .context import Backing
from .parameters import (
    MAX_COLUMNS,
    MAX_FILTERS,
    MAX_RUNS,
    Cursor,
    MaybeName,
    Name,
    RunId,
    filters,
    sort_key,
)
from .response_models import Deleted, Documents, RunList, RunWhole, Tree
from .responses import Refused, as_json, no_run, number, packed
from .strict_query import only_known

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])
_BY_ADMIN = [Depends(administrator)]
_encoded = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
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
            max_length=MAX_FILTERS,
            description='Conditions that must all hold, each a JSON array: ["last_seen_ns",">",0], '
            '["config","lr","<",0.1], ["tag","contains","base"]. Fields: id, project, name, group, state, tag, '
            "created_ns, last_seen_ns, config, summary, any (id, project, name, group or a tag contains a text, in "
            "capitals or not). Operators: = != < <= > >= contains.",
        ),
    ] = [],  # noqa: B006  # fastapi copies it
    column: Annotated[
        list[Name],
        Query(
            max_length=MAX_COLUMNS,
            description="Values to show with each run: config::KEY, summary::KEY, last::KEY (of a series).",
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
    limit: Annotated[int, Query(ge=1, le=MAX_RUNS)] = 100,
    after: Cursor = "",
    deleted: Annotated[bool, Query(description="Those that were deleted instead.")] = False,
) -> Response:
    """Runs with filter and sort, page by page."""
    wanted = filters(where)
    given = {"project": project, "name": name, "group": group, "state": state, "tag": tag}
    wanted += [Filter(field, value=given[field]) for field in _SIMPLE if given[field] is not None]
    paths = [column_path(each) for each in dict.fromkeys(column)]
    columns = [path for path in paths if path[0] != "last"]
    query = RunQuery(wanted, sort_key(sort), order == "desc", limit, after, deleted, columns)
    at = stands_on.store.live.position().row
    page = stands_on.store.reader.runs(query)
    now_ns = time.time_ns()
    lasts = _lasts(stands_on, page.runs, [key for group, key in paths if group == "last"])
    rows = [_row_text(stands_on, run, now_ns, paths, lasts) for run in page.runs]
    end = _encoded({"next": page.next, "total": page.total, "now_ns": now_ns, "at": at})
    text = f'{{"runs":[{",".join(rows)}],{end[1:]}'
    return packed(request, text.encode("ascii"), "application/json")


def _lasts(stands_on: Backing, runs: Sequence[Listed], keys: Sequence[str]) -> Mapping[tuple[str, str], Last]:
    return stands_on.store.reader.last_values([run.id for run in runs], keys) if keys else {}


def _row_text(
    stands_on: Backing,
    run: Listed,
    now_ns: int,
    paths: Sequence[tuple[str, str]],
    lasts: Mapping[tuple[str, str], Last],
) -> str:
    """`RunRow` as JSON. A page has up to 10,000 of them: the description of a run that is over goes out as kept."""
    brief = run.brief
    if run.state == "running":
        described = json.loads(brief)
        brief = _encoded({**described, **state_of_listed(stands_on, run, described, now_ns)})
    columns = _columns_text(run, paths, lasts) if paths else ""
    return (
        f'{{"id":{_encoded(run.id)},{brief[1:-1]},"last_seen_ns":{run.last_seen_ns},"records":{run.records},'
        f'"points":{run.points},"bytes":{run.bytes},"deleted_ns":{run.deleted_ns}{columns}}}'
    )


def state_of_listed(
    stands_on: Backing, run: Listed, described: Mapping[str, Any], now_ns: int
) -> dict[str, Any]:
    """State, reason and finding of a run whose documents have it running, as of now; `described`: its brief."""
    names = ("state", "reason", "created_ns", "ended_ns")
    more = {name: described.get(name) for name in ("rest_s", "uploaded_ns")}
    about = Description(**{name: described[name] for name in names}, more=more)
    whole = Run(run.id, about, run.last_seen_ns, run.records, run.points, run.bytes)
    return _state(stands_on, whole, now_ns, described.get("observed"))


def row_of(stands_on: Backing, run: Listed, described: Mapping[str, Any], now_ns: int) -> dict[str, Any]:
    """Return `RunRow`; `described` is the run's brief description, read from its JSON."""
    if run.state == "running":
        described = {**described, **state_of_listed(stands_on, run, described, now_ns)}
    return {
        "id": run.id,
        **described,
        "last_seen_ns": run.last_seen_ns,
        "records": run.records,
        "points": run.points,
        "bytes": run.bytes,
        "deleted_ns": run.deleted_ns,
    }


def _columns_text(
    run: Listed, paths: Sequence[tuple[str, str]], lasts: Mapping[tuple[str, str], Last]
) -> str:
    shown = {path: strict.plain(value) for path, value in run.columns.items()}
    for group, key in paths:
        if group == "last" and (last := lasts.get((run.id, key))) is not None:
            shown[group, key] = number(last.value)
    columns = {SEPARATOR.join(path): shown[path] for path in paths if path in shown}
    return f',"columns":{_encoded(columns)}'


def _state(stands_on: Backing, run: Run, now_ns: int, observed: Any) -> dict[str, Any]:
    state = stands_on.state(run, now_ns)
    return {
        "state": state.name,
        "reason": state.cause,
        "observed": observed if state.name == "running" else None,
    }


def _row(stands_on: Backing, run: Run, now_ns: int) -> dict[str, Any]:
    brief = run.description.brief()
    return {
        "id": run.id,
        **brief,
        **_state(stands_on, run, now_ns, brief["observed"]),
        "last_seen_ns": run.last_seen_ns,
        "records": run.records,
        "points": run.points,
        "bytes": run.bytes,
        "deleted_ns": run.deleted_ns,
    }


def column_path(column: str) -> tuple[str, str]:
    """Return kind and key of a column."""
    group, mark, key = column.partition(SEPARATOR)
    if group not in ("config", "summary", "last") or not mark or not key:
        raise Refused(
            400, "bad_request", f"column={column[:100]}: expected config::KEY, summary::KEY or last::KEY"
        )
    return group, key


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
    described = found.description
    base, named = str(request.url_for("one_run").path), f"?run={quote(run, safe='')}"
    parts = ("config", "summary", "documents", "keys", "last", "contents", "export")
    whole = {
        **_row(stands_on, found, now_ns),
        "notes": described.notes,
        "config": strict.plain(described.config),
        "summary": strict.plain(described.summary),
        "ranks": list(described.ranks),
        "processes": dict(described.attempts),
        "more": strict.plain(described.more),
        "links": {"self": base + named, **{part: f"{base}/{part}{named}" for part in parts}},
        "now_ns": now_ns,
    }
    return as_json(request, whole)


@router.get("/run/config", response_model=Tree)
def config(request: Request, stands_on: Stands, run: RunId) -> Response:
    """The config of the run, nested as it was given."""
    return as_json(
        request, {"run": run, "values": strict.plain(known_run(stands_on, run).description.config)}
    )


@router.get("/run/summary", response_model=Tree)
def summary(request: Request, stands_on: Stands, run: RunId) -> Response:
    """The summary of the run."""
    return as_json(
        request, {"run": run, "values": strict.plain(known_run(stands_on, run).description.summary)}
    )


@router.get("/run/documents", response_model=Documents)
def documents(request: Request, stands_on: Stands, run: RunId) -> Response:
    """Documents of the agents, node by node, as they stored them; NaN is {"$float": "nan"} here."""
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

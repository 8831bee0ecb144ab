"""Edits of runs after the fact, and changes of several runs at once.

Edits come in a body, unlike other requests: notes may be longer than an address. It is read only after the token was
checked (`request_body.py`). Several runs are changed one after the other: each is changed or not, and named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from logclient.errors import BadArgument

from ...runs.edits import MAX_TEXT, Changes, Edits, changes_of
from ..catalog import stored_edits
from ..limits import MAX_ID_BYTES
from ..store.interface import RunDeleted, StoreError
from ..tokens import Grant
from .access import Stands, administrator, editor, reader
from .context import Backing
from .listing import known_run
from .parameters import MAX_NAMED, RunId
from .request_body import json_body
from .response_models import ChangedRuns, Edited, EditHistory
from .responses import Refused, as_json, no_run
from .strict_query import only_known

router = APIRouter(dependencies=[Depends(only_known)])


def _text(field: str) -> dict[str, Any]:
    return {"type": ["string", "null"], "maxLength": MAX_TEXT[field]}


_TAGS = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": MAX_TEXT["tag"]}}
_RUNS = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": MAX_ID_BYTES},
    "minItems": 1,
    "maxItems": MAX_NAMED,
}
_FIELDS: dict[str, Any] = {
    "name": _text("name"),
    "group": _text("group"),
    "notes": _text("notes"),
    "tags": {**_TAGS, "description": "To add."},
    "untag": {**_TAGS, "description": "To take away."},
    "undo": {
        "type": "array",
        "items": {"enum": ["name", "group", "notes", "tags"]},
        "description": "Show again what the program of the run has set.",
    },
}


def _body(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    shape = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": shape}}}}


@router.post("/run/edit", response_model=Edited, openapi_extra=_body(_FIELDS, []))
def edit(
    request: Request,
    stands_on: Stands,
    run: RunId,
    grant: Annotated[Grant, Depends(editor)],
    body: Annotated[dict[str, Any], Depends(json_body(editor))],
) -> Response:
    """Edit the name, group, notes or tags of a run. What its program has set is there again after `undo`."""
    changes = _changes(body)
    made = _edit(stands_on, run, changes, grant)
    described = known_run(stands_on, run).description
    now = {
        "name": described.name,
        "group": described.group,
        "notes": described.notes,
        "tags": list(described.tags),
    }
    return as_json(request, {**_history(run, made, described.more), **now})


@router.get("/run/edits", response_model=EditHistory, dependencies=[Depends(reader)])
def history(request: Request, stands_on: Stands, run: RunId) -> Response:
    """Edits of a run, who made them and when, the newest last: of each field those that are kept."""
    found = known_run(stands_on, run)
    return as_json(request, _history(run, stored_edits(found.edits), found.description.more))


@router.post(
    "/runs/edit", response_model=ChangedRuns, openapi_extra=_body({"runs": _RUNS, **_FIELDS}, ["runs"])
)
def edit_several(
    request: Request,
    stands_on: Stands,
    grant: Annotated[Grant, Depends(editor)],
    body: Annotated[dict[str, Any], Depends(json_body(editor))],
) -> Response:
    """Edit several runs in the same way, one after the other."""
    runs, rest = _runs(body)
    changes = _changes(rest)
    return as_json(request, _of_each(stands_on, runs, lambda run: _edit(stands_on, run, changes, grant)))


@router.post("/runs/delete", response_model=ChangedRuns, openapi_extra=_body({"runs": _RUNS}, ["runs"]))
def delete_several(
    request: Request,
    stands_on: Stands,
    body: Annotated[dict[str, Any], Depends(json_body(administrator))],
) -> Response:
    """Delete several runs: they can be taken back for some days."""

    def delete(run: str) -> None:
        if not stands_on.delete(run):
            raise no_run(run)

    return as_json(request, _of_each(stands_on, _only_runs(body), delete))


@router.post("/runs/undelete", response_model=ChangedRuns, openapi_extra=_body({"runs": _RUNS}, ["runs"]))
def undelete_several(
    request: Request,
    stands_on: Stands,
    body: Annotated[dict[str, Any], Depends(json_body(administrator))],
) -> Response:
    """Take several deleted runs back."""

    def undelete(run: str) -> None:
        if not stands_on.undelete(run):
            raise Refused(404, "not_deleted", f"no run {run[:100]!r} is deleted here")

    return as_json(request, _of_each(stands_on, _only_runs(body), undelete))


def _edit(stands_on: Backing, run: str, changes: Changes, grant: Grant) -> Edits:
    if known_run(stands_on, run).deleted_ns:
        raise Refused(409, "not_now", "the run was deleted")
    try:
        return stands_on.edit(run, changes, f"token {grant.name}")
    except BadArgument as error:
        raise Refused(400, "bad_request", str(error)) from None
    except RunDeleted:
        raise Refused(409, "not_now", "the run was deleted") from None


def _history(run: str, edits: Edits, more: Any) -> dict[str, Any]:
    return {"run": run, "edits": [each.as_dict() for each in edits], "unedited": more.get("unedited") or {}}


def _changes(raw: dict[str, Any]) -> Changes:
    try:
        changes = changes_of(raw)
    except BadArgument as error:
        raise Refused(400, "bad_request", str(error)) from None
    if not changes:
        raise Refused(400, "bad_request", f"nothing to change: give some of {', '.join(_FIELDS)}")
    return changes


def _runs(body: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the ids in a body, each once, and the rest of it."""
    rest = dict(body)
    runs = rest.pop("runs", None)
    if not isinstance(runs, list) or not 0 < len(runs) <= MAX_NAMED:
        raise Refused(400, "bad_request", f"runs: expected a list of 1 to {MAX_NAMED:,} ids")
    for run in runs:
        if not isinstance(run, str) or not 0 < len(run.encode("utf-8", "replace")) <= MAX_ID_BYTES:
            raise Refused(400, "bad_request", "runs: an id is a text of 1 to 512 bytes")
    return list(dict.fromkeys(runs)), rest


def _only_runs(body: dict[str, Any]) -> list[str]:
    runs, rest = _runs(body)
    if rest:
        raise Refused(400, "bad_request", f"{min(rest)[:50]!r}: no such field; there is runs")
    return runs


def _of_each(stands_on: Backing, runs: list[str], change: Callable[[str], object]) -> dict[str, Any]:
    found = []
    for run in runs:
        told = {"run": run, "done": True, "error": "", "message": ""}
        try:
            change(run)
        except Refused as refused:
            told |= {"done": False, "error": refused.reason, "message": refused.message}
        except StoreError as error:
            told |= {"done": False, "error": "store", "message": str(error)}
        found.append(told)
    return {"runs": found, "at": stands_on.store.live.position().row}

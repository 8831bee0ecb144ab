"""Environments of a run's program, as the agents of its nodes found it."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from logclient.errors import Unsupported

from ...runs import node as nodes
from ...runs import strict
from ...runs.environment import environments_of
from ...runs.node import Node
from .access import Stands, reader
from .listing import known_run
from .parameters import RunId
from .response_models import Environments
from .responses import as_json
from .strict_query import only_known

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])
_MAX_NODES = 64


@router.get("/run/environment", response_model=Environments)
def environment(
    request: Request,
    stands_on: Stands,
    run: RunId,
    node: Annotated[str, Query(max_length=64, description="Of this node alone.")] = "",
) -> Response:
    """Command line, commit, packages, machine and variables, node by node, the newest last: at most 64 of them."""
    known_run(stands_on, run)
    stored = stands_on.store.reader.documents(run)
    found = []
    for id, documents in stored.items():
        if not node or id == node:
            made = Node("", id)
            try:
                nodes.take(made, json.loads(documents))
            except (ValueError, RecursionError, Unsupported):
                continue
            found.append(made)
    shown: list[dict[str, Any]] = [each.as_dict() for each in environments_of(found)[-_MAX_NODES:]]
    return as_json(request, {"run": run, "environments": strict.plain(shown)})

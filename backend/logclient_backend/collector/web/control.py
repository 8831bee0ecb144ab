"""Requests to stop or to save a run, from whoever has a token with the role for it.

They are parameters, as everywhere in this API: a body would be read before anybody is asked for a token.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from logclient.shm.stop_requests import MAX_REASON

from ..stop_requests import Kept, NotNow
from ..tokens import Grant
from .access import Stands, controller, reader
from .listing import known_run
from .parameters import RunId
from .response_models import Asked, Requests
from .responses import Refused, as_json
from .strict_query import only_known

router = APIRouter(dependencies=[Depends(only_known)])


@router.post("/run/control", response_model=Asked)
def control(
    request: Request,
    stands_on: Stands,
    run: RunId,
    grant: Annotated[Grant, Depends(controller)],
    kind: Annotated[Literal["stop", "save", "clear"], Query(description="clear: withdraw those before.")],
    save: Annotated[bool, Query(description="With `stop`: save, too.")] = False,
    reason: Annotated[str, Query(max_length=MAX_REASON, description="Shown to whoever looks.")] = "",
) -> Response:
    """Ask a run to stop or to save, on all its nodes after the same step. It holds for the attempt that runs now."""
    if known_run(stands_on, run).deleted_ns:
        raise Refused(409, "not_now", "the run was deleted")
    try:
        made, nodes = stands_on.stop_requests.ask(run, kind, reason, grant.name, save=save)
    except NotNow as error:
        raise Refused(409, "not_now", str(error)) from None
    return as_json(request, {"run": run, **_shown(made), "nodes": nodes, "now_ns": time.time_ns()})


@router.get("/run/control", response_model=Requests, dependencies=[Depends(reader)])
def requests(request: Request, stands_on: Stands, run: RunId) -> Response:
    """Requests that came here for the run, the oldest first; what became of each stands in the run's documents."""
    known_run(stands_on, run)
    found = [_shown(each) for each in stands_on.stop_requests.of_run(run)]
    return as_json(request, {"run": run, "requests": found})


def _shown(kept: Kept) -> dict[str, Any]:
    made = kept.as_dict()
    del made["run"]
    return made

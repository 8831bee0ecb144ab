"""Reports of the nodes of a run that does not get on, as their agents sent them, and a verdict over all of them.

The collector concludes nothing by itself: the verdict is made when somebody asks, by the code of `logclient why`.
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from logclient.errors import Corrupt

from ...observe import elsewhere
from ...observe.described import described
from ...runs import strict
from ...wire import node_report
from ..catalog import stored_view
from ..node_reports import SeenNode
from .access import Stands, reader
from .listing import known_run
from .parameters import Cursor, RunId
from .response_models import NodeReports, Why
from .responses import as_json
from .strict_query import only_known

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])

PAGE_BYTES = 8 << 20  # of reports; a page has at least one
PAGE_NODES = 1_000


@router.get("/run/reports", response_model=NodeReports)
def reports(request: Request, stands_on: Stands, run: RunId, after: Cursor = "") -> Response:
    """Return what the observer of each node saw last, while the run does not get on there."""
    known_run(stands_on, run)
    nodes, has_more = stands_on.node_reports.page(run, after, most_bytes=PAGE_BYTES, most_nodes=PAGE_NODES)
    rows = [_row(node, seen) for node, seen in nodes]
    following = rows[-1]["node"] if has_more else ""
    return as_json(request, {"run": run, "nodes": rows, "next": following, "now_ns": time.time_ns()})


@router.get("/run/why", response_model=Why)
def why(request: Request, stands_on: Stands, run: RunId) -> Response:
    """Return who is stuck and why, over all nodes, from what their observers saw last."""
    found = known_run(stands_on, run)
    if stands_on.is_over_folder:
        view = stored_view(run, stands_on.store.reader)
        job, silent_s = elsewhere.job_of(view, []), (time.time_ns() - found.last_seen_ns) / 1e9
        made = described(job) | elsewhere.in_folder(view, silent_s)
        return as_json(request, {"run": run, "now_ns": time.time_ns(), **strict.plain(made)})
    rows: list[dict[str, Any]] = []
    has_more = True
    while has_more:
        after = rows[-1]["node"] if rows else ""
        nodes, has_more = stands_on.node_reports.page(
            run, after, most_bytes=PAGE_BYTES, most_nodes=PAGE_NODES
        )
        rows += [_row(node, seen) for node, seen in nodes]
    is_upload = bool(found.description.more.get("uploaded_ns"))
    job = elsewhere.job_of(stored_view(run, stands_on.store.reader), rows, is_upload=is_upload)
    made = described(job)
    del made["reports"]  # all that was seen; `/run/reports` has it
    return as_json(request, {"run": run, "now_ns": time.time_ns(), **strict.plain(made)})


def _row(node: str, seen: SeenNode) -> dict[str, Any]:
    report, text = seen.report, None
    trouble = report.trouble if report is not None else ""
    if report is not None and report.packed:
        try:
            text = node_report.unpack(report).decode("utf-8", "replace")
        except Corrupt as error:
            trouble = f"its report is damaged: {error}"
    return {
        "node": node,
        "kind": report.kind if report is not None else None,
        "report": text,
        "age_s": report.age_s if text is not None and report is not None else None,
        "silent_s": seen.silent_s,
        "is_open": seen.conversations > 0,
        "trouble": trouble,
    }

"""Reports of the nodes of a run that does not get on, as their agents sent them."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from logclient.errors import Corrupt

from ...wire import node_report
from ..node_reports import SeenNode
from .access import Stands, reader
from .listing import known_run
from .parameters import Cursor, RunId
from .response_models import NodeReports
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

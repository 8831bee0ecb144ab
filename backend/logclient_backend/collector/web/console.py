"""The output of the processes of a run, folded to lines, page by page (`runs/console_pages.py`)."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from logclient.shm.side_stream import CONSOLE

from ...runs.console import rows_of
from ...runs.console_fold import Line
from ...runs.console_pages import Page, Pages, Row
from ...runs.node import table, whole
from ...wal.coverage import StreamSpan
from ..store.interface import Reader, side_id
from .access import Stands, reader
from .listing import known_run
from .parameters import RunId
from .response_models import ConsolePage
from .responses import Refused, as_json
from .strict_query import only_known

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])

MAX_LINES = 2_000  # of one answer
MAX_PROCESSES = 1_000
_CURSOR = Query(ge=0, lt=1 << 62)


@router.get("/run/console", response_model=ConsolePage)
def console(
    request: Request,
    stands_on: Stands,
    run: RunId,
    process: Annotated[
        str, Query(pattern="^([0-9a-f]{32})?$", description="One of `processes`; default: the first.")
    ] = "",
    after: Annotated[int | None, _CURSOR] = None,
    before: Annotated[int | None, _CURSOR] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LINES)] = 200,
    stream: Literal["stdout", "stderr"] | None = None,
    search: Annotated[
        str, Query(max_length=200, description="Only lines that have this in them, in any case.")
    ] = "",
) -> Response:
    """Lines that a process of the run printed, where its output was captured; without a cursor the last ones.

    `after`: the `next` of another page, for the lines that follow; asked again and again it gives what comes. `before`:
    the `previous` of another page. A line that is open may change: forget it when the next page comes, which has it
    again. A page looks at a bounded part of the output: one of a search may have no lines, and not be the end.
    """
    found = known_run(stands_on, run)
    if after is not None and before is not None:
        raise Refused(400, "bad_request", "after and before: give one of them")
    asked, id = stands_on.store.reader, side_id(run, CONSOLE)
    spans = {span.process.hex(): span for span in asked.contents(id).values() if span.last is not None}
    processes = _processes(asked, run, spans)
    chosen = process or (processes[0]["process"] if processes else "")
    if process and process not in spans:
        raise Refused(404, "no_process", f"nothing is stored of what process {process} of this run printed")
    made: dict[str, Any] = {"run": run, "process": chosen, "processes": processes[:MAX_PROCESSES]}
    page = Page([], 0, 0, is_all=True)
    if chosen:
        pages = _pages(asked, id, spans[chosen], is_over=found.description.state != "running")
        wanted, text = stream, search.casefold()

        def keep(line: Line) -> bool:
            return (wanted is None or line.stream == wanted) and (not text or text in line.text.casefold())

        page = pages.before(before, limit, keep) if after is None else pages.after(after, limit, keep)
    made |= {
        "lines": [line._asdict() for line in page.lines],
        "previous": page.previous,
        "next": page.next,
        "is_all": page.is_all,
    }
    return as_json(request, made)


def _pages(asked: Reader, id: str, span: StreamSpan, *, is_over: bool) -> Pages:
    def fetch(first: int, most: int) -> tuple[list[Row], int]:
        items, following = asked.records(id, span.stream, first, most=most)
        return sorted(row for item in items for row in rows_of(item.columns)), following

    return Pages(span.stored, fetch, is_over=is_over)


def _processes(asked: Reader, run: str, spans: dict[str, StreamSpan]) -> list[dict[str, Any]]:
    """Return the processes of which something is stored, by rank, and the newest of a rank first."""
    ranks: dict[str, int | None] = {}
    for document in asked.documents(run).values():
        for key, value in table(table(json.loads(document)).get("processes")).items():
            if key in spans:
                rank = table(value).get("rank")
                ranks[key] = rank if type(rank) is int else None
    made = [
        {
            "process": process,
            "rank": ranks.get(process),
            "pieces": span.records,
            "lost": len(span.forgotten) + len(span.damaged) + len(span.trimmed),
            "first_ns": span.first_time,
            "last_ns": span.last_time,
        }
        for process, span in spans.items()
    ]
    made.sort(key=lambda each: (whole(each["rank"]), -whole(each["first_ns"])))
    return made

"""Gaps in the records of a run and the beginnings of its attempts: for marks in charts.

A gap is known by its seqs. The records before and after it give its place along steps and time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from ...wal.coverage import StreamSpan
from ..store.interface import Reader
from .access import Stands, reader
from .listing import known_run
from .parameters import RunId, Side, in_store
from .response_models import Shape
from .responses import as_json
from .strict_query import only_known

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])

MAX_GAPS = 500  # of one answer: for each the store is asked twice


class Place(Shape):
    """One record's place."""

    step: int
    time_ns: int


class GapRow(Shape):
    """Records of one stream that are missing, one behind the other."""

    stream: str
    attempt: int
    cause: str = Field(description="forgotten, damaged or trimmed.")
    first_seq: int
    last_seq: int
    count: int = Field(description="Records.")
    before: Place | None = Field(description="The record before; null: there is none.")
    after: Place | None


class AttemptRow(Shape):
    """An attempt, and its first record."""

    attempt: int
    first: Place


class Marks(Shape):
    """Places in a run that its charts mark."""

    run: str
    gaps: list[GapRow] = Field(description="The longest first.")
    left_out_gaps: int = Field(description="Shorter ones, beyond the limit.")
    attempts: list[AttemptRow]


@router.get("/run/marks", response_model=Marks)
def marks(
    request: Request,
    stands_on: Stands,
    run: RunId,
    side: Side,
    limit: Annotated[int, Query(ge=1, le=MAX_GAPS, description="Gaps, the longest.")] = 100,
) -> Response:
    """Gaps in the records of a run, each between the records before and after it, and the first record of each attempt.

    Where there are more gaps than asked for, the longest are given; all gaps by seqs are in `/run/contents`.
    """
    attempts = known_run(stands_on, run).description.attempts
    stored = in_store(run, side)
    spans = stands_on.store.reader.contents(stored)
    asked = _Places(stands_on.store.reader, stored)
    found: list[tuple[StreamSpan, dict[str, Any]]] = [
        (
            span,
            {
                "stream": span.stream.hex(),
                "attempt": attempts.get(span.process.hex(), 1),
                "cause": cause,
                "first_seq": first,
                "last_seq": last,
                "count": last - first + 1,
            },
        )
        for span in spans.values()
        for cause, first, last in _gaps(span)
    ]
    found.sort(key=lambda each: -each[1]["count"])
    gaps = [{**gap, **asked.around(span, gap)} for span, gap in found[:limit]]
    begun: dict[int, dict[str, int]] = {}
    for span in spans.values():
        if span.records:
            number = attempts.get(span.process.hex(), 1)
            place = {"step": span.first_step, "time_ns": span.first_time}
            if number not in begun or place["time_ns"] < begun[number]["time_ns"]:
                begun[number] = place
    return as_json(
        request,
        {
            "run": run,
            "gaps": gaps,
            "left_out_gaps": len(found) - len(gaps),
            "attempts": [{"attempt": number, "first": begun[number]} for number in sorted(begun)],
        },
    )


def _gaps(span: StreamSpan) -> Iterator[tuple[str, int, int]]:
    for cause in ("forgotten", "damaged", "trimmed"):
        for first, last in getattr(span, cause).ranges():
            yield cause, first, last


class _Places:
    """Records next to gaps, read from the store without their values."""

    def __init__(self, asked: Reader, run: str) -> None:
        self._asked = asked
        self._run = run

    def around(self, span: StreamSpan, gap: dict[str, Any]) -> dict[str, Any]:
        stored = span.stored.ranges()
        before = max((high for low, high in stored if low < gap["first_seq"]), default=0)
        after = min((low for low, high in stored if high > gap["last_seq"]), default=0)
        return {"before": self._place(span.stream, before), "after": self._place(span.stream, after)}

    def _place(self, stream: bytes, seq: int) -> dict[str, int] | None:
        if not seq:
            return None
        found, _ = self._asked.records(self._run, stream, seq, most=1, keys=())
        for item in found:
            if len(item) and item.columns.seq[0] == seq:
                return {"step": item.columns.step[0], "time_ns": item.columns.time[0]}
        return None

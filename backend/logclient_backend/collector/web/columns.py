"""Keys under which runs have values, for a table that offers them as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from ..store.interface import ColumnKey
from .access import Stands, reader
from .response_models import Shape
from .responses import as_json
from .strict_query import only_known

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])

MAX_NEWEST = 1_000


class ColumnKeyRow(Shape):
    """A key under which runs have values."""

    key: str
    runs: int = Field(description="That have it.")
    is_same: bool = Field(description="Config and summary: all of them have the same value.")


class ColumnList(Shape):
    """Keys of the newest runs."""

    config: list[ColumnKeyRow]
    summary: list[ColumnKeyRow]
    last: list[ColumnKeyRow] = Field(description="Metrics.")
    runs: int = Field(description="That were looked at.")


@router.get("/columns", response_model=ColumnList)
def columns(
    request: Request,
    stands_on: Stands,
    newest: Annotated[int, Query(ge=1, le=MAX_NEWEST, description="How many runs are looked at.")] = 200,
) -> Response:
    """Keys of config, summary and metrics that the newest runs have, for `column` and `where` of /runs."""
    found = stands_on.store.live.column_keys(newest)
    parts = {"config": found.config, "summary": found.summary, "last": found.metrics}
    return as_json(request, {**{part: _rows(keys) for part, keys in parts.items()}, "runs": found.runs})


def _rows(keys: Sequence[ColumnKey]) -> list[dict[str, Any]]:
    return [{"key": each.key, "runs": each.runs, "is_same": each.is_same} for each in keys]

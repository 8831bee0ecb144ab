"""Whole runs, for those who read all of it: what is stored, records page by page, and the points as a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse

from ...runs import formats
from ...runs.paged import PagedReader
from ...wal.encoded import StreamColumns
from ...wire import pages
from ..store.interface import Reader
from .access import Stands, Still, reader, while_valid
from .listing import known_run
from .parameters import MAX_NAMED, Name, RunId, Side, in_store
from .responses import PROTOBUF
from .strict_query import only_known

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])

PAGE_RECORDS = 1 << 16
PAGE_BYTES = 4 << 20  # about, unpacked
_FIRST_LOOK = 128  # records, to see how wide they are
_BYTES: dict[int | str, Any] = {
    200: {"content": {PROTOBUF: {"schema": {"type": "string", "format": "binary"}}}}
}
_KINDS = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}


class _Bytes(Response):
    media_type = PROTOBUF


@router.get("/run/contents", response_class=_Bytes, responses=_BYTES)
def contents(stands_on: Stands, run: RunId, side: Side) -> Response:
    """Coverage of each stream, and every gap: the message `Contents` of query.proto."""
    known_run(stands_on, run)
    return _Bytes(pages.pack_contents(stands_on.store.reader.contents(in_store(run, side))))


@router.get("/run/records", response_class=_Bytes, responses=_BYTES)
def records(
    stands_on: Stands,
    run: RunId,
    side: Side,
    stream: Annotated[str, Query(pattern="^[0-9a-f]{32}$")],
    first: Annotated[int, Query(ge=1, lt=1 << 64, description="The first seq.")] = 1,
    limit: Annotated[int, Query(ge=1, le=PAGE_RECORDS)] = PAGE_RECORDS,
    key: Annotated[list[Name] | None, Query(max_length=MAX_NAMED, description="Only these keys.")] = None,
) -> Response:
    """Records of one stream by seq: the message `RecordPage` of query.proto. Fewer than `limit` where they are wide."""
    known_run(stands_on, run)
    found, after = page_of(
        stands_on.store.reader, in_store(run, side), bytes.fromhex(stream), first, limit, key
    )
    return _Bytes(pages.pack_page(found, after))


def page_of(
    asked: Reader, run: str, stream: bytes, first: int, limit: int, keys: list[str] | None = None
) -> tuple[list[StreamColumns], int]:
    """Records of about PAGE_BYTES at most, and the seq to ask for next."""
    found, after = asked.records(run, stream, first, most=min(limit, _FIRST_LOOK), keys=keys)
    count, size = _size(found)
    if after and count < limit:
        room = (PAGE_BYTES - size) * max(1, count) // max(1, size)
        most = min(limit - count, room)
        if most > 0:
            more, after = asked.records(run, stream, after, most=most, keys=keys)
            found = found + more
    return found, after


def _size(found: list[StreamColumns]) -> tuple[int, int]:
    """Records, and about their bytes."""
    count = size = 0
    for item in found:
        columns = item.columns
        count += len(columns)
        size += len(columns) * 32
        for column in columns.cells:
            size += sum(map(len, column)) if isinstance(column, list) else 8 * len(column)
    return count, size


@router.get(
    "/run/export",
    response_class=StreamingResponse,
    responses={200: {"content": {kind: {"schema": {"type": "string"}} for kind in _KINDS.values()}}},
)
def export(
    stands_on: Stands, still: Still, run: RunId, side: Side, format: Literal["jsonl", "csv"] = "jsonl"
) -> StreamingResponse:
    """All points in one stated order: the same bytes as `logclient export --format jsonl` or csv gives."""
    known_run(stands_on, run)
    headers = {"content-disposition": f'attachment; filename="points.{format}"'}
    return StreamingResponse(
        while_valid(_lines(stands_on.store.reader, in_store(run, side), format), still),
        200,
        headers,
        _KINDS[format],
    )


class _Chunk:
    """Takes what a writer writes, until it is handed on."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0

    def write(self, data: bytes) -> int:
        self._parts.append(data)
        self.size += len(data)
        return len(data)

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        self.size = 0
        return data


def _lines(asked: Reader, run: str, format: str) -> Iterator[bytes]:
    chunk = _Chunk()
    writer = formats.writer(format, chunk)  # type: ignore[arg-type]
    found = PagedReader(
        asked.contents(run), lambda stream, first, most: page_of(asked, run, stream, first, most)
    )
    for part in found.parts():
        writer.write(part)
        if chunk.size > 1 << 18:
            yield chunk.take()
    writer.close()
    yield chunk.take()

"""Media values of a run: a page of their references, and the bytes that one refers to.

Bytes come from strangers and are shown in a browser: their type is one of a list, never guessed; all but pictures,
sound and films are attachments; nothing in them may run or load anything; and nothing is decoded here.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from logclient.shm.side_stream import MEDIA

from ...runs.media import MediaItem, media_items
from ...wal.coverage import StreamSpan
from ..media_records import media_columns
from ..store.interface import side_id
from . import plotly_frame
from .access import Stands, reader
from .listing import known_run
from .parameters import Name, RunId
from .response_models import Shape
from .responses import Refused, as_json, takes_gzip
from .strict_query import only_known

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])

MOST = 1_000  # references of a page
MAX_ASKED = 100  # hashes of a question
Hash = Annotated[str, Query(pattern="^[0-9a-f]{64}$")]
_PIECE = 1 << 18
_MAX_STREAMS = 100  # in a cursor, which is part of an address; values of others come again
_CURSOR = r"^([0-9a-f]{32}\.[0-9]{1,19}_)*$"
_MAX_NAME = 150  # characters of a file's name
_SHOWN = frozenset(
    f"{family}/{name}"
    for family, names in {
        "image": ("png", "jpeg", "gif", "webp", "bmp"),
        "audio": ("wav", "ogg", "flac", "mpeg"),
        "video": ("mp4", "webm"),
    }.items()
    for name in names
)
_TYPES = _SHOWN | {"image/svg+xml", "text/plain", "text/markdown", "text/html", "application/json"}
_OCTETS = "application/octet-stream"
# A page that a user logged: its own scripts run, without the rights of any origin, and it reaches no network. The page
# that holds the frame allows it this address alone (`static_files.POLICY`), so it cannot go elsewhere either.
_FRAME = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; media-src data:; font-src data:; frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "sandbox; default-src 'none'",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "private, max-age=3600, immutable",
}


class MediaValue(Shape):
    """A reference to one media value."""

    step: int
    key: str
    time_ns: int
    rank: int | None
    kind: str = Field(
        description="image, histogram, table, text, markdown, html, file, audio, video or figure."
    )
    sha256: str = Field(
        description="Names its bytes for /run/blob; empty: all of it is in `fields`, or it is lost."
    )
    bytes: int
    mime: str
    lost: str = Field(description="Why it was not stored; empty: it was.")
    here: bool = Field(description="Has /run/blob its bytes? They come after the reference.")
    fields: dict[str, Any] = Field(description="Caption, width, height, counts of a histogram, and the like.")


class HeldBlobs(Shape):
    """Hashes whose bytes are here."""

    run: str
    here: list[str]


class MediaPage(Shape):
    """References to media values of a run, by step."""

    run: str
    keys: list[str]
    media: list[MediaValue]
    next: int = Field(description="For the next page, as `after`; 0: this was the last one.")
    cursor: str = Field(description="For `since`: asks for what was stored after this answer.")
    plotly: bool = Field(description="Does /run/frame show figures of plotly here?")


@router.get("/run/media", response_model=MediaPage)
def media(
    request: Request,
    stands_on: Stands,
    run: RunId,
    key: Annotated[Name | None, Query(description="Of this key alone.")] = None,
    kind: Annotated[str | None, Query(max_length=20, description="Of this kind alone.")] = None,
    first_step: Annotated[int, Query(ge=-(1 << 63), lt=1 << 63)] = -(1 << 63),
    last_step: Annotated[int, Query(ge=-(1 << 63), lt=1 << 63)] = (1 << 63) - 1,
    after: Annotated[int, Query(ge=0, lt=1 << 40, description="The `next` of the page before.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST)] = MOST,
    since: Annotated[
        str, Query(max_length=8000, pattern=_CURSOR, description="The `cursor` of an earlier answer.")
    ] = "",
) -> Response:
    """Return references to media values by step, and all keys; `next` is 0 where nothing follows.

    `since` gives what was stored after an earlier answer: take the `cursor` of the first page. A value may come twice.
    """
    known_run(stands_on, run)
    spans = stands_on.store.reader.contents(side_id(run, MEDIA))
    keys, found = _references(stands_on, run, key, spans, _seen(since))
    wanted = [
        each for each in found if first_step <= each.step <= last_step and kind in (None, each.reference.kind)
    ]
    page = wanted[after : after + limit]
    following = after + len(page)
    rows = [_row(each) | {"here": _has(stands_on, run, each.reference.sha256)} for each in page]
    return as_json(
        request,
        {
            "run": run,
            "keys": keys,
            "media": rows,
            "next": following if following < len(wanted) else 0,
            "cursor": _cursor(spans),
            "plotly": any(each.reference.kind == "figure" for each in page)
            and plotly_frame.frame() is not None,
        },
    )


def _references(
    stands_on: Stands, run: str, key: str | None, spans: Mapping[bytes, StreamSpan], seen: Mapping[bytes, int]
) -> tuple[list[str], list[MediaItem]]:
    asked = stands_on.store.reader
    keys = sorted(asked.key_names(side_id(run, MEDIA)))
    if key is not None and key not in keys:
        return keys, []
    return keys, media_items(media_columns(asked, run, None if key is None else [key], spans, seen))


def _cursor(spans: Mapping[bytes, StreamSpan]) -> str:
    """Return how far each stream is stored."""
    some = sorted(spans.items())[:_MAX_STREAMS]
    return "".join(f"{stream.hex()}.{span.last or 0}_" for stream, span in some)


def _seen(cursor: str) -> dict[bytes, int]:
    parts = [part.split(".") for part in cursor.split("_") if part]
    return {bytes.fromhex(stream): int(last) for stream, last in parts}


def _row(item: MediaItem) -> dict[str, Any]:
    table = item.reference.table()
    return {
        "step": item.step,
        "key": item.key,
        "time_ns": item.time,
        "rank": item.rank,
        "kind": table.pop("kind"),
        "sha256": table.pop("sha256", ""),
        "bytes": table.pop("bytes", 0),
        "mime": table.pop("mime", ""),
        "lost": table.pop("lost", ""),
        "fields": {name: _plain(value) for name, value in table.items()},
    }


def _plain(value: Any) -> Any:
    """JSON has no number that is none."""
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return [_plain(each) for each in value] if isinstance(value, list) else value


@router.get("/run/blobs", response_model=HeldBlobs)
def blobs(
    request: Request,
    stands_on: Stands,
    run: RunId,
    sha256: Annotated[list[Hash], Query(min_length=1, max_length=MAX_ASKED)],
) -> Response:
    """Return which of these hashes have bytes here for this run: those of a live run come after their references."""
    known_run(stands_on, run)
    return as_json(request, {"run": run, "here": [each for each in sha256 if _has(stands_on, run, each)]})


def _has(stands_on: Stands, run: str, sha256: str) -> bool:
    return stands_on.blobs is not None and stands_on.blobs.has(run, sha256)


@router.get(
    "/run/blob",
    response_class=StreamingResponse,
    responses={200: {"content": {_OCTETS: {"schema": {"type": "string", "format": "binary"}}}}},
)
def blob(
    stands_on: Stands,
    run: RunId,
    sha256: Hash,
    mime: Annotated[str, Query(max_length=80, description="Of the reference.")] = _OCTETS,
    name: Annotated[str, Query(max_length=1000, description="Under which an attachment is kept.")] = "",
) -> Response:
    """Return the bytes that a media value of this run refers to, as the type of its reference if it is a known one."""
    fd = _blob(stands_on, run, sha256)
    kind = mime if mime in _TYPES else _OCTETS
    headers = {**_HEADERS, "content-length": str(os.fstat(fd).st_size)}
    if kind not in _SHOWN:
        headers["content-disposition"] = _attachment(name, sha256[:16])
    return StreamingResponse(
        _pieces(fd), 200, headers, f"{kind}; charset=utf-8" if kind[:5] == "text/" else kind
    )


@router.get(
    "/run/frame",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}},
)
def frame(
    request: Request,
    stands_on: Stands,
    run: RunId,
    sha256: Hash,
    kind: Annotated[
        Literal["html", "figure"], Query(description="figure: the JSON of one of plotly.")
    ] = "html",
) -> Response:
    """Return the bytes of a media value as a page for a frame without rights."""
    fd = _blob(stands_on, run, sha256)
    if kind == "figure":
        return _figure(request, fd)
    headers = {**_HEADERS, "content-security-policy": _FRAME, "x-frame-options": "SAMEORIGIN"}
    headers["content-length"] = str(os.fstat(fd).st_size)
    return StreamingResponse(_pieces(fd), 200, headers, "text/html; charset=utf-8")


def _figure(request: Request, fd: int) -> Response:
    with open(fd, "rb") as file:
        found = plotly_frame.frame()
        if found is None:
            raise Refused(
                404, "no_path", "plotly is not installed where the collector runs: pip install plotly"
            )
        data = file.read(plotly_frame.MAX_BYTES + 1)
    if len(data) > plotly_frame.MAX_BYTES:
        raise Refused(
            400, "bad_request", f"a figure of more than {plotly_frame.MAX_BYTES:,} bytes is not shown"
        )
    headers = {**_HEADERS, "content-security-policy": found.policy, "x-frame-options": "SAMEORIGIN"}
    headers["vary"] = "accept-encoding"
    body = found.page(data)
    if takes_gzip(request):
        headers["content-encoding"], body = "gzip", found.packed_page(data)
    return Response(body, 200, headers, "text/html; charset=utf-8")


def _attachment(name: str, usual: str) -> str:
    """Return the header of a download. Of the name all goes that is no visible character, or part of a path."""
    seen = "".join("_" if each in "/\\:" else each for each in name if unicodedata.category(each)[0] != "C")
    return f"attachment; filename*=UTF-8''{quote(seen.strip(' .')[:_MAX_NAME] or usual, safe='')}"


def _blob(stands_on: Stands, run: str, sha256: str) -> int:
    """Return a descriptor of the bytes that a media value of this run refers to."""
    known_run(stands_on, run)
    fd = stands_on.blobs.open(run, sha256) if stands_on.blobs is not None else None
    if fd is None:
        raise Refused(
            404,
            "no_run",
            f"the bytes {sha256[:12]} of this run are not here: they did not come yet, or were removed to keep to "
            "the budget of the disk",
        )
    return fd


def _pieces(fd: int) -> Iterator[bytes]:
    with open(fd, "rb") as file:
        while piece := file.read(_PIECE):
            yield piece

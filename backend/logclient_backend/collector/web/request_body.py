"""Bodies of requests: JSON objects of a bounded size, read only once the token was checked.

Whoever has no token makes the collector read nothing. `json_body` is a dependency that asks for the caller first.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from fastapi import Depends, Request

from ..tokens import Grant
from .responses import Refused

MAX_BYTES = 1 << 20  # notes of 64 Ki characters, escaped, and 1,000 ids
READ_S = 10.0


def json_body(who: Callable[..., Grant]) -> Any:
    """Return a dependency: the object in the body of a request by somebody whom `who` lets in."""

    # a default, not Annotated: the name `who` means nothing outside this function, where annotations are looked up
    async def body(request: Request, grant: Grant = Depends(who)) -> dict[str, Any]:  # noqa: B008
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # no form of a page can send that
            raise Refused(400, "bad_request", "send a JSON object, with `Content-Type: application/json`")
        try:
            async with asyncio.timeout(READ_S):
                data = await _read(request)
        except TimeoutError:
            raise Refused(400, "bad_request", f"the body did not come within {READ_S:g} s") from None
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            raise Refused(400, "bad_request", "the body is no JSON") from None
        if not isinstance(found, dict):
            raise Refused(400, "bad_request", "the body is no JSON object")
        return found

    return body


async def _read(request: Request) -> bytes:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BYTES:
            raise Refused(400, "bad_request", f"the body has more than {MAX_BYTES:,} bytes")
    return bytes(data)

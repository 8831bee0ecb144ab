"""Answers of the API: strict JSON, one form of error, pages of bytes.

Runs in worker threads, so that a long answer holds nobody up: also the compressing.

Numbers are exact: ints have all their digits, floats the shortest that give the same float again; NaN and infinities
are the strings "nan", "inf", "-inf", as in `logclient export --format jsonl`.
"""

from __future__ import annotations

import gzip
import json
import math
from typing import Any

from fastapi import Request, Response

_WORTH_BYTES = 4096  # below, compressing is no gain
_LEVEL = 1
PROTOBUF = "application/x-protobuf"


class Refused(Exception):
    """An answer that is an error: a status, a word for programs, a sentence for people."""

    def __init__(self, status: int, reason: str, message: str, *, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s


def refusal(error: Refused) -> Response:
    """The one form that errors have."""
    headers = {}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.retry_after_s:
        headers["retry-after"] = str(error.retry_after_s)
    body = json.dumps({"error": error.reason, "message": error.message[:1000]})
    return Response(body, error.status, headers, "application/json")


def no_run(run: str) -> Refused:
    return Refused(
        404,
        "no_run",
        f"there is no run {run[:100]!r} here: `run` is an id, and /api/v1/runs?name=NAME returns that of a name",
    )


def as_json(request: Request, content: Any) -> Response:
    """`content` holds no NaN: see `number` and `runs.strict.plain`."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return packed(request, text.encode("ascii"), "application/json")


def packed(request: Request, body: bytes, kind: str) -> Response:
    """Compressed where that is worth it and the client accepts it."""
    headers = {"vary": "accept-encoding"}
    if len(body) >= _WORTH_BYTES and takes_gzip(request):
        body = gzip.compress(body, _LEVEL, mtime=0)
        headers["content-encoding"] = "gzip"
    return Response(body, 200, headers, kind)


def takes_gzip(request: Request) -> bool:
    """Does the client accept gzip?"""
    for part in request.headers.get("accept-encoding", "").split(","):
        name, _, weight = part.strip().partition(";")
        if name.strip().lower() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def numbers(values: Any) -> list[Any]:
    """A column of floats, ints, bools or texts for JSON; an array of numpy or a list."""
    found: list[Any] = values.tolist() if hasattr(values, "tolist") else list(values)
    if _are_finite(values) or all(map(_is_plain, found)):
        return found
    return [number(value) for value in found]


def _are_finite(values: Any) -> bool:
    """Is it an array whose values are all finite? NaN is not below infinity either."""
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    return kind in ("i", "u") or (kind == "f" and bool(abs(values).max(initial=0.0) < math.inf))


def number(value: Any) -> Any:
    """One value for JSON."""
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _is_plain(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def kinds(values: Any) -> str:
    """A letter per value: f float, i int, b bool, t text; of an array of numpy or a list."""
    letter = {"f": "f", "i": "i"}.get(getattr(getattr(values, "dtype", None), "kind", ""))
    if letter is not None:
        return letter * len(values)
    letters = {float: "f", int: "i", bool: "b", str: "t"}
    return "".join([letters[type(value)] for value in values])

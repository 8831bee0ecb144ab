"""Parameters of the API, with the limits of each; what cannot be a schema is checked here, with a sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Depends, Query

from logclient.shm.side_stream import SYSTEM

from ...runs.flatten import SEPARATOR
from ..limits import MAX_ID_BYTES
from ..store.interface import ANYWHERE, Filter, side_id
from .responses import Refused

MAX_FILTERS = 32
MAX_COLUMNS = 64
MAX_RUNS = 10_000  # of one page
MAX_POINTS = 1_000_000  # that may be asked for; an answer holds at most `PAGE_POINTS`
MAX_BUCKETS = 100_000
MAX_CURSOR = 49_152  # with thousands of streams; a request line may have 64 KiB
MAX_NAMED = 1_000  # runs, or keys, of one question for last values
INT64 = 1 << 63

# what a run or a key can be called: no control character that would end a text somewhere else
_NAME = r"^[^\x00]+$"

FIELDS = (
    *("id", "project", "name", "group", "state", "tag", "created_ns", "last_seen_ns", "config", "summary"),
    ANYWHERE,
)
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "contains")
SORTS = ("created_ns", "last_seen_ns", "name", "project", "state")
_NUMBERS = ("created_ns", "last_seen_ns")


def of_512_bytes(name: str, what: str) -> str:
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise Refused(400, "bad_request", f"{what}: half of a surrogate pair is no text") from None
    if size > MAX_ID_BYTES:
        raise Refused(400, "bad_request", f"{what}: {size} bytes of UTF-8, at most {MAX_ID_BYTES}")
    return name


_ID = Query(min_length=1, max_length=MAX_ID_BYTES, pattern=_NAME)


def _run(
    run: Annotated[str, Query(description="Id of the run.", min_length=1, max_length=512, pattern=_NAME)],
) -> str:
    return of_512_bytes(run, "run")


def _key(
    key: Annotated[str, Query(description="Key of the series.", min_length=1, max_length=512, pattern=_NAME)],
) -> str:
    return of_512_bytes(key, "key")


RunId = Annotated[str, Depends(_run)]
Key = Annotated[str, Depends(_key)]
Name = Annotated[str, _ID]
MaybeName = Annotated[str | None, _ID]
Step = Annotated[int | None, Query(ge=-INT64, lt=INT64)]
Cursor = Annotated[
    str, Query(max_length=MAX_CURSOR, pattern=r"^[^\x00]*$", description="`next` of the page before.")
]


def _side(
    side: Annotated[
        Literal["system", "console", "media"] | None,
        Query(
            description="Records of a side of the run, instead of what was logged: host and device metrics "
            "(system), what the program printed (console), media."
        ),
    ] = None,
    system: Annotated[
        bool,
        Query(description="Host and device metrics, instead of what was logged: as side=system."),
    ] = False,
) -> str:
    return side or (SYSTEM if system else "")


Side = Annotated[str, Depends(_side)]


def in_store(run: str, side: str) -> str:
    """Return the id by which the store knows the values that are asked for; `side`: empty for what was logged."""
    return side_id(run, side) if side else run


def filters(texts: Sequence[str]) -> list[Filter]:
    """Conditions, each a JSON array: [field, operator, value], or ["config" or "summary", key, operator, value]."""
    return [_filter(text) for text in texts]


def _filter(text: str) -> Filter:
    try:
        parts = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise _bad(text, "no JSON array") from None
    if not isinstance(parts, list) or len(parts) not in (3, 4):
        raise _bad(text, "three parts are expected, four with config and summary")
    field, key, op, value = parts if len(parts) == 4 else (parts[0], "", *parts[1:])
    if not isinstance(field, str) or field not in FIELDS:
        raise _bad(text, f"the field is none of {', '.join(FIELDS)}")
    if (len(parts) == 4) != (field in ("config", "summary")):
        raise _bad(text, "config and summary, and only they, have a key")
    if not isinstance(key, str) or (len(parts) == 4 and not key):
        raise _bad(text, "the key is no text")
    if not isinstance(op, str) or op not in OPERATORS:
        raise _bad(text, f"the operator is none of {' '.join(OPERATORS)}")
    if field == ANYWHERE and (op != "contains" or not isinstance(value, str)):
        raise _bad(text, f"{ANYWHERE} contains a text, and nothing else")
    if isinstance(value, (list, dict)):
        raise _bad(text, "the value is a text, a number, true, false or null")
    if isinstance(value, float) and not math.isfinite(value):
        raise _bad(text, "the number is too large")
    if isinstance(value, int) and not -INT64 <= value < INT64:
        value = float(value)
    if field in _NUMBERS and (isinstance(value, (str, bool)) or value is None):
        raise _bad(text, f"{field} is compared with a number")
    for part in (key, value):
        if isinstance(part, str):
            if "\0" in part:
                raise _bad(text, "NUL is in no text here")
            of_512_bytes(part, "where")
    return Filter(field, key, op, value)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _bad(text: str, why: str) -> Refused:
    return Refused(400, "bad_request", f"where={text[:200]}: {why}")


def sort_key(text: str) -> str:
    """Return the key that runs are sorted by."""
    group, mark, key = text.partition(SEPARATOR)
    if text in SORTS or (mark and key and group in ("config", "summary")):
        return of_512_bytes(text, "sort")
    raise Refused(400, "bad_request", f"sort: one of {', '.join(SORTS)}, config::KEY, summary::KEY")

"""A parameter that a path does not have is refused: one that is misspelt must not look as if it had been applied.

Not for `/healthz`, `/readyz` and pages: what asks for those may add what it likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import Request

from .responses import Refused

_MAX_SHOWN = 5


def only_known(request: Request) -> None:
    """`Refused`, with the names that there are."""
    known = tuple(dict.fromkeys(_names(request.scope["route"].dependant)))
    unknown = [name for name in dict.fromkeys(request.query_params) if name not in known]
    if unknown:
        shown = ", ".join(repr(name[:50]) for name in unknown[:_MAX_SHOWN])
        there = f"there are {', '.join(known)}" if known else "it has none"
        raise Refused(400, "bad_request", f"{shown}: no such parameter of this path; {there}")


def _names(dependant: Any) -> Iterator[str]:
    """Return the names of the query, as fastapi found them in the function of a path and in what it depends on.

    /openapi.json has them too, and that takes a while to make.
    """
    for each in dependant.dependencies:
        yield from _names(each)
    for parameter in dependant.query_params:
        yield parameter.alias

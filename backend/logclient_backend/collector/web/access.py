"""Access to the API: a bearer token, or the cookie of a session that was begun with one, with the role that is needed.

What a request with a cookie may not do, `origin_check.py` refuses before anything here is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Depends, Request, Security
from fastapi.openapi.models import APIKey, APIKeyIn
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.base import SecurityBase

from logclient.errors import Unsupported

from ..sessions import Session
from ..store.interface import StoreError
from ..tokens import ADMIN, CONTROL, EDIT, READ, Grant
from .context import Backing
from .origin_check import NoLonger
from .responses import Refused
from .session_cookie import bearer_of

SCHEME = "SessionCookie"
LOOK_S = 0.4  # of answers that last: with what reading a file of tokens takes, under 1 s after a revocation

Part = TypeVar("Part")


class _SessionCookie(SecurityBase):
    """The cookie, as a scheme of the description, where its name is filled in."""

    def __init__(self) -> None:
        about = (
            "The cookie that `POST /api/v1/session` sets; changes need the header `X-Logclient: 1` beside it."
        )
        self.model = APIKey.model_validate({"in": APIKeyIn.cookie, "name": "logclient", "description": about})
        self.scheme_name = SCHEME

    async def __call__(self, request: Request) -> str:
        found: str = request.app.state.cookie.of(request.headers.raw)
        return found


bearer = HTTPBearer(
    auto_error=False, description="A token of `logclient server token add`, with the role that is needed."
)
_session = _SessionCookie()


@dataclass(frozen=True, slots=True)
class Shown:
    """Token and cookie of a request, as it shows them."""

    token: str | None = field(repr=False)
    session: str = field(repr=False)


async def backing(request: Request) -> Backing:
    """Return the objects that the application was made with."""
    made: Backing = request.app.state.backing
    return made


async def shown(
    token: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)],
    session: Annotated[str, Security(_session)],
) -> Shown:
    """Return what the request shows; declares in the description what it may show."""
    return Shown(token.credentials if token is not None else None, session)


Stands = Annotated[Backing, Depends(backing)]
Credentials = Annotated[Shown, Depends(shown)]


def shown_in(request: Request) -> Shown:
    """Return what a request shows, for paths that need nothing."""
    raw = request.headers.raw
    return Shown(bearer_of(raw), request.app.state.cookie.of(raw))


def find(stands_on: Backing, given: Shown) -> tuple[Grant | None, Session | None]:
    """Return the rights of a caller, and the session that gives them; a token counts before a cookie."""
    grant = stands_on.check(given.token)
    if grant is not None or given.token is not None:
        return grant, None
    session = stands_on.sessions.check(given.session)
    return (session.grant, session) if session is not None else (None, None)


def _known(stands_on: Backing, given: Shown) -> Grant:
    grant, _ = find(stands_on, given)
    if grant is None:
        text = "that token is none of this collector's" if given.token is not None else "a token is needed"
        if given.token is None and given.session:
            text = "the session is over"
        raise Refused(401, "unauthorized", f"{text}: send `Authorization: Bearer TOKEN`")
    return grant


def anybody(stands_on: Stands, given: Credentials) -> Grant:
    """Any token will do."""
    return _known(stands_on, given)


def reader(stands_on: Stands, given: Credentials) -> Grant:
    """A token that may read."""
    grant = _known(stands_on, given)
    if not grant.may(READ):
        raise Refused(403, "forbidden", "this token may not read: it needs the role `read` or `admin`")
    return grant


def editor(stands_on: Stands, given: Credentials) -> Grant:
    """A token that may change names, tags, notes and groups of runs."""
    grant = _known(stands_on, given)
    if not grant.may(EDIT):
        raise Refused(403, "forbidden", "this token may not edit runs: it needs the role `edit` or `admin`")
    return grant


def controller(stands_on: Stands, given: Credentials) -> Grant:
    """A token that may ask runs to stop or to save."""
    grant = _known(stands_on, given)
    if not grant.may(CONTROL):
        text = "this token may not ask a run to stop or to save: it needs the role `control` or `admin`"
        raise Refused(403, "forbidden", text)
    return grant


def administrator(stands_on: Stands, given: Credentials) -> Grant:
    """A token that may delete."""
    grant = _known(stands_on, given)
    if not grant.may(ADMIN):
        raise Refused(403, "forbidden", "this token may not delete or undelete: it needs the role `admin`")
    return grant


# ---- answers that last -----------------------------------------------------------------------------------


def still(stands_on: Stands, given: Credentials) -> Callable[[], bool]:
    """Return a check whether the caller's token or session still counts, for answers that last.

    It takes some microseconds, reads two small files every half second at most, and may be called in any thread: every
    `LOOK_S` while the answer lasts.
    """
    first, _ = find(stands_on, given)

    def counts() -> bool:
        try:
            return find(stands_on, given)[0] == first
        except (StoreError, Unsupported):
            return False  # nobody can tell: whoever asks again is told why

    return counts


Still = Annotated[Callable[[], bool], Depends(still)]


def while_valid(parts: Iterable[Part], counts: Callable[[], bool]) -> Iterator[Part]:
    """Pass parts of an answer on; `NoLonger` once the caller's rights are gone, so that nobody takes it for whole."""
    looked = time.monotonic()
    for part in parts:
        if time.monotonic() - looked > LOOK_S:
            if not counts():
                raise NoLonger
            looked = time.monotonic()
        yield part

"""Access to the API: a bearer token with the role that a request needs. No cookies, so no other page can use one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from ..tokens import ADMIN, CONTROL, READ, Grant
from .context import Backing
from .responses import Refused

_bearer = HTTPBearer(
    auto_error=False, description="A token of `logclient server token add`, with the role that is needed."
)
Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


async def backing(request: Request) -> Backing:
    """Return the objects that the application was made with."""
    made: Backing = request.app.state.backing
    return made


Stands = Annotated[Backing, Depends(backing)]


def _known(stands_on: Backing, given: HTTPAuthorizationCredentials | None) -> Grant:
    grant = stands_on.check(given.credentials if given is not None else None)
    if grant is None:
        text = "that token is none of this collector's" if given is not None else "a token is needed"
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


def lasting_reader(stands_on: Stands, given: Credentials) -> Callable[[], bool]:
    """A token that may read, for an answer that lasts: what is returned reports whether it still may."""
    reader(stands_on, given)

    def is_valid() -> bool:
        try:
            return _known(stands_on, given).may(READ)
        except Refused:
            return False

    return is_valid


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

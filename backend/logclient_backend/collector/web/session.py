"""Login and logout of browsers: a token, or a one-time code, for a session's cookie. Nothing secret is in an address.

Each of the three answers tells the page the same: who asks, what it may do, and whether a login is needed.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response, Security
from fastapi.security import HTTPAuthorizationCredentials

from ..sessions import CODE_S, MAX_CODE_CHARACTERS, Session
from ..tokens import ROLES, Grant
from .access import Shown, Stands, bearer, find, shown_in
from .response_models import SessionState
from .responses import Refused, as_json
from .session_cookie import CODE_HEADER, SessionCookie
from .strict_query import only_known

router = APIRouter(dependencies=[Depends(only_known)])

_NOBODY = Shown(None, "")
_Token = Annotated[HTTPAuthorizationCredentials | None, Security(bearer)]
_Code = Annotated[
    str | None,
    Header(
        alias=CODE_HEADER.decode(),
        max_length=MAX_CODE_CHARACTERS,
        description="A one-time code, instead of a token.",
    ),
]


@router.get("/session", response_model=SessionState)
def look(request: Request, stands_on: Stands) -> Response:
    """Return who asks, by token or cookie, and whether a login is needed. Answers everybody."""
    return as_json(request, _state(*find(stands_on, shown_in(request))))


@router.post("/session", response_model=SessionState)
def begin(request: Request, stands_on: Stands, token: _Token, code: _Code = None) -> Response:
    """Log in: a token in `Authorization`, or a code in `X-Logclient-Code`, for a cookie with the same rights."""
    if stands_on.check(None) is not None:  # --no-auth
        return as_json(request, _state(*find(stands_on, _NOBODY)))
    grant = _by_code(stands_on, code) if code is not None else _by_token(stands_on, token)
    cookie, session = stands_on.sessions.begin(grant)
    made = as_json(request, _state(grant, session))
    made.headers.append("set-cookie", _cookie(request).setting(cookie))
    return made


@router.delete("/session", response_model=SessionState)
def end(request: Request, stands_on: Stands) -> Response:
    """Log out: the session is over here, too, and the browser forgets its cookie. Also where there is none."""
    session = stands_on.sessions.check(shown_in(request).session)
    if session is not None:
        stands_on.sessions.end(session)
    made = as_json(request, _state(*find(stands_on, _NOBODY)))
    made.headers.append("set-cookie", _cookie(request).clearing())
    return made


def _by_code(stands_on: Stands, code: str) -> Grant:
    grant = stands_on.sessions.take_code(code)
    if grant is None:
        text = (
            f"that code is unknown, was used, or is older than {CODE_S / 60:.0f} minutes: have a new one made"
        )
        raise Refused(401, "unauthorized", text)
    return grant


def _by_token(stands_on: Stands, token: HTTPAuthorizationCredentials | None) -> Grant:
    grant = stands_on.check(token.credentials) if token is not None else None
    if grant is None:
        text = "that token is none of this collector's" if token is not None else "a token is needed"
        raise Refused(401, "unauthorized", f"{text}: send `Authorization: Bearer TOKEN`")
    return grant


def _cookie(request: Request) -> SessionCookie:
    found: SessionCookie = request.app.state.cookie
    return found


def _state(grant: Grant | None, session: Session | None) -> dict[str, Any]:
    return {
        "is_login_needed": grant is None,
        "name": grant.name if grant is not None else "",
        "roles": [role for role in ROLES if grant is not None and role in grant.roles],
        "may": [role for role in ROLES if grant is not None and grant.may(role)],
        "ends_ns": session.ends_ns if session is not None else 0,
        "now_ns": time.time_ns(),
    }

"""Stands before every request: refuses foreign hosts and origins, and sets the headers that keep browsers safe.

A page of another origin can make a browser send requests here, also through a name of its own that it lets point to
this host (DNS rebinding). So:

- `Host` must be an IP address (nobody can make that point elsewhere), `localhost`, or a name that was configured;
- `Origin`, where a browser sends one, must be the host that is asked; nothing is shared across origins;
- of a request that a browser marks as another site's (`Sec-Fetch-Site`), only a page that somebody opens is answered;
- a request that may change something and comes with a session's cookie needs the header `X-Logclient: 1`, which no form
  can send, and no script of another origin without being asked about it first, which is refused;
- WebSockets are refused, there are none;
- a query string that is no UTF-8 is refused: two ids could not be distinguished.

A path below the root path is the same as one without: some proxies cut it off, others leave it.

Runs in the event loop, for each request; pure ASGI, so that answers stream.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote_to_bytes

from ..site import Site
from .session_cookie import PAGE_HEADER, SessionCookie, bearer_of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_ALWAYS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    b"cache-control": b"no-store",
}

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_ELSEWHERE = {"cross-site", "same-site"}  # the latter: another port or sub-domain
_HOST = re.compile(
    r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:]+))(?::[0-9]*)?"
)  # [address], or address or name; then a port


class NoLonger(Exception):
    """The token was revoked, or the session ended, while its answer was sent: the connection breaks off."""


class Callers:
    """Callers, for whoever looks after the connections; this one keeps nothing."""

    def enter(self, client: tuple[str, int] | None, token: str, session: str) -> bool:
        """A request begins, with that token, or that cookie of a session; whether one is valid. Must not wait."""
        return True

    def leave(self, client: tuple[str, int] | None) -> None:
        """It has ended."""

    def drop(self, client: tuple[str, int] | None) -> None:
        """Close the connection, whatever is still to be sent: its reader takes nothing."""


class OriginCheck:
    """Around the application."""

    def __init__(
        self, app: App, names: frozenset[str], callers: Callers, site: Site, cookie: SessionCookie
    ) -> None:
        """`names`: of this host, that may be asked for; `callers` receives each request."""
        self._app = app
        self._callers = callers
        self._names = {name.lower().rstrip(".") for name in (*names, site.name) if name} | {"localhost"}
        self._origin = site.origin
        self._root = site.root_path
        self._cookie = cookie

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        client = scope.get("client")
        session = self._cookie.of(scope["headers"])
        is_known = self._callers.enter(client, bearer_of(scope["headers"]) or "", session)
        path: str = scope["path"]
        if self._root and (path == self._root or path.startswith(f"{self._root}/")):
            scope = {**scope, "root_path": self._root}
            path = path[len(self._root) :]

        async def safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                there = {name.lower() for name, _ in headers}
                headers += [pair for pair in _ALWAYS.items() if pair[0] not in there]
                if not is_known:
                    headers.append((b"connection", b"close"))  # others may need the room
                message = {**message, "headers": headers}
            await send(message)

        try:
            status, reason, text = self._why_not(scope, path, has_session=bool(session))
            if status:
                await _refuse(safe, status, reason, text)
            elif not path:  # addresses on the page are relative to a folder
                await _redirect(safe, f"{self._root}/")
            else:
                await self._app(scope, receive, safe)
        except NoLonger:
            pass  # the server closes the connection in the middle of the answer, and writes a line
        finally:
            self._callers.leave(client)

    def _why_not(self, scope: Message, path: str, *, has_session: bool) -> tuple[int, str, str]:
        found: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            found.setdefault(name.lower(), []).append(value.decode("latin-1").strip())
        host = found.get(b"host", [""])
        if len(host) != 1 or not self._is_ours(host[0]):
            return (
                421,
                "foreign_host",
                (
                    "this collector does not answer to that host name: use its address, or start it with "
                    "--public-name NAME"
                ),
            )
        if path in ("/healthz", "/readyz"):
            return 0, "", ""
        for origin in found.get(b"origin", ()):
            is_own = origin.partition("://")[2].lower() == host[0].lower()
            if not is_own and not (self._origin and origin.lower() == self._origin):
                return 403, "foreign_origin", "pages of another origin may not ask this collector"
        if _ELSEWHERE.intersection(found.get(b"sec-fetch-site", ())) and found.get(b"sec-fetch-mode") != [
            "navigate"
        ]:
            return 403, "foreign_origin", "pages of another site may not ask this collector"
        if (
            has_session
            and scope["method"] not in _SAFE_METHODS
            and bearer_of(scope["headers"]) is None
            and found.get(PAGE_HEADER) != ["1"]
        ):
            return 403, "no_header", "a request with a cookie that changes something needs `X-Logclient: 1`"
        try:
            unquote_to_bytes(scope.get("query_string", b"").replace(b"+", b" ")).decode("utf-8")
        except UnicodeDecodeError:
            return 400, "bad_request", "the query string is not percent-encoded UTF-8"
        return 0, "", ""

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = (found[1] or found[2]).lower().rstrip(".")
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


async def _refuse(send: Send, status: int, reason: str, text: str) -> None:
    body = json.dumps({"error": reason, "message": text}).encode("ascii")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _redirect(send: Send, path: str) -> None:
    headers = [(b"location", path.encode("ascii")), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})

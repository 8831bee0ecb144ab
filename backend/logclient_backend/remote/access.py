"""The HTTP API that a user's server stands for, and the token that opens it.

A collector has two addresses: one that agents ship to (`grpc://host:port`), which names the other one, where it answers
questions (`http://host:port`). Both may be given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from logclient.errors import BadArgument, LogclientError

from ..wire import credentials
from ..wire.address import hide_user, is_loopback
from ..wire.messages import NotTaken
from ..wire.sanitize import one_line
from ..wire.web_address import http_of

CONFIGURED = "-"  # as an address: that of LOGCLIENT_SERVER or of the config file
_SCHEMES = ("http", "https", "grpc", "grpcs")


@dataclass(frozen=True, slots=True)
class WebAccess:
    """Address, token and certificate authority of an HTTP API."""

    url: str  # without a slash at its end
    token: str = field(default="", repr=False)
    ca: bytes | None = field(default=None, repr=False)  # PEM; None: what the system trusts

    @property
    def is_loopback(self) -> bool:
        return is_loopback(urlsplit(self.url).hostname or "")


def is_url(text: str) -> bool:
    """Is it an address of a server, rather than a path?"""
    return "://" in text and text.partition("://")[0].lower() in _SCHEMES


def unknown_scheme(text: str) -> BadArgument:
    """Return the sentence about an address that begins with another scheme."""
    return BadArgument(
        f"server {one_line(hide_user(text), 100)!r}: an address begins with http:// or https:// (the web "
        "address of a collector), or with grpc:// or grpcs:// (where agents ship to)"
    )


def find(server: str, *, token: str | None = None, token_file: str = "") -> WebAccess:
    """Access to what was given; asks the collector for its web address where that is not it.

    The token is the one given, else that of `token_file`, LOGCLIENT_TOKEN, or the config file if it names this host.
    """
    if "://" in server and not is_url(server):
        raise unknown_scheme(server)
    if server.partition("://")[0].lower() in ("http", "https"):
        url, host = _checked(server)
        opens = credentials.find_for(host, token_file, wants_token=token is None)
        return WebAccess(url, opens.token if token is None else token, opens.ca)
    access = credentials.find("" if server == CONFIGURED else server, token_file)
    if access is None:
        raise BadArgument(
            "no server is set: give --server URL, set LOGCLIENT_SERVER, or write it into "
            "~/.config/logclient/config.toml"
        )
    if token is not None:
        access = credentials.Access(access.address, token, access.ca)
    from ..wire import client  # grpc: a fifth of a second that web addresses need not pay

    try:
        described = client.describe(access)
    except NotTaken as error:
        raise ServerError(str(error)) from None
    if not described.http_address:
        raise ServerError(f"{access.address} has no web address: give it as http://HOST:PORT")
    return WebAccess(http_of(described.http_address, access.address), access.token, access.ca)


class ServerError(LogclientError):
    """The server does not answer, or not what it should; the text names it and what helps."""


class NoPath(ServerError):
    """The server has no such path: it is older than this program."""


class Unreachable(ServerError):
    """No connection, or one that broke: it may be another minute."""


def _checked(text: str) -> tuple[str, str]:
    """(address, host); `BadArgument` where it is none."""
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
        parts = urlsplit("")
    if "@" in text:
        raise BadArgument(
            "server: no user or password in the address, or others could read it; put the token into LOGCLIENT_TOKEN"
        )
    if not host or parts.query or parts.fragment:
        raise BadArgument(f"server {one_line(text, 100)!r}: expected http://HOST:PORT")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme.lower()}://{shown}{f':{port}' if port else ''}{parts.path.rstrip('/')}", host

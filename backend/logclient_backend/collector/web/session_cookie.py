"""The cookie of a session, and how it is found in a request. Pure.

- Under TLS (also a proxy's, by `--public-url https://...`) its name begins with `__Host-`: browsers take it from this
  host alone, over TLS alone, for all of its paths. Else it is sent below the root path only.
- `SameSite=Strict`: no other site's page makes a browser send it, not even by a link. `HttpOnly`: no script reads it.
- The name ends with digits of the collector's id: browsers send a cookie to all ports of a host, so two collectors on
  one host, or behind two tunnels, would log each other's users out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..sessions import SESSION_S
from ..site import Site

CODE_HEADER = b"x-logclient-code"
PAGE_HEADER = b"x-logclient"  # no form of another page can send it
_NAME = "logclient"
_DIGITS = 8


@dataclass(frozen=True, slots=True)
class SessionCookie:
    """The cookie of one collector."""

    name: str
    path: str
    is_secure: bool

    def of(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Return the value that a request has; empty: none. The first counts, which is the most exact path's."""
        wanted = self.name.encode()
        for header, value in headers:
            if header.lower() != b"cookie":
                continue
            for part in value.split(b";"):
                name, _, content = part.strip().partition(b"=")
                if name == wanted:
                    return content.decode("latin-1")
        return ""

    def setting(self, value: str) -> str:
        """Return the header that begins a session."""
        return self._header(value, int(SESSION_S))

    def clearing(self) -> str:
        """Return the header that makes a browser forget it."""
        return self._header("", 0)

    def _header(self, value: str, age_s: int) -> str:
        secure = "; Secure" if self.is_secure else ""
        return f"{self.name}={value}; Path={self.path}; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"


def cookie_of(site: Site, collector: str) -> SessionCookie:
    """Return the cookie of a collector with that id, reached as `site` has it."""
    name = f"{_NAME}-{re.sub('[^0-9A-Za-z]', '', collector)[:_DIGITS] or '0'}"
    if site.is_secure:
        return SessionCookie(f"__Host-{name}", "/", True)
    return SessionCookie(name, f"{site.root_path}/", False)


def bearer_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the bearer token of a request; None where it has none."""
    for name, value in headers:
        if name.lower() == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].decode("latin-1").strip()
    return None

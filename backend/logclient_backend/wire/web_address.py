"""The address of a collector's HTTP side, from what it says of itself over gRPC.

Pure text. What comes from a collector, or from what poses as one, is checked before it is printed or followed.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from .address import Address

MAX_URL_CHARACTERS = 400
_PUBLIC = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+(?:/[A-Za-z0-9._~/-]*)?")


def checked(url: str) -> str:
    """Return the address of a page, if it is one, without a slash at its end; else an empty text."""
    is_one = len(url) <= MAX_URL_CHARACTERS and _PUBLIC.fullmatch(url) is not None
    return url.rstrip("/") if is_one else ""


def page_of(public_url: str, http_address: str, server: Address) -> str:
    """Return the address of the page of the collector at `server`: the public one, else where its HTTP side listens.

    Empty where it names neither.
    """
    try:
        return checked(public_url) or (checked(http_of(http_address, server)) if http_address else "")
    except ValueError:
        return ""


def http_of(http_address: str, server: Address) -> str:
    """Return the address of the HTTP side: `host:port`, or `:port` on the host of `server`, as a URL.

    `ValueError` where that is no host and port.
    """
    parts = urlsplit(f"//{http_address}")
    host = parts.hostname or ""
    if host in ("", "0.0.0.0", "::"):  # the same, or everywhere: there, too
        host = server.host
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if server.is_tls else 'http'}://{shown}:{parts.port}"

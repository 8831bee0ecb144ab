"""The address by which browsers reach a collector: `--public-url`, `--root-path` and what follows from them.

Pure. A proxy may stand before the collector, end TLS there, and put it below a path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from logclient.errors import BadArgument

from ..wire.web_address import MAX_URL_CHARACTERS

_PATH = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")  # no dots in front: no `.` and `..`
_URL = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Site:
    """The address of the HTTP side, as browsers see it."""

    url: str = ""  # public, without a slash at its end; empty: nobody named one
    root_path: str = ""  # below which a proxy puts everything; empty: none
    is_secure: bool = False  # browsers come by https

    @property
    def origin(self) -> str:
        """The public origin in lower case, as browsers send it; empty: unknown."""
        parts = urlsplit(self.url)
        default = {"http": 80, "https": 443}.get(parts.scheme)
        if not parts.hostname:
            return ""
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        port = "" if parts.port in (None, default) else f":{parts.port}"
        return f"{parts.scheme}://{host}{port}"

    @property
    def name(self) -> str:
        """The host in the public address; empty: unknown."""
        return urlsplit(self.url).hostname or ""


def make(public_url: str | None, root_path: str | None, *, is_tls: bool) -> Site:
    """Check the two options; `BadArgument` states what is wrong. The path of the address is the root path."""
    url = _checked_url(public_url) if public_url else ""
    path = urlsplit(url).path
    root = path if root_path is None else root_path.rstrip("/")
    if root and not _PATH.fullmatch(root):
        raise BadArgument(
            f"--root-path {root_path!r}: expected a path like /logs, of letters, digits and . _ ~ -"
            if root_path is not None
            else f"--public-url {public_url!r}: its path has other characters than letters, digits and . _ ~ -"
        )
    if url and root != path:
        raise BadArgument(
            f"--root-path {root or '/'} is not the path of --public-url {url}: leave --root-path out, or name the same"
        )
    return Site(url, root, is_tls or url.startswith("https:"))


def _checked_url(text: str) -> str:
    wrong = BadArgument(f"--public-url {text!r}: expected https://NAME[:PORT][/PATH], or http://")
    if not _URL.fullmatch(text) or len(text) > MAX_URL_CHARACTERS:
        raise wrong
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not host or "@" in text or port == 0:
        raise wrong
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise wrong
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}{f':{port}' if port else ''}{parts.path.rstrip('/')}"

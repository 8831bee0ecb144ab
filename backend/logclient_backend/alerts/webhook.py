"""One POST of an event over HTTP or HTTPS.

Runs in a child with a deadline (`attempt.py`). `prepare` runs before it, in the process that forks the child: it loads
requests, the certificates and what both load late, so that a child opens no file on a disk, which may be frozen.

Invariants:

- no redirect is followed, no `.netrc` is asked, and no answer is read beyond its head;
- the URL is in no answer: the result is a code.
"""

from __future__ import annotations

import functools
import json
import socket
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

import requests
from requests.utils import DEFAULT_CA_BUNDLE_PATH, should_bypass_proxies

from ..remote.handshake import TlsAdapter
from .event import Event
from .targets import Target

TIMEOUT_S = 5.0  # of the whole; the child has a little more
MAX_BODY = 1 << 16
DELIVERED = "delivered"
_TLS, _REDIRECT, _STATUS, _PROXY, _TIMEOUT, _UNREACHED = (
    "tls",
    "redirect",
    "status",
    "proxy",
    "timeout",
    "unreached",
)


def prepare(ca: bytes | None = None) -> None:
    """Load what a delivery needs. Reads files of the interpreter's disk; `ca`: certificates beside the usual ones."""
    _usual_ca()
    _adapter(ca)
    try:
        # the name service loads its libraries, and the codec of host names is imported, at the first look-up
        socket.getaddrinfo("localhost", 1)
        "localhost".encode("idna")
        # a connection that nobody takes: the way of an error imports modules, too
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        _send(f"https://127.0.0.1:{port}/", b"{}", ca)
    except OSError:
        pass  # no network here


def body(event: Event, target: Target) -> bytes:
    """Return what is sent for an event."""
    if not target.is_slack:
        return event.to_json()
    text = event.line().replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return json.dumps({"text": text}).encode()


def post(url: str, content: bytes, ca: bytes | None) -> dict[str, Any]:
    """Send it; the result has a code, and for some a status."""
    if len(content) > MAX_BODY:
        return {"code": "size"}
    return _send(url, content, ca)


def _send(url: str, content: bytes, ca: bytes | None) -> dict[str, Any]:
    with requests.Session() as session:
        session.trust_env = False
        session.mount("https://", _adapter(ca))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "logclient",
            "Accept-Encoding": "identity",
        }
        try:
            answer = session.post(
                url,
                data=content,
                headers=headers,
                timeout=(TIMEOUT_S, TIMEOUT_S),
                allow_redirects=False,
                stream=True,
                proxies=_proxies(url),
            )
        except requests.exceptions.SSLError:
            return {"code": _TLS}
        except requests.exceptions.ProxyError:
            return {"code": _PROXY}
        except requests.exceptions.Timeout:
            return {"code": _TIMEOUT}
        except (requests.exceptions.RequestException, OSError):
            return {"code": _UNREACHED}
        status = answer.status_code
        answer.close()
    if 200 <= status < 300:
        return {"code": DELIVERED, "status": status}
    return {"code": _REDIRECT if 300 <= status < 400 else _STATUS, "status": status}


def _proxies(url: str) -> dict[str, str]:
    """Return the proxies of the environment, where the URL is one for them."""
    host = urlsplit(url).hostname or ""
    if host in ("localhost", "127.0.0.1", "::1") or should_bypass_proxies(url, None):
        return {}
    return {
        scheme: proxy for scheme, proxy in getproxies_environment().items() if scheme in ("http", "https")
    }


@functools.cache
def _usual_ca() -> bytes:
    with open(DEFAULT_CA_BUNDLE_PATH, "rb") as file:
        return file.read()


@functools.lru_cache(maxsize=2)
def _adapter(ca: bytes | None) -> TlsAdapter:
    return TlsAdapter(_usual_ca() if ca is None else ca, TIMEOUT_S)

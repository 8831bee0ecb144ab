"""Checks whether the first bytes of a connection are a whole opening of its protocol.

Pure. An `Opening` gets what has arrived (not consumed) and returns True once the server may have the connection. Bytes
that are no opening at all are handed on too: the server has words for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Opening: TypeAlias = Callable[[bytes], bool]

MAX_HEAD_BYTES = 1 << 16  # of an HTTP request, what uvicorn takes; a larger one is handed on, to be refused
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_TLS_HANDSHAKE = 0x16
_TLS_HEAD_BYTES = 5


def http2(head: bytes) -> bool:
    """The preface of HTTP/2, or what cannot become one."""
    return len(head) >= len(_PREFACE) or not _PREFACE.startswith(head)


def http1(head: bytes) -> bool:
    """All headers of a request, or what cannot be a request."""
    if not head[:1].isalpha() and head[:1] not in (b"\r", b"\n"):
        return True
    return b"\r\n\r\n" in head or b"\n\n" in head or len(head) >= MAX_HEAD_BYTES


def tls(head: bytes) -> bool:
    """The first record of a TLS handshake, or what cannot be one."""
    if head[0] != _TLS_HANDSHAKE:
        return True
    if len(head) < _TLS_HEAD_BYTES:
        return False
    return len(head) >= min(_TLS_HEAD_BYTES + int.from_bytes(head[3:5], "big"), MAX_HEAD_BYTES)

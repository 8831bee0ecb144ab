"""Addresses of collectors as people write them: `grpc://host:port`, `grpcs://host:port` (TLS).

Pure text: no name is looked up here. `parse` raises `BadArgument` with a sentence; what it gives back is whole.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from logclient.errors import BadArgument

from .sanitize import one_line

DEFAULT_PORT = 7788
_SCHEMES = {"grpc": False, "grpcs": True}
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_HINT = "write grpc://HOST:PORT, or grpcs://HOST:PORT with TLS"


@dataclass(frozen=True, slots=True)
class Address:
    """A host (a name, or an IP address without brackets), a port, and whether TLS is spoken there."""

    host: str
    port: int
    is_tls: bool = False

    def __str__(self) -> str:
        return f"{'grpcs' if self.is_tls else 'grpc'}://{self.target}"

    @property
    def target(self) -> str:
        """host:port, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """This machine, over no network: 127.0.0.0/8, ::1 or `localhost`."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Does only this machine answer to that name or address?"""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool(mapped.is_loopback if mapped is not None else ip.is_loopback)


def parse(text: str, *, may_be_any_port: bool = False) -> Address:
    """An address as a user gave it; without a scheme it is `grpc`, without a port 7788.

    `may_be_any_port`: port 0 is fine, for who listens.
    """
    shown = repr(one_line(hide_user(text), 100))
    scheme, found, rest = text.strip().partition("://")
    if not found:
        scheme, rest = "grpc", text.strip()
    if scheme.lower() not in _SCHEMES:
        web = " (that is the address of its web page)" if scheme.lower() in ("http", "https") else ""
        raise BadArgument(f"server {shown}: no address of a collector{web}; {_HINT}")
    rest = rest.rstrip("/")
    if "@" in rest:
        raise BadArgument(
            f"server {shown}: no user or password in the address, or others could read it; "
            "put the token into LOGCLIENT_TOKEN or the config file"
        )
    host, port = _split(rest, shown)
    if not (0 if may_be_any_port else 1) <= port <= 65535:
        raise BadArgument(f"server {shown}: ports go from 1 to 65535; {_HINT}")
    return Address(host, port, _SCHEMES[scheme.lower()])


def _split(rest: str, shown: str) -> tuple[str, int]:
    if rest.startswith("["):
        inside, closed, behind = rest[1:].partition("]")
        if not closed or (behind and not behind.startswith(":")) or not _is_ipv6(inside):
            raise BadArgument(f"server {shown}: no IPv6 address in brackets; {_HINT}")
        return inside, _port(behind[1:] if behind else "", shown)
    if rest.count(":") > 1:
        raise BadArgument(f"server {shown}: write an IPv6 address in brackets, as in grpc://[::1]:7788")
    host, _, port = rest.partition(":")
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise BadArgument(f"server {shown}: no name of a host; {_HINT}")
    return host, _port(port, shown)


def _port(text: str, shown: str) -> int:
    if not text:
        return DEFAULT_PORT
    if not (text.isascii() and text.isdecimal() and len(text) < 6):
        raise BadArgument(f"server {shown}: the port is no number; {_HINT}")
    return int(text)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def hide_user(text: str) -> str:
    """Without what may be a password."""
    scheme, found, rest = text.rpartition("://")
    return f"{scheme}{found}...@{rest.rpartition('@')[2]}" if "@" in rest else text

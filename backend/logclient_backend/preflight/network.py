"""Addresses: where other ranks reach this one, chosen as gloo chooses it, and where a host name leads."""

from __future__ import annotations

import os
import socket
from typing import Any, NamedTuple

import psutil

from logclient import config

from .lines import Line, Message

_VARIABLE = "GLOO_SOCKET_IFNAME"


class Address(NamedTuple):
    """An address of this host."""

    interface: str
    ip: str
    chosen_by: str  # what decided: a variable, the host's name, or nothing else


def own_address() -> Address:
    """Return the address of the interface that GLOO_SOCKET_IFNAME names, else of the host's name, else loopback.

    Asks a name server: only a check may call it. Raises OSError where the interface has no address.
    """
    by_ip = _addresses()
    wanted = config.environment().get(_VARIABLE, "").split(",")[0]
    if wanted:
        found = next((ip for ip, name in by_ip.items() if name == wanted), None)
        if found is None:
            names = ", ".join(sorted(set(by_ip.values())))
            raise OSError(
                f"{_VARIABLE} is {wanted!r}, and no such interface has an address; there are: {names}"
            )
        return Address(wanted, found, _VARIABLE)
    name = socket.gethostname()
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        answers = []
    for _, _, _, _, where in answers:
        ip = str(where[0])
        if _can_bind(ip):
            return Address(by_ip.get(ip, "?"), ip, f"host name {name}")
    return Address("lo", "127.0.0.1", f"host name {name} leads to no address of this host")


def look_up(line: Line, given: dict[str, Any]) -> Message:
    """Check: return the addresses of a host."""
    answers = socket.getaddrinfo(given["host"], None, type=socket.SOCK_STREAM)
    return {"ips": [*dict.fromkeys(str(where[0]) for _, _, _, _, where in answers)]}


def _addresses() -> dict[str, str]:
    """Return ip -> interface, IPv4 first."""
    found = [
        (each.family != socket.AF_INET, each.address.partition("%")[0], name)
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family in (socket.AF_INET, socket.AF_INET6) and not each.address.startswith("fe80:")
    ]
    return {ip: name for _, ip, name in sorted(found, key=lambda each: each[0])}


def _can_bind(ip: str) -> bool:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True


def listener(ip: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that listens there; port 0: at any that is free. Raises OSError with the place in its text."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        return socket.create_server((ip, port), family=family, backlog=backlog)
    except OSError as error:
        raise OSError(f"cannot listen at {ip}:{port}: {os.strerror(error.errno or 0)}") from None

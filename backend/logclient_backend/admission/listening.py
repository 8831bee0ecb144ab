"""Listening sockets for a host and a port."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

_BACKLOG = 4096  # the kernel takes at most net.core.somaxconn
_TRIES = 20  # to find one port that is free for each address of a host
# A collector that was killed leaves web processes, which hold its port until they notice that it is gone.
_FREE_S, _LOOK_S = 5.0, 0.05
_Where: TypeAlias = tuple[Any, ...]  # host, port, and more for IPv6
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listen(host: str, port: int) -> list[socket.socket]:
    """One socket for each address of the host, all on one port; `OSError` where that cannot be."""
    found = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
    )
    wheres = list(dict.fromkeys((family, where) for family, _, _, _, where in found))
    attempt, end = 0, time.monotonic() + _FREE_S
    while True:
        try:
            return _listen_all(wheres)
        except OSError as error:
            attempt += 1
            is_last = time.monotonic() > end if port else attempt == _TRIES
            if error.errno != errno.EADDRINUSE or is_last:
                raise
        if port:
            time.sleep(_LOOK_S)


def _listen_all(wheres: Sequence[tuple[socket.AddressFamily, _Where]]) -> list[socket.socket]:
    made: list[socket.socket] = []
    trouble: OSError | None = None
    try:
        for family, where in wheres:
            if made and not where[1]:
                where = (where[0], made[0].getsockname()[1], *where[2:])
            try:
                made.append(_listen_one(family, where))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                trouble = error
    except OSError:
        for each in made:
            each.close()
        raise
    if not made:
        raise trouble or OSError(errno.EADDRNOTAVAIL, "no address")
    return made


def _listen_one(family: socket.AddressFamily, where: _Where) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen(_BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made

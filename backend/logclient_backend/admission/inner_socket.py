"""The socket behind the acceptor: a gRPC server takes no connection from us, so it listens where only we can reach it.

`InnerSocket` makes that socket: bound in a private folder, opened by inode, and unlinked at once, so nobody else can
connect to it and nothing is left of it after a SIGKILL. Each connection to it has a name, by which the server's calls
are matched with the connection at the acceptor.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import tempfile
from collections.abc import Callable

from logclient.shm import modes

from .acceptor import Acceptor
from .connections import Connection
from .relay import Relay


class InnerSocket:
    """One listening socket of the server behind the acceptor."""

    def __init__(self, listen: Callable[[str], bool]) -> None:
        """`listen` gets a target like `unix:/path` and makes the server listen there; `OSError` where it does not."""
        self._prefix = f"logclient-{secrets.token_hex(8)}"
        self._numbers = itertools.count(1)
        folder = tempfile.mkdtemp(prefix="logclient-")
        name = f"{self._prefix}.sock"
        path = os.path.join(folder, name)
        try:
            at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if not listen(
                    f"unix:/proc/self/fd/{at}/{name}"
                ):  # a socket's path may have 107 bytes at most
                    raise OSError("the server does not listen on a socket of its own")
            finally:
                os.close(at)
            self._fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        finally:
            modes.remove_if_there(path)
            os.rmdir(folder)

    def hand_on(self, acceptor: Acceptor, made: socket.socket, connection: Connection) -> Relay:
        """For `Acceptor.start`."""
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = f"{self._prefix}-{next(self._numbers)}"
        key = f"unix-abstract:{name}"
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            inner.setblocking(False)
            inner.bind(f"\0{name}")
            inner.connect(f"/proc/self/fd/{self._fd}")
        except OSError:
            inner.close()
            raise
        acceptor.key(connection, key)

        def closed() -> None:
            for fd in relay.fds:
                acceptor.forget(fd)
            acceptor.gone(connection, key)

        relay = Relay(acceptor.epoll, made, inner, closed)
        for fd in relay.fds:
            acceptor.watch(fd, lambda events, fd=fd: relay.serve(fd, events))  # type: ignore[misc]
        return relay

    def close(self) -> None:
        """Nobody gets in any more; nothing where that is so."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

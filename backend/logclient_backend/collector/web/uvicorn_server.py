"""uvicorn without a listening socket: its connections come from the acceptor, one by one, with a first request.

Runs in the thread of the HTTP API; imports uvicorn, which takes long. `give` may be called from any thread.

A connection on which nobody has shown a token is closed after each answer, and by the acceptor when its room is needed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HANDSHAKE_S = 10.0  # of TLS, from the first record on


def key_of(client: tuple[str, int] | None) -> str:
    """By which the acceptor knows a connection: the client's address and port, as ASGI has them."""
    return f"{client[0]}|{client[1]}" if client else ""


class ClosableConnection:
    """A connection as the acceptor closes it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._is_closed = False

    def has(self, transport: asyncio.Transport) -> None:
        """From now on there is something to close; in the loop's thread."""
        self._transport = transport
        if self._is_closed:
            transport.abort()

    def close(self) -> None:
        self._is_closed = True
        try:
            self._loop.call_soon_threadsafe(self._abort)
        except RuntimeError:
            pass  # the loop has ended, and its connections with it

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _Protocol(H11Protocol):
    """Reports when the connection has begun and when it is lost."""

    begun: Callable[[asyncio.Transport], None]
    lost: Callable[[], None]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.begun(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost()
        super().connection_lost(exc)


class Server(uvicorn.Server):
    """`run` as uvicorn's, with `sockets=[]`."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], ending: Callable[[], None]) -> None:
        """`ready` is called once connections may be given, `ending` when answers that last have to end."""
        super().__init__(config)
        self._ending = ending
        self._turned_at = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = ready
        self._beginning: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._loop = asyncio.get_running_loop()
        self._ready()

    def end(self) -> None:
        """Let requests end, then the server; any thread."""
        self._ending()
        self.should_exit = True

    def has_turned(self, within_s: float) -> bool:
        """Has the event loop turned lately? It is asked to turn once more; any thread."""
        loop = self._loop
        if loop is None:
            self._turned_at = time.monotonic()
            return True
        try:
            loop.call_soon_threadsafe(self._turn)
        except RuntimeError:
            return False  # it has ended
        return time.monotonic() - self._turned_at < within_s

    def _turn(self) -> None:
        self._turned_at = time.monotonic()

    def give(self, made: socket.socket, lost: Callable[[], None]) -> ClosableConnection:
        """A connection; `lost` is called once it is closed, or was never served."""
        loop = self._loop
        assert loop is not None
        connection = ClosableConnection(loop)

        def begin() -> None:
            task = loop.create_task(self._begin(made, connection, lost))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

        try:
            loop.call_soon_threadsafe(begin)
        except RuntimeError as error:
            raise OSError("the HTTP API has stopped") from error
        return connection

    async def _begin(
        self, made: socket.socket, connection: ClosableConnection, lost: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()

        def protocol() -> _Protocol:
            state: Any = self.lifespan.state
            found = _Protocol(self.config, self.server_state, state, loop)
            found.begun, found.lost = connection.has, lost
            return found

        context: ssl.SSLContext | None = self.config.ssl
        waits: dict[str, Any] = {"ssl_handshake_timeout": HANDSHAKE_S} if context is not None else {}
        try:
            made.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
            )  # asyncio does it for sockets of its own only
            await loop.connect_accepted_socket(protocol, made, ssl=context, **waits)
        except (OSError, ValueError, TimeoutError):  # no TLS, or gone meanwhile
            made.close()
            lost()

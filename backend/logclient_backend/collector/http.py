"""The HTTP side: a port that listens at once, the acceptor of its connections, and uvicorn in a thread of its own.

FastAPI and uvicorn take longer to import than everything else together; who connects meanwhile waits in the socket's
queue. So they are imported in that thread, and the collector is ready without them.
"""

from __future__ import annotations

import importlib.util
import socket
import threading
from collections.abc import Callable
from typing import Any

from logclient.errors import Unsupported

from ..admission import openings
from ..admission.acceptor import Acceptor, Closable
from ..admission.connections import Connection, ConnectionLimits
from ..admission.listening import listen
from ..wire.address import Address
from .eventlog import EventLog

_GRACE_S = 5
_FLUSH_S = 1.0


def check_installed(extra: str = "server") -> None:
    """`Unsupported` names what to install: the packages, and the extra of logclient that brings them."""
    missing = [name for name in ("fastapi", "numpy", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise Unsupported(
            f"a collector needs {', '.join(missing)}, not installed here: pip install 'logclient[{extra}]'"
        )


class HttpServer:
    """Listens when it is made; `OSError` where that cannot be."""

    def __init__(
        self,
        address: Address,
        log: EventLog,
        limits: ConnectionLimits | None = None,
        *,
        tls: tuple[str, str] | None = None,
    ) -> None:
        """`tls`: files with certificate and key."""
        self._log = log
        self._tls = tls
        listening = listen(address.host, address.port)
        self.address = Address(address.host, listening[0].getsockname()[1], tls is not None)
        opening = openings.http1 if tls is None else openings.tls
        self.acceptor = Acceptor(listening, opening, limits, log=log.write, name="acceptor-http")
        self.failure = ""  # why it does not serve
        self._server: Any = None
        self._is_stopping = False
        self._thread = threading.Thread(target=self._work, name="http", daemon=True)
        self._make_app: Callable[[], Any] | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.address.target}"

    def start(self, make_app: Callable[[], Any]) -> None:
        """`make_app` is called in the thread: it imports a lot."""
        self._make_app = make_app
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Let requests end; False where that took longer."""
        self._is_stopping = True
        self.acceptor.close_listening()
        if self._server is not None:
            self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self.acceptor.stop(_FLUSH_S)
        return not self._thread.is_alive()

    def _hand_on(self, acceptor: Acceptor, made: socket.socket, connection: Connection) -> Closable:
        from .web.uvicorn_server import key_of

        key = key_of(made.getpeername()[:2])
        acceptor.key(connection, key)
        closable: Closable = self._server.give(made, lambda: acceptor.gone(connection, key))
        return closable

    def _work(self) -> None:
        try:
            import uvicorn

            from .web.uvicorn_server import Server

            assert self._make_app is not None
            certificate, key = self._tls or (None, None)
            self._server = Server(
                uvicorn.Config(
                    self._make_app(),
                    log_config=None,
                    access_log=False,
                    lifespan="off",
                    ws="none",
                    proxy_headers=False,
                    server_header=False,
                    timeout_graceful_shutdown=_GRACE_S,
                    timeout_keep_alive=30,
                    ssl_certfile=certificate,
                    ssl_keyfile=key,
                ),
                ready=lambda: self.acceptor.start(self._hand_on),
            )
            if not self._is_stopping:
                self._server.run(sockets=[])
            if not self._is_stopping:
                self.failure = "the HTTP API has stopped; restart the collector"
        except (Exception, SystemExit) as error:  # noqa: BLE001  # ingest goes on without it
            self.failure = f"the HTTP API does not work ({type(error).__name__}: {error})"
            self._log.fault("the HTTP API", error)

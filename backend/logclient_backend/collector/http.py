"""The HTTP side of one process: the acceptor of a port's connections, and uvicorn in a thread of its own.

Runs in a web process (`web_process.py`), or in the collector's own where that has none. FastAPI and uvicorn take longer
to import than everything else together; who connects meanwhile waits in the socket's queue. So they are imported in
that thread, and the collector is ready without them.
"""

from __future__ import annotations

import importlib.util
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from logclient.errors import Unsupported

from ..admission import openings
from ..admission.acceptor import Acceptor, Closable
from ..admission.connections import Connection, ConnectionLimits
from .eventlog import EventLog

_GRACE_S = 5
_FLUSH_S = 1.0
_TURN_S = 10.0  # in which an event loop turns that does not hang


def check_installed(extra: str = "server") -> None:
    """`Unsupported` names what to install: the packages, and the extra of logclient that brings them."""
    missing = [name for name in ("fastapi", "numpy", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        what = "the dashboard" if extra == "ui" else "a collector"
        raise Unsupported(
            f"{what} needs {', '.join(missing)}, not installed here: pip install 'logclient[{extra}]'"
        )


class HttpServer:
    """Serves the connections of listening sockets, which it closes at the end."""

    def __init__(
        self,
        listening: Sequence[socket.socket],
        log: EventLog,
        limits: ConnectionLimits | None = None,
        *,
        tls: tuple[str, str] | None = None,
    ) -> None:
        """`tls`: files with certificate and key."""
        self._log = log
        self._tls = tls
        opening = openings.http1 if tls is None else openings.tls
        self.acceptor = Acceptor(listening, opening, limits, log=log.write, name="acceptor-http")
        self.failure = ""  # why it does not serve
        self._server: Any = None
        self._is_stopping = False
        self._thread = threading.Thread(target=self._work, name="http", daemon=True)
        self._make_app: Callable[[], Any] | None = None

    @property
    def turned_away(self) -> int:
        """Connections that were closed without having shown a token."""
        return self.acceptor.turned_away

    @property
    def is_serving(self) -> bool:
        """Are connections answered?"""
        return self._server is not None and not self.failure and not self._is_stopping

    @property
    def is_well(self) -> bool:
        """False where its event loop hangs."""
        return self._server is None or bool(self._server.has_turned(_TURN_S))

    def start(self, make_app: Callable[[], Any]) -> None:
        """`make_app` is called in the thread: it imports a lot."""
        self._make_app = make_app
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Let requests end; False where that took longer."""
        self._is_stopping = True
        self.acceptor.close_listening()
        if self._server is not None:
            self._server.end()
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
            app = self._make_app()
            certificate, key = self._tls or (None, None)
            self._server = Server(
                uvicorn.Config(
                    app,
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
                ending=app.state.live.stop,
            )
            if not self._is_stopping:
                self._server.run(sockets=[])
            if not self._is_stopping:
                self.failure = "the HTTP API has stopped; restart the collector"
        except (Exception, SystemExit) as error:  # noqa: BLE001  # ingest goes on without it
            self.failure = f"the HTTP API does not work ({type(error).__name__}: {error})"
            self._log.fault("the HTTP API", error)

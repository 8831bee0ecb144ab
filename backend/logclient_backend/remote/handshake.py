"""The TLS side of questions to a collector: whom to believe, and how long a handshake may take.

Runs wherever `Server` does. urllib3 gives a handshake no longer than a connection, and calls one that is late an answer
that is: but a collector that has just started takes connections at once, and shakes hands once its HTTP side is
imported, as on a busy machine, many seconds later.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPSConnection
from urllib3.connectionpool import HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError

from logclient.errors import BadArgument


class TlsAdapter(HTTPAdapter):
    """Handshakes within `limit_s`; believes `ca` and those that it signed and no others (None: those of the system)."""

    def __init__(self, ca: bytes | None, limit_s: float) -> None:
        """`BadArgument` where `ca` is no certificate."""
        self._more: dict[str, Any] = {} if ca is None else {"ssl_context": _context(ca)}
        self._pools = {"https": _pool(limit_s)}
        super().__init__()

    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        super().init_poolmanager(*args, **(more | self._more))
        self.poolmanager.pool_classes_by_scheme = {**self.poolmanager.pool_classes_by_scheme, **self._pools}

    def proxy_manager_for(self, *args: Any, **more: Any) -> Any:
        manager = super().proxy_manager_for(*args, **(more | self._more))
        manager.pool_classes_by_scheme = {**manager.pool_classes_by_scheme, **self._pools}
        return manager

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        if not self._more:
            super().cert_verify(conn, url, verify, cert)  # type: ignore[no-untyped-call]
        else:  # it would add what the system trusts
            conn.cert_reqs = "CERT_REQUIRED"


def _context(ca: bytes) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise BadArgument("ca of the config file is no certificate in PEM form") from None
    # as grpc does: one that somebody else signed may be trusted for itself
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _pool(limit_s: float) -> type[HTTPSConnectionPool]:
    class Connection(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            made = super()._new_conn()
            made.settimeout(limit_s)  # what follows a connection: a proxy's answer, and the handshake
            return made

        def connect(self) -> None:
            try:
                super().connect()
            except TimeoutError as error:  # else it would be reported as an answer that is late
                raise ConnectTimeoutError(str(error)) from error

    class Pool(HTTPSConnectionPool):
        ConnectionCls = Connection

    return Pool

"""What may answer at a collector's address and is none: TCP servers in a thread that speak nonsense, or nothing."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

from logclient_backend.wire.address import Address
from tools.faults.strangers import frame, headers

HTML = b"<html><body>" + b"Please log in to use this network. " * 20 + b"</body></html>"


class Peer:
    """A TCP server on loopback; each connection is given to `answer` in a thread of its own, then closed."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.address = Address("127.0.0.1", self._socket.getsockname()[1])
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # a thread in accept() keeps a closed socket listening
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._answer(connection)


def garbage(connection: socket.socket) -> None:
    """Bytes that mean nothing."""
    connection.recv(100)
    connection.sendall(bytes(range(256)) * 64)


def portal(connection: socket.socket) -> None:
    """What a hotel's network answers to everything: a page, in HTTP/1.1."""
    connection.recv(1 << 16)
    connection.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(HTML) + HTML
    )


def proxy(status: int) -> Callable[[socket.socket], None]:
    """What a proxy in front of a collector answers to each call while that is away: a status of HTTP, over HTTP/2."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(frame(4, 0, 0))
        heard = connection.recv(1 << 16)
        while (found := calls(heard)) is None:
            more = connection.recv(1 << 16)
            if not more:
                return
            heard += more
        pairs = headers(((b":status", b"%d" % status), (b"content-type", b"text/html")))
        connection.sendall(frame(4, 1, 0) + frame(1, 5, found, pairs))
        while connection.recv(1 << 16):
            pass

    return answer


def calls(heard: bytes) -> int | None:
    """The stream of the first HEADERS frame behind the preface; None: it has not come."""
    at = 24
    while at + 9 <= len(heard):
        if heard[at + 3] == 1:
            return int.from_bytes(heard[at + 5 : at + 9], "big")
        at += 9 + int.from_bytes(heard[at : at + 3], "big")
    return None


def long_error(connection: socket.socket) -> None:
    """20 MB of text where a status should be."""
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 500 Oops\r\nContent-Length: 20000000\r\n\r\n" + b"Traceback!\n" * 2_000_000)


def reset(connection: socket.socket) -> None:
    """The connection is cut at once, with a reset."""
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def silence(connection: socket.socket) -> None:
    """It reads, and says nothing."""
    while connection.recv(1 << 16):
        pass


class Proxy(Peer):
    """An HTTP proxy that leads everything to one address; it notes what it was asked."""

    def __init__(self, target: Address, login: str = "") -> None:
        """`login`: "user:password" that is wanted; without it 407 is the answer."""
        self.target = target
        self.login = login
        self.asked: list[str] = []
        self.logins: list[str] = []
        super().__init__(self._connect)

    def _connect(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            more = connection.recv(4096)
            if not more:
                return
            head += more
        lines = head.decode("latin-1").split("\r\n")
        self.asked.append(lines[0])
        given = [line.partition(":")[2] for line in lines if line.lower().startswith("proxy-authorization:")]
        login = base64.b64decode(given[0].split()[-1]).decode() if given else ""
        self.logins.append(login)
        if login != self.login:
            connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            return
        with socket.create_connection((self.target.host, self.target.port)) as onward:
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=pump, args=(onward, connection), daemon=True)
            back.start()
            pump(connection, onward)
            back.join(5)


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)

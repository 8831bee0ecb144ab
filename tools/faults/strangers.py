"""Clients without a token that crowd the ports of a collector: silent connections, silent streams, large hellos.

    python -m tools.faults.strangers GRPC_PORT HTTP_PORT --from 127.0.0.2,127.0.0.3 --seconds 20

A process of its own, on loopback, so that its sockets and its work are not those of whoever measures. Each connection
comes from one of the given addresses, and one that the collector has closed is opened again, at a bounded pace. Prints
`ready` once all were opened, and at the end one JSON object with what became of them.

HTTP/2 is written by hand here: grpc offers no way to choose the address from which it connects.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HELLO_BYTES = 15 << 20
READY_S = 60.0

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _WINDOW = 0, 1, 4, 8
_END_HEADERS, _ACK = 4, 1
_WINDOW_BYTES, _FRAME_BYTES = 65_535, 16_384
_SHIP = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/logclient.v1.Ingest/Ship"),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(body))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + body


def headers(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Literals without index and without compression; each shorter than 127 bytes."""
    return b"".join(
        b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value for name, value in pairs
    )


OPENING = _PREFACE + frame(_SETTINGS, 0, 0) + frame(_HEADERS, _END_HEADERS, 1, headers(_SHIP))


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many of each kind at once."""

    silent: int = 2000  # connections, half of them to each port
    half: int = 0  # connections to the HTTP port that have sent half a line
    streams: int = 300
    hellos: int = 60
    again_per_s: float = 400.0  # connections that are opened again, together


@dataclass(slots=True)
class Stranger:
    """One client: what it says first, and how far it is with a large hello."""

    port: int
    source: str
    says: bytes
    hello_bytes: int = 0
    socket: socket.socket | None = None
    left: int = 0
    window: list[int] = field(
        default_factory=lambda: [_WINDOW_BYTES, _WINDOW_BYTES]
    )  # of connection and stream
    heard: bytes = b""
    opened: int = 0
    closed: int = 0

    def open(self) -> None:
        """Connect and say what there is to say; without waiting for an answer."""
        made = socket.socket()
        try:
            made.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT: any number of ports
            made.bind((self.source, 0))
            made.settimeout(2.0)
            made.connect(("127.0.0.1", self.port))
            made.setblocking(False)
            if self.says:
                made.send(self.says)
        except OSError:
            made.close()
            return
        self.socket, self.left, self.heard = made, self.hello_bytes, b""
        self.window = [_WINDOW_BYTES, _WINDOW_BYTES]
        self.opened += 1
        self.push()

    def look(self) -> None:
        """Read what came."""
        assert self.socket is not None
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            self.closed += 1
            return
        if self.hello_bytes:
            self.heard += data
            self._take_frames()
            self.push()

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _take_frames(self) -> None:
        while len(self.heard) >= 9:
            size = int.from_bytes(self.heard[:3], "big")
            if len(self.heard) < 9 + size:
                return
            kind, stream = self.heard[3], int.from_bytes(self.heard[5:9], "big")
            if kind == _WINDOW:
                self.window[min(stream, 1)] += int.from_bytes(self.heard[9:13], "big")
            elif kind == _SETTINGS and not self.heard[4] & _ACK:
                for at in range(9, 9 + size, 6):
                    name, value = struct.unpack(">HI", self.heard[at : at + 6])
                    if name == 4:  # SETTINGS_INITIAL_WINDOW_SIZE
                        self.window[1] += value - _WINDOW_BYTES
            self.heard = self.heard[9 + size :]

    def push(self) -> None:
        """Send of the large hello what its window lets through."""
        while self.socket is not None and self.left > 0 and min(self.window) > 0:
            size = min(self.left, _FRAME_BYTES, *self.window)
            body = b"\0" * size
            if self.left == self.hello_bytes:
                body = (b"\0" + struct.pack(">I", self.hello_bytes) + body)[:size]
            try:
                self.socket.setblocking(True)
                self.socket.settimeout(0.5)
                self.socket.sendall(frame(_DATA, 0, 1, body))
                self.socket.setblocking(False)
            except OSError:
                self.close()
                self.closed += 1
                return
            self.left -= size
            self.window = [each - size for each in self.window]


def crowd(grpc_port: int, http_port: int, sources: Sequence[str], of: Crowd) -> list[Stranger]:
    """All of them, not connected yet."""
    made = [Stranger((grpc_port, http_port)[at % 2], "", b"") for at in range(of.silent)]
    made += [Stranger(http_port, "", b"GET /healthz HT") for _ in range(of.half)]
    made += [Stranger(grpc_port, "", OPENING) for _ in range(of.streams)]
    made += [Stranger(grpc_port, "", OPENING, HELLO_BYTES) for _ in range(of.hellos)]
    for at, each in enumerate(made):
        each.source = sources[at // 2 % len(sources)]
    return made


def stand_there(strangers: list[Stranger], of: Crowd, seconds: float) -> None:
    """Open all, and those that are closed again and again, until the time is over."""
    for each in strangers:
        each.open()
    print("ready", flush=True)
    began = time.monotonic()
    again = 0
    poll = select.poll()
    watched: dict[int, Stranger] = {}
    while (passed := time.monotonic() - began) < seconds:
        for each in strangers:
            if each.socket is None and again < passed * of.again_per_s:
                again += 1
                each.open()
            if each.socket is not None and watched.get(each.socket.fileno()) is not each:
                watched[each.socket.fileno()] = each
                poll.register(each.socket.fileno(), select.POLLIN)
        for fd, _ in poll.poll(50):
            each = watched[fd]
            if each.socket is None or each.socket.fileno() != fd:
                poll.unregister(fd)
                del watched[fd]
                continue
            each.look()
            if each.socket is None:
                poll.unregister(fd)
                del watched[fd]


@contextmanager
def present(
    grpc_port: int, http_port: int, sources: Sequence[str], of: Crowd, seconds: float
) -> Iterator[subprocess.Popen[str]]:
    """They crowd the ports inside the `with`, for at most so long."""
    words = [sys.executable, "-m", "tools.faults.strangers", str(grpc_port), str(http_port)]
    words += ["--from", ",".join(sources), "--seconds", str(seconds)]
    for name in ("silent", "half", "streams", "hellos"):
        words += [f"--{name}", str(getattr(of, name))]
    words += ["--again", str(of.again_per_s)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], READY_S)
        if not ready or process.stdout.readline() != "ready\n":
            raise RuntimeError("The strangers did not come.")
        yield process
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("grpc_port", type=int)
    parser.add_argument("http_port", type=int)
    parser.add_argument("--from", dest="sources", default="127.0.0.1")
    parser.add_argument("--seconds", type=float, default=20.0)
    usual = Crowd()
    for name in ("silent", "half", "streams", "hellos"):
        parser.add_argument(f"--{name}", type=int, default=getattr(usual, name))
    parser.add_argument("--again", type=float, default=usual.again_per_s)
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(5)  # it is the collector that is looked at
    of = Crowd(given.silent, given.half, given.streams, given.hellos, given.again)
    strangers = crowd(given.grpc_port, given.http_port, given.sources.split(","), of)
    stand_there(strangers, of, given.seconds)
    facts = {
        "strangers": len(strangers),
        "opened": sum(each.opened for each in strangers),
        "closed": sum(each.closed for each in strangers),
        "open": sum(each.socket is not None for each in strangers),
        "hello_bytes": sum(each.hello_bytes - each.left for each in strangers if each.hello_bytes),
    }
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()

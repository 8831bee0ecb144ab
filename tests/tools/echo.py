"""A small server that gives back what it gets, and a client that asks it; run as processes on simulated hosts."""

from __future__ import annotations

import socket
import socketserver
import sys
from pathlib import Path

FILE = str(Path(__file__).resolve())


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


def serve(address: str) -> None:
    with _Server((address, 0), _Echo) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


def ask(name: str, port: int, size: int, timeout_s: float) -> str:
    """`ok`, or the kind of the error in one word."""
    try:
        with socket.create_connection((name, port), timeout_s) as connection:
            connection.sendall(b"x" * size)
            got = 0
            while got < size:
                data = connection.recv(65536)
                if not data:
                    return "closed"
                got += len(data)
    except socket.gaierror:
        return "unknown"
    except TimeoutError:
        return "silence"
    except ConnectionError:
        return "refused"
    except OSError:
        return "unreachable"
    return "ok"


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        print(ask(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])), flush=True)

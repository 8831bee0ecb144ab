"""Receivers of alerts for tests: a real HTTP or HTTPS server that answers in each odd way, and files of targets."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from logclient_backend.alerts.delivery import Delivery

DEADLINE_S = 60.0


class Hooks:
    """What came, by path; each path answers in its way: /ok, /500, /404, /redirect, /hang, /drip, /endless."""

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        self.came: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, list[int]] = {}  # path: statuses of the next answers
        self._over = threading.Event()
        hooks = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                hooks.came.append((self.path, json.loads(self.rfile.read(size))))
                hooks._answer(self)

            def do_GET(self) -> None:
                hooks.came.append((f"GET {self.path}", {}))
                self.send_error(405)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        scheme = "http"
        if certificate is not None:
            scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def of(self, path: str) -> list[dict[str, Any]]:
        return [content for at, content in list(self.came) if at == path]

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        name = handler.path.strip("/").partition("/")[0]
        queued = self.answers.get(handler.path)
        try:
            if queued:
                handler.send_response(queued.pop(0))
                handler.end_headers()
            elif name.isdecimal():
                handler.send_response(int(name))
                handler.end_headers()
            elif name == "redirect":
                handler.send_response(307)
                handler.send_header("Location", f"{self.url}/ok")
                handler.end_headers()
            elif name == "hang":
                self._over.wait(DEADLINE_S)
            elif name == "drip":  # each byte within any time limit between two
                while not self._over.wait(0.2):
                    handler.wfile.write(b"H")
                    handler.wfile.flush()
            elif name == "endless":
                handler.send_response(200)
                handler.end_headers()
                while not self._over.is_set():
                    handler.wfile.write(b"x" * 65536)
            else:
                handler.send_response(200)
                handler.end_headers()
        except OSError:
            pass  # the sender has gone

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(DEADLINE_S)


@contextmanager
def hooks(certificate: tuple[Path, Path] | None = None) -> Iterator[Hooks]:
    made = Hooks(certificate)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def target_file(folder: Path, text: str) -> Path:
    """A file of targets that nobody else may write to."""
    path = folder / "alerts.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def webhook(name: str, url: str, more: str = "") -> str:
    return f'[[targets]]\nname = "{name}"\nurl = "{url}"\n{more}\n'


def look_until(delivery: Delivery, condition: Any, what: str) -> None:
    """Look, as an observer does, until the condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: {delivery.report()}"
        delivery.look()
        time.sleep(0.01)

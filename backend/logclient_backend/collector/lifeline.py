"""The line between the committing process and a web process: JSON, a line each, both ways, over a pair of sockets.

It is also what the life of the web process hangs on: where its other end is closed, the committing process is gone. One
thread at each end; nothing here waits for the other side, except `wait`.

Invariant: what waits to be sent is bounded; a side that takes nothing loses what is sent to it (`has_room`).
"""

from __future__ import annotations

import json
import select
import socket
import threading
from typing import Any

MAX_WAITING = 4 << 20  # bytes that wait for the other side
_MAX_LINE = 4 << 20
_PART = 1 << 16


class Gone(Exception):
    """The other side has closed the line, or sent what is none."""


class Lifeline:
    """One end."""

    def __init__(self, made: socket.socket) -> None:
        made.setblocking(False)
        self._socket = made
        self._lock = threading.Lock()
        self._out = b""
        self._in = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_room(self) -> bool:
        """Has the other side taken all that was sent?"""
        return not self._out

    def send(self, content: dict[str, Any]) -> bool:
        """Send it, now or with what is sent next; any thread. False where it is let go, since too much waits."""
        with self._lock:
            if len(self._out) > MAX_WAITING:
                return False
            self._out += json.dumps(content).encode() + b"\n"
            self._flush()
            return True

    def flush(self) -> None:
        """Send what waits, as far as it goes."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        while self._out:
            try:
                sent = self._socket.send(self._out[:_PART], socket.MSG_NOSIGNAL)
            except (BlockingIOError, OSError):
                return  # an end is noticed when it is read
            self._out = self._out[sent:]

    def take(self) -> list[dict[str, Any]]:
        """Return what has come. `Gone` where that was the end."""
        while True:
            try:
                part = self._socket.recv(_PART)
            except BlockingIOError:
                break
            except OSError as error:
                raise Gone from error
            if not part:
                raise Gone
            self._in += part
            if len(self._in) > _MAX_LINE and b"\n" not in self._in:
                raise Gone
        *lines, rest = self._in.split(b"\n")
        self._in = bytearray(rest)
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise Gone from error

    def wait(self, timeout_s: float) -> None:
        """Return once something has come, or the time is over."""
        watched = select.poll()
        watched.register(self._socket, select.POLLIN)
        watched.poll(timeout_s * 1e3)

    def close(self) -> None:
        self._socket.close()

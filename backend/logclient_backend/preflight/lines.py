"""`Line`: messages as lines of JSON over a socket that never blocks."""

from __future__ import annotations

import json
import select
import socket
import time
from typing import Any

MAX_BYTES = 16 << 20  # of one message: addresses of some thousand ranks
_CHUNK = 1 << 18

Message = dict[str, Any]


class Line:
    """One end. What cannot be sent at once waits until `flush`."""

    def __init__(self, sock: socket.socket, max_bytes: int = MAX_BYTES) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.max_bytes = max_bytes  # of what has come and is no whole message yet
        self.is_closed = False  # by the other end, or by an error
        self._in = bytearray()
        self._out = bytearray()

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def is_waiting(self) -> bool:
        """Is there anything left to send?"""
        return bool(self._out) and not self.is_closed

    def send(self, message: Message) -> None:
        """Send it, now or with the next `flush`."""
        self._out += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes."""
        try:
            while self._out and not self.is_closed:
                del self._out[: self.socket.send(self._out[:_CHUNK])]
        except BlockingIOError:
            if len(self._out) > MAX_BYTES:
                self.is_closed = True
        except OSError:
            self.is_closed = True

    def receive(self) -> list[Message]:
        """Return the messages that have come. A line that is no message closes this end."""
        try:
            while True:
                came = self.socket.recv(_CHUNK)
                self._in += came
                if not came or len(self._in) > self.max_bytes:
                    self.is_closed = True
                    break
        except BlockingIOError:
            pass
        except OSError:
            self.is_closed = True
        *lines, rest = self._in.split(b"\n")
        self._in = bytearray(rest)
        messages = []
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                self.is_closed = True
                break
            messages.append(message)
        return messages

    def wait(self, timeout_s: float) -> list[Message]:
        """Return the next messages; none at the deadline, or where the other end is closed."""
        deadline = time.monotonic() + timeout_s
        while not self.is_closed:
            found = self.receive()
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            select.select([self.socket], [self.socket] if self.is_waiting else [], [], left)
            self.flush()
        return []

    def wait_sent(self, timeout_s: float = 10.0) -> None:
        """Wait until all is sent, or nobody reads any more."""
        deadline = time.monotonic() + timeout_s
        while self.is_waiting and time.monotonic() < deadline:
            select.select([], [self.socket], [], 0.1)
            self.flush()

    def close(self) -> None:
        self.is_closed = True
        self.socket.close()

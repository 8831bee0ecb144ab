"""The way between a client and a server that listens on a socket of this process: bytes, both directions, unread.

`Relay` belongs to the acceptor's thread, which calls `serve` when one of its two sockets can be read or written.

Invariants:

- of each direction at most one chunk is kept here; while it is kept nothing more is read, so the sender waits;
- what one side sent before it ended reaches the other side, which then sees the end;
- both sockets are closed together, once.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

CHUNK_BYTES = 1 << 16
_TURNS = 8  # chunks of one direction before others have their turn
_TO_READ = select.EPOLLIN
_GONE = select.EPOLLHUP | select.EPOLLERR

_buffer = memoryview(bytearray(CHUNK_BYTES))


class _Side:
    """One socket, and what is kept for it."""

    __slots__ = ("fd", "has_ended", "interest", "is_shut", "kept", "socket")

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.fd = opened.fileno()
        self.kept = b""  # to be written there
        self.has_ended = False  # nothing more comes from there
        self.is_shut = False  # our side is shut down: nothing more comes from us
        self.interest = 0  # what the epoll watches for


class Relay:
    """One connection with both its ends."""

    def __init__(
        self,
        epoll: select.epoll,
        outer: socket.socket,
        inner: socket.socket,
        closed: Callable[[], None],
        buffer: memoryview = _buffer,
    ) -> None:
        """`closed` is called once both sockets are."""
        self._epoll = epoll
        self._sides = (_Side(outer), _Side(inner))
        self._closed = closed
        self._buffer = buffer
        self.is_open = True
        self.ending_since = 0.0  # since when one side has ended; 0: none has
        self._watch()

    @property
    def fds(self) -> tuple[int, int]:
        return self._sides[0].fd, self._sides[1].fd

    def serve(self, fd: int, events: int) -> None:
        """Move what can be moved."""
        side, other = self._sides if fd == self._sides[0].fd else self._sides[::-1]
        try:
            if events & (select.EPOLLOUT | _GONE) and side.kept:
                self._write(side)
            if events & (_TO_READ | _GONE) and not other.kept and not side.has_ended:
                self._read(side, other)
            for each, opposite in (self._sides, self._sides[::-1]):
                if opposite.has_ended and not each.kept and not each.is_shut:
                    each.is_shut = True
                    each.socket.shutdown(socket.SHUT_WR)
                    self.ending_since = time.monotonic()
        except OSError:
            self.close()
            return
        if all(each.has_ended and not each.kept for each in self._sides):
            self.close()
            return
        self._watch()

    def close(self) -> None:
        """Both sockets; nothing where they are closed."""
        if not self.is_open:
            return
        self.is_open = False
        for side in self._sides:
            side.kept = b""
            side.socket.close()  # which takes it out of the epoll too
        self._closed()

    def _read(self, side: _Side, other: _Side) -> None:
        buffer, receive, send = self._buffer, side.socket.recv_into, other.socket.send
        for _ in range(_TURNS):
            try:
                count = receive(buffer)
            except BlockingIOError:
                return
            if not count:
                side.has_ended = True
                return
            if other.has_ended:
                continue  # nobody reads it any more
            try:
                sent = send(buffer[:count])
            except BlockingIOError:
                sent = 0
            if sent < count:
                other.kept = bytes(buffer[sent:count])
                return
            if count < len(buffer):
                return  # that was all

    def _write(self, side: _Side) -> None:
        try:
            side.kept = side.kept[side.socket.send(side.kept) :]
        except BlockingIOError:
            pass

    def _watch(self) -> None:
        for side, other in (self._sides, self._sides[::-1]):
            wanted = 0 if other.kept or side.has_ended else _TO_READ
            if side.kept:
                wanted |= select.EPOLLOUT
            if wanted == side.interest:
                continue
            if not wanted:
                self._epoll.unregister(side.fd)  # else its end would be reported again and again
            elif not side.interest:
                self._epoll.register(side.fd, wanted)
            else:
                self._epoll.modify(side.fd, wanted)
            side.interest = wanted

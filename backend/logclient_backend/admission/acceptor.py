"""The thread that accepts the connections of one port, and hands on those that have sent something.

`Acceptor.start` takes a function that gets a connection whose opening is whole. It returns what the acceptor closes
when that connection has to leave. A server behind a socket of its own is reached through `inner_socket.py`.

Invariants:

- a connection without a whole opening never leaves this thread, and is closed by a deadline or to make room;
- there is always room for one that shows a token, as long as the descriptors last: connections without one are bounded;
- what fails here is reported once a minute at most, and the thread goes on.

Threads: one of its own. `enter`, `leave`, `refuse` and `drop` may be called from any, `gone` too.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from .connections import INSIDE, KNOWN, OUTSIDE, Connection, ConnectionLimits, Connections, share_of
from .openings import MAX_HEAD_BYTES, Opening

_ACCEPTS = 64  # in a row, before others have their turn
_FIRST_PEEK = 4096
_SWEEP_S = 0.1
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S = 0.1  # without accepting, where there are no descriptors
_ENDING_S = 2.0  # for a client to take the last words of a server that has closed the connection


class Closable(Protocol):
    """The handler of a connection. `close` is called in the acceptor's thread, perhaps twice."""

    def close(self) -> None: ...


HandOn: TypeAlias = Callable[["Acceptor", socket.socket, Connection], Closable | None]


class Acceptor:
    """One port's. Listening sockets are given; `start` once, `stop` once."""

    def __init__(
        self,
        listening: Sequence[socket.socket],
        opening: Opening,
        limits: ConnectionLimits | None = None,
        *,
        log: Callable[[str, str], None] = lambda cause, text: None,
        name: str = "acceptor",
    ) -> None:
        """`log` takes a cause and a line for the log."""
        self.epoll = select.epoll()
        self.turned_away = 0  # connections that were closed without having shown a token
        self._listening = list(listening)
        self._opening = opening
        self._log = log
        self._connections = Connections(limits or ConnectionLimits())
        self._by_key: dict[str, Connection] = {}
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._lock = threading.RLock()
        self._hand_on: HandOn | None = None
        self._is_accepting = False
        self._accept_at = 0.0  # not before
        self._is_stopping = False
        self._orders: deque[Callable[[], None]] = deque()
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.epoll.register(self._woken, select.EPOLLIN)
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    # ---- for the server ---------------------------------------------------------------------------------------

    def start(self, hand_on: HandOn) -> None:
        self._hand_on = hand_on
        self._thread.start()

    def close_listening(self) -> None:
        """Nobody comes in any more; connections stay."""
        self._order(self._stop_listening)

    def stop(self, timeout_s: float) -> None:
        """Let connections take what was written to them, then close everything."""
        if self._is_stopping:
            return
        deadline = time.monotonic() + timeout_s
        self._order(self._stop_listening)
        if self._thread.ident is None:
            self._close_all()
            return
        while len(self._connections) and time.monotonic() < deadline and self._thread.is_alive():
            time.sleep(0.01)
        self._is_stopping = True
        self._wake()
        self._thread.join(5.0)

    def key(self, connection: Connection, key: str) -> None:
        """By what the server calls it."""
        with self._lock:
            if connection.stage:
                self._by_key[key] = connection

    def peer_of(self, key: str) -> str:
        """Address and port, for a log."""
        connection = self._by_key.get(key)
        return connection.peer if connection is not None else ""

    def enter(self, key: str, who: str) -> None:
        """A call begins on that connection; `who`: the holder of its token, empty for none."""
        with self._lock:
            connection = self._by_key.get(key)
            if connection is None:
                return
            connection.calls += 1
            connection.moved = time.monotonic()
            if who and connection.stage == INSIDE:
                connection.who = who
                if self._connections.is_full(KNOWN):
                    leaving = self._connections.least_useful(KNOWN, connection.moved)
                    self._leave(leaving or connection)
                self._connections.move(connection, KNOWN)
                if self._connections.count(OUTSIDE):
                    self._wake()  # there is room inside

    def leave(self, key: str) -> None:
        """The call has ended."""
        with self._lock:
            connection = self._by_key.get(key)
            if connection is not None:
                connection.calls -= 1
                connection.moved = time.monotonic()

    def refuse(self, key: str) -> None:
        """It has shown no token, or none of ours, and was refused."""
        with self._lock:
            connection = self._by_key.get(key)
            if connection is not None and connection.stage == INSIDE:
                connection.is_refused = True
                connection.moved = time.monotonic()

    def drop(self, key: str) -> None:
        """Close it: its server is done with it, and its client takes nothing."""
        with self._lock:
            connection = self._by_key.get(key)
            if connection is not None:
                self._leave(connection)

    def gone(self, connection: Connection, key: str = "") -> None:
        """The connection is closed."""
        with self._lock:
            self._connections.remove(connection)
            if key and self._by_key.get(key) is connection:
                del self._by_key[key]
            if self._connections.count(OUTSIDE):
                self._wake()

    def watch(self, fd: int, handler: Callable[[int], None]) -> None:
        """Call it with the events of that descriptor, in the acceptor's thread; for what is registered in `epoll`."""
        self._handlers[fd] = handler

    def forget(self, fd: int) -> None:
        self._handlers.pop(fd, None)

    # ---- the thread -------------------------------------------------------------------------------------------

    def _order(self, what: Callable[[], None]) -> None:
        self._orders.append(what)
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            if self._woken >= 0:
                os.eventfd_write(self._woken, 1)

    def _work(self) -> None:
        for each in self._listening:
            self._handlers[each.fileno()] = lambda events, each=each: self._accept(each)  # type: ignore[misc]
        swept = 0.0
        while not self._is_stopping:
            try:
                self._turn()
                if time.monotonic() - swept > _SWEEP_S:
                    swept = time.monotonic()
                    self._sweep(swept)
            except Exception as error:  # noqa: BLE001  # a fault with one connection leaves the others alone
                self._log("acceptor", f"a fault of the acceptor: {type(error).__name__}: {error}")
                time.sleep(0.01)
        self._close_all()

    def _turn(self) -> None:
        is_due = time.monotonic() >= self._accept_at
        if is_due != self._is_accepting:
            self._is_accepting = is_due
            for each in self._listening:
                if is_due:
                    self.epoll.register(each.fileno(), select.EPOLLIN)
                else:
                    self.epoll.unregister(each.fileno())
        wait_s = _SWEEP_S if is_due else min(_SWEEP_S, max(0.001, self._accept_at - time.monotonic()))
        for fd, events in self.epoll.poll(wait_s):
            if fd == self._woken:
                self._take_orders()
                continue
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)
        if self._connections.count(OUTSIDE):
            self._let_in()

    def _take_orders(self) -> None:
        try:
            os.eventfd_read(self._woken)
        except BlockingIOError:
            pass
        while self._orders:
            self._orders.popleft()()

    def _stop_listening(self) -> None:
        for each in self._listening:
            self._handlers.pop(each.fileno(), None)
            each.close()
        self._listening.clear()

    # ---- outside ----------------------------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            if not self._has_room_outside():
                self._accept_at = time.monotonic() + self._connections.limits.opening_least_s
                return
            try:
                made, where = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    self._out_of_descriptors(error)
                    return
                continue  # that one is gone already
            made.setblocking(False)
            self._welcome(made, where)

    def _has_room_outside(self) -> bool:
        with self._lock:
            if not self._connections.is_full(OUTSIDE):
                return True
            leaving = self._connections.least_useful(OUTSIDE, time.monotonic())
            if leaving is None:
                return False
            self._turn_away(leaving)
            return True

    def _out_of_descriptors(self, error: OSError) -> None:
        self._log("descriptors", f"no connection can be accepted now: {error.strerror}")
        self._accept_at = time.monotonic() + _PAUSE_S
        with self._lock:
            now = time.monotonic()
            for stage in (OUTSIDE, INSIDE):
                if (leaving := self._connections.least_useful(stage, now)) is not None:
                    self._turn_away(leaving)
                    return

    def _welcome(self, made: socket.socket, where: tuple[object, ...]) -> None:
        host, port = str(where[0]), where[1]
        peer = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
        connection = Connection(share_of(host), peer, time.monotonic(), made)
        with self._lock:
            self._connections.add(connection)
        fd = made.fileno()
        self._handlers[fd] = lambda events: self._listen_to(connection, events)
        self.epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def _listen_to(self, connection: Connection, events: int) -> None:
        """Something came from a connection outside, or its end."""
        if connection.stage != OUTSIDE or connection.is_ready:
            return
        made: socket.socket = connection.handler
        try:
            head = made.recv(_FIRST_PEEK, socket.MSG_PEEK)
            if len(head) == _FIRST_PEEK:
                head = made.recv(MAX_HEAD_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            head = b""
        if head and self._opening(head):
            connection.is_ready = True
        elif not head or events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
            self._close_outside(connection)

    def _close_outside(self, connection: Connection) -> None:
        self._handlers.pop(connection.handler.fileno(), None)
        connection.handler.close()
        with self._lock:
            self._connections.remove(connection)

    # ---- inside -----------------------------------------------------------------------------------------------

    def _let_in(self) -> None:
        """Hand on the connections that have sent enough, as far as there is room."""
        while True:
            with self._lock:
                connection = self._connections.next_ready()
                if connection is None:
                    return
                if self._connections.is_full(INSIDE):
                    leaving = self._connections.least_useful(INSIDE, time.monotonic())
                    if leaving is None:
                        return
                    self._turn_away(leaving)
                self._connections.move(connection, INSIDE)
                connection.handed_at = time.monotonic()
            self._hand(connection)

    def _hand(self, connection: Connection) -> None:
        made: socket.socket = connection.handler
        self._handlers.pop(made.fileno(), None)
        self.epoll.unregister(made.fileno())
        assert self._hand_on is not None
        try:
            handler = self._hand_on(self, made, connection)
        except OSError as error:
            self._log("acceptor", f"a connection cannot be handed on: {error}")
            handler = None
        if handler is None:
            made.close()
            self.gone(connection)
        else:
            connection.handler = handler

    def _turn_away(self, connection: Connection) -> None:
        self.turned_away += 1
        self._leave(connection)

    def _leave(self, connection: Connection) -> None:
        """Close it, now where that is this thread's, else soon."""
        if connection.is_leaving:
            return
        connection.is_leaving = True
        if connection.stage == OUTSIDE:
            self._close_outside(connection)
        elif threading.get_ident() == self._thread.ident:
            connection.handler.close()
            self._connections.remove(connection)
        else:
            self._order(lambda: connection.handler.close())

    def _sweep(self, now: float) -> None:
        with self._lock:
            for connection in self._connections.overdue(now):
                self._turn_away(connection)
            for connection in self._connections:
                ending = getattr(connection.handler, "ending_since", 0.0)
                if ending and now - ending > _ENDING_S:
                    self._leave(connection)

    def _close_all(self) -> None:
        self._stop_listening()
        with self._lock:
            for connection in list(self._connections):
                self._leave(connection)
            woken, self._woken = self._woken, -1  # whoever wakes us now wakes nobody
        self.epoll.close()
        os.close(woken)

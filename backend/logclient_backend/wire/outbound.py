"""Outbound half of a conversation: `Replies`, filled by any thread, sent by one.

Made by `server.py`. The service calls `ack` and `refuse`, the reading thread the rest, and the thread of the pool
that sends runs `messages`. No method but the waiting ones ever waits.

Invariants:

- acks never go back, and name only parcels that were taken;
- bytes under way are given back once per parcel: when it is settled, or when the conversation is over;
- once it is over, no later call changes anything.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from . import convert, messages
from .messages import NotTaken, Request, Welcome


class Replies:
    """The answers of one conversation."""

    def __init__(self, give_back: Callable[[int], None]) -> None:
        self.failure: NotTaken | None = None  # why it ended; None: it goes on, or ended well
        self.is_over = False
        self.bytes_under_way = 0
        self._give_back = give_back
        self._changed = threading.Condition()
        self._outbox: deque[bytes] = deque()
        self._under_way: deque[tuple[int, int]] = deque()  # number and size of parcels taken and not settled
        self._refused: set[int] = set()  # of them
        self._requests: dict[str, bytes] = {}  # by id, sent once each
        self._upto = 0
        self._sent_upto = -1
        self._is_closing = False
        self._closing_failure: NotTaken | None = None
        self._has_greeted = False
        self._has_hello = False  # and was welcomed
        self._received_at = time.monotonic()

    # ---- for the service ---------------------------------------------------------------------------------------

    def ack(self, upto: int) -> None:
        """All parcels up to this number are committed, but for those that were refused."""
        with self._changed:
            self._settle(upto)
            self._changed.notify_all()

    def refuse(self, refused: NotTaken, parcel: int = 0) -> None:
        """Refuse. A final refusal of one parcel concerns that alone; every other ends the conversation."""
        refusal = NotTaken(
            refused.text,
            refused.reason,
            is_final=refused.is_final,
            retry_after_s=refused.retry_after_s,
            parcel=parcel,
        )
        if not (parcel and refused.is_final):
            self.end(refusal)
            return
        with self._changed:
            if self.is_over:
                return
            self._outbox.append(convert.refusal(refusal).SerializeToString())
            self._refused.add(parcel)
            self._settle(self._upto)
            self._changed.notify_all()

    def ask(self, request: Request) -> None:
        """Pass on a request to stop or to save, once: after the welcome."""
        data = convert.request(request).SerializeToString()
        with self._changed:
            if self.is_over or request.id in self._requests:
                return
            self._requests[request.id] = data
            if self._has_hello:
                self._outbox.append(data)
                self._changed.notify_all()

    # ---- for the thread that reads ------------------------------------------------------------------------------

    def welcome(self, answer: Welcome) -> None:
        with self._changed:
            self._has_hello = True
            self._received_at = time.monotonic()
            self._outbox.append(convert.welcome(answer).SerializeToString())
            self._outbox.extend(self._requests.values())
            self._changed.notify_all()

    def received(self, *, is_hello: bool = False, wants_ack: bool = False) -> None:
        """The client sent something; after its hello it may have to wait for its turn.

        `wants_ack`: it wants to know whether we are here.
        """
        self._has_greeted |= is_hello
        self._received_at = time.monotonic()
        if wants_ack:
            with self._changed:
                self._sent_upto = -1
                self._changed.notify_all()

    def taken(self, number: int, size: int) -> None:
        """This parcel is under way; its bytes are given back by us."""
        with self._changed:
            if self.is_over:
                self._give_back(size)
                return
            self._under_way.append((number, size))
            self.bytes_under_way += size

    def wait_window(self, window_bytes: int, timeout_s: float) -> bool:
        """Wait until less than that is under way; False where it is over, or ending, or it took too long."""

        def is_free() -> bool:
            return self.is_over or self._is_closing or self.bytes_under_way < window_bytes

        with self._changed:
            return self._changed.wait_for(is_free, timeout_s) and not (self.is_over or self._is_closing)

    def end(self, failure: NotTaken | None) -> None:
        """At once: what is under way is not waited for."""
        with self._changed:
            if self.is_over:
                return
            if failure is not None:
                self._outbox.append(convert.refusal(failure).SerializeToString())
            self._over(failure)

    def finish(self, failure: NotTaken | None) -> None:
        """End the conversation once all that is under way is settled."""
        with self._changed:
            self._is_closing = True
            self._closing_failure = self._closing_failure or failure
            self._changed.notify_all()

    def cut(self) -> None:
        """The client is gone: nobody reads what we send."""
        with self._changed:
            if not self.is_over:
                self._over(NotTaken("the client is gone", messages.UNREACHABLE))
            self._outbox.clear()

    def wait_over(self, timeout_s: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.is_over, timeout_s)

    # ---- for the thread that sends ------------------------------------------------------------------------------

    def messages(self, silence_s: float, hello_s: float) -> Iterator[bytes]:
        """Replies as they come, until it is over."""
        while True:
            with self._changed:
                while not self._outbox and not self._has_ack and not self.is_over:
                    if self._is_closing and not self._under_way:
                        self._end_closing()
                        break
                    limit = silence_s if self._has_greeted else hello_s
                    left = self._received_at + limit - time.monotonic()
                    if left <= 0:
                        self._over(NotTaken("the client sends nothing", messages.WRONG_PROTOCOL))
                        break
                    self._changed.wait(left)
                ready = list(self._outbox)
                self._outbox.clear()
                if self._has_ack:
                    self._sent_upto = self._upto
                    ready.append(convert.ack(self._upto).SerializeToString())
                is_over = self.is_over
            yield from ready
            if is_over:
                return

    @property
    def _has_ack(self) -> bool:
        return self._has_hello and self._upto > self._sent_upto

    def _end_closing(self) -> None:
        if self._closing_failure is not None:
            self._outbox.append(convert.refusal(self._closing_failure).SerializeToString())
        self._over(self._closing_failure)

    # ---- with the lock held ---------------------------------------------------------------------------------------

    def _settle(self, upto: int) -> None:
        freed = 0
        while self._under_way and (self._under_way[0][0] <= upto or self._under_way[0][0] in self._refused):
            number, size = self._under_way.popleft()
            self._refused.discard(number)
            self._upto = number
            freed += size
        if freed:
            self.bytes_under_way -= freed
            self._give_back(freed)

    def _over(self, failure: NotTaken | None) -> None:
        self.is_over = True
        self.failure = failure
        self._under_way.clear()
        freed, self.bytes_under_way = self.bytes_under_way, 0
        if freed:
            self._give_back(freed)
        self._changed.notify_all()

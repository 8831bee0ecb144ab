"""Bytes that are taken in and not done with, of all conversations together: beyond a limit nothing is read."""

from __future__ import annotations

import threading

from .outbound import Replies


class Room:
    """A number of bytes, taken and given back by any thread."""

    def __init__(self, most: int) -> None:
        self.taken = 0
        self._most = most
        self._changed = threading.Condition()

    def take(self, size: int, replies: Replies, timeout_s: float) -> bool:
        """False where there is none in time, or the conversation is over. One parcel alone always finds room."""
        with self._changed:

            def is_free() -> bool:
                return replies.is_over or not self.taken or self.taken + size <= self._most

            if not self._changed.wait_for(is_free, timeout_s) or replies.is_over:
                return False
            self.taken += size
            return True

    def give(self, size: int) -> None:
        with self._changed:
            self.taken -= size
            self._changed.notify_all()

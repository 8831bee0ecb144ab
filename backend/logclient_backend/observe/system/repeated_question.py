"""A question that is asked again and again and may hang: in a child that stays, and is replaced when it does hang.

`deadline.py` forks for each question, which is right for one. A driver takes up to seconds to be opened, so this child
opens it once. The process that asks never waits: it asks, and looks later whether there is an answer.

Invariants:

- one child at a time: while one that was killed has not ended (state D), nothing is asked;
- the child holds no file of this process but its two pipes, and ends when this process does.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

from .. import deadline

_MAX_BYTES = 1 << 20
_PAUSE_S = 60.0  # before the next child, after one that hung or failed


class RepeatedQuestion:
    """One question: `ask`, and `look` until it is settled."""

    def __init__(
        self, begin: Callable[[], Callable[[], Any]], timeout_s: float, opening_s: float | None = None
    ) -> None:
        """`begin` runs in the child, once, and returns what is called for each answer, which JSON can hold.

        `opening_s`: the time for the first answer of a child, where it is another than `timeout_s`.
        """
        self.answer: Any = None  # the last one, until the next question
        self.pid = 0  # of the child
        self._begin, self._timeout_s = begin, timeout_s
        self._opening_s = timeout_s if opening_s is None else opening_s
        self._has_answered = False  # this child
        self._silent_since = math.inf  # when a question was asked first that got no answer
        self._to = self._from = -1
        self._data = b""
        self._asked_at = 0.0  # 0: nothing is asked
        self._killed = 0
        self._not_before = 0.0

    @property
    def is_settled(self) -> bool:
        """Is no answer awaited?"""
        return not self._asked_at

    def silent_s(self, now: float) -> float:
        """Return for how long there has been no answer, since a question was asked; 0 where the last one had one."""
        since = min(self._silent_since, self._asked_at or math.inf)
        return max(0.0, now - since) if since < math.inf else 0.0

    def ask(self, now: float) -> None:
        """Ask, unless it is too soon after a child that hung."""
        self.answer = None
        if self._asked_at or now < self._not_before or not self._has_child():
            return
        try:
            os.write(self._to, b"?")
        except OSError:  # it has ended: `look` finds that
            pass
        self._asked_at = now

    def look(self, now: float) -> None:
        """Take the answer, if there is one; end a child that is late."""
        if not self._asked_at:
            return
        has_ended = self._receive()
        line, is_whole, _ = self._data.partition(b"\n")
        if is_whole:
            self._data, self._asked_at = b"", 0.0
            self._silent_since, self._has_answered = math.inf, True
            self.answer = json.loads(line)
        elif has_ended or now - self._asked_at > (self._timeout_s if self._has_answered else self._opening_s):
            self._silent_since = min(self._silent_since, self._asked_at)
            self._asked_at, self._not_before = 0.0, now + _PAUSE_S
            self.close()

    def _receive(self) -> bool:
        """Take what has come; True where nothing more will."""
        try:
            while part := os.read(self._from, 1 << 16):
                self._data += part
                if len(self._data) > _MAX_BYTES:
                    break
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """End the child."""
        for fd in (self._to, self._from):
            if fd >= 0:
                os.close(fd)
        self._to = self._from = -1
        self._data, self._has_answered = b"", False
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)  # not reaped yet, so the PID is still its own
            self._killed, self.pid = self.pid, 0
            self._reap()

    def _reap(self) -> bool:
        """Has the child that was killed ended?"""
        if self._killed:
            try:
                if not os.waitpid(self._killed, os.WNOHANG)[0]:
                    return False
            except ChildProcessError:
                pass
            self._killed = 0
        return True

    def _has_child(self) -> bool:
        if self.pid:
            return True
        if not self._reap():
            return False
        questions, self._to = os.pipe()
        self._from, answers = os.pipe()
        os.set_blocking(self._from, False)
        try:
            pid = os.fork()
        except OSError:  # no process left for this user
            pid = -1
        if not pid:
            _answer(self._begin, questions, answers)
        os.close(questions)
        os.close(answers)
        if pid < 0:
            self.close()
            return False
        self.pid = pid
        return True


def _answer(begin: Callable[[], Callable[[], Any]], questions: int, answers: int) -> NoReturn:
    """Answer in the child until nobody asks any more."""
    try:
        deadline.begin_child(questions, answers)
        ask = begin()
        while os.read(questions, 1):
            deadline.write_all(answers, json.dumps(ask()).encode() + b"\n")
    except BaseException:  # noqa: BLE001 - a forked child never returns into its parent's code
        pass
    finally:
        os._exit(0)

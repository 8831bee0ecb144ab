"""A question that may hang, asked in a forked child that has a deadline.

A driver, and some files of /proc, wait in the kernel where no signal ends the wait. So the question runs in a child of
its own: at the deadline the child is killed and the question has no answer. A child that even SIGKILL does not end is
left behind; its end is looked for at later questions. No more than MAX_LEFT are left behind at one time.

The child is forked and not started: it needs no interpreter from a disk that may hang. It closes all that it
inherited, so that a pipe of this process ends with this process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

MAX_LEFT = 4
_MAX_BYTES = 1 << 24
_MAX_FD = 1 << 20
_REAP_S = 0.2
_ORPHAN_S = 1.0  # after its deadline a child ends by itself
_left: set[int] = set()  # children that were killed and had not ended then


class NoAnswer(Exception):
    """The reason, as a clause."""


class Question:
    """One question, begun when it is made; `answer` waits for it."""

    def __init__(self, ask: Callable[[], Any], *, timeout_s: float, of: str) -> None:
        """`ask` returns what JSON can hold; `of` names whom is asked, for the reason why there is no answer."""
        self._of, self._timeout_s, self._read = of, timeout_s, -1
        self.pid = 0  # of the child
        self._deadline = time.monotonic() + timeout_s
        _reap_left()
        self._refused = len(_left) >= MAX_LEFT
        if self._refused:
            return
        self._read, write = os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            os.close(self._read)
            os.close(write)
            self._refused = True
            return
        if self.pid == 0:
            _answer(ask, write, timeout_s)
        os.close(write)

    def answer(self) -> Any:
        """Return the answer; `NoAnswer` where there is none by the deadline. May be called once."""
        if self._refused:
            raise NoAnswer(f"{self._of} was not asked: {len(_left)} earlier questions still hang")
        try:
            data = self._received()
        finally:
            os.close(self._read)
            self._end()
        if data is None:
            raise NoAnswer(f"{self._of} gave no answer within {self._timeout_s:g} s")
        try:
            found = json.loads(data)
            return found["answer"]
        except (ValueError, LookupError, TypeError):
            raise NoAnswer(f"{self._of} gave no answer: the process that asked has failed") from None

    def drop(self) -> None:
        """End the question without its answer."""
        if not self._refused:
            os.close(self._read)
            self._end()

    def _received(self) -> bytes | None:
        """Return all that the child wrote; None where it was not done by the deadline."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        data = b""
        while len(data) < _MAX_BYTES:
            if not poll.poll(max(0.0, 1000 * (self._deadline - time.monotonic()))):
                return None
            part = os.read(self._read, 1 << 16)
            if not part:
                break
            data += part
        return data

    def _end(self) -> None:
        """Kill the child if it is still there, and give it a moment to end."""
        until = time.monotonic() + _REAP_S
        os.kill(self.pid, signal.SIGKILL)  # not reaped yet, so the PID is still its own
        while not _is_reaped(self.pid):
            if time.monotonic() > until:
                _left.add(self.pid)
                return
            time.sleep(0.002)


def ask(question: Callable[[], Any], *, timeout_s: float, of: str) -> Any:
    """Return the answer to one question; `NoAnswer` where there is none within the time."""
    return Question(question, timeout_s=timeout_s, of=of).answer()


def left_behind() -> list[int]:
    """Return the PIDs of children that were killed and have not ended."""
    _reap_left()
    return sorted(_left)


def begin_child(*kept: int) -> None:
    """Have a forked child end by signals, and close all that it inherited but these descriptors."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, _MAX_FD)


def write_all(fd: int, data: bytes) -> None:
    """Write all of it into a pipe."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _answer(ask: Callable[[], Any], write: int, timeout_s: float) -> None:
    """Ask in the child and write the answer. Does not return."""
    try:
        begin_child(write)
        signal.setitimer(signal.ITIMER_REAL, timeout_s + _ORPHAN_S)  # its parent may be killed before it
        write_all(write, json.dumps({"answer": ask()}).encode())
    except BaseException:  # noqa: BLE001 - a forked child never returns into its parent's code
        pass
    finally:
        os._exit(0)


def _reap_left() -> None:
    for pid in list(_left):
        if _is_reaped(pid):
            _left.discard(pid)


def _is_reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # somebody else has reaped it
        return True

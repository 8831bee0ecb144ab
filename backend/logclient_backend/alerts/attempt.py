"""`Attempt`: a task in a forked child with a deadline, so that whatever hangs there delays nobody here.

Runs in a process with one thread. The child writes one JSON object into a pipe and ends. It is killed at its deadline;
one that SIGKILL does not reach (state D) is left behind, and reaped once the kernel ends it.

Invariants:

- no call here waits, but `end` for a moment;
- the child kills itself a little later, by an alarm, where nobody is left who could;
- an exception in the child is its type, never its text, which may hold a URL.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

MAX_ANSWER = 2 << 20  # bytes
_REAP_S = 0.2
ALARM_S = 5.0  # after the deadline
# meant for whoever forked us
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD, signal.SIGALRM)
LATE, FAILED = "late", "failed"  # codes of answers that no task gives


class Attempt:
    """One child. `poll` until it answers."""

    def __init__(self, task: Callable[[], dict[str, Any]], limit_s: float) -> None:
        """Fork. Raises OSError where there can be no more processes or descriptors."""
        self.deadline = time.monotonic() + limit_s
        self._answer: dict[str, Any] | None = None
        self._data = b""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _be_child(task, write_end, limit_s + ALARM_S)
        except OSError:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self._fd = read_end
        self.is_reaped = False

    def poll(self) -> dict[str, Any] | None:
        """Return the answer, an object with a `code`; None while there is none. Kills at the deadline."""
        if self._answer is None and self._read():
            try:
                found = json.loads(self._data)
                self._conclude(found if isinstance(found, dict) and "code" in found else {"code": FAILED})
            except ValueError:
                self._conclude({"code": FAILED})
        if self._answer is None and time.monotonic() >= self.deadline:
            self._conclude({"code": LATE})
        if self._answer is not None:
            self.reap()
        return self._answer

    def reap(self) -> bool:
        """Return whether the child is gone; never waits for it."""
        if not self.is_reaped:
            try:
                self.is_reaped = os.waitpid(self.pid, os.WNOHANG)[0] != 0
            except ChildProcessError:
                self.is_reaped = True
        return self.is_reaped

    def kill(self) -> None:
        """Give up."""
        if self._answer is None:
            self._conclude({"code": LATE})

    def end(self) -> None:
        """Give up for good, and reap the child if it ends within a moment."""
        self.kill()
        until = time.monotonic() + _REAP_S
        while not self.reap() and time.monotonic() < until:
            time.sleep(0.002)

    def _conclude(self, answer: dict[str, Any]) -> None:
        self._answer = answer
        os.close(self._fd)
        if not self.reap():
            os.kill(self.pid, signal.SIGKILL)  # not reaped: the PID is still that of our child

    def _read(self) -> bool:
        """Take what is in the pipe; True once the child has closed it."""
        while len(self._data) <= MAX_ANSWER:
            try:
                part = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                return False
            if not part:
                return True
            self._data += part
        self._data = b""
        return True


def _be_child(task: Callable[[], dict[str, Any]], fd: int, limit_s: float) -> None:
    """Run the task, write its answer, end; in the child."""
    try:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            answer = task()
        except BaseException as error:  # noqa: BLE001 - its text is in no answer
            answer = {"code": FAILED, "error": type(error).__name__}
        data = json.dumps(answer).encode()
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os._exit(0)

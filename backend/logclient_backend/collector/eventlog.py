"""The collector's log: a line per event on standard error, where systemd's journal or a file picks it up.

Any thread. Invariants:

- of one cause at most one line in `EVERY_S`, with the number of those that were left out: a client that fails a
  thousand times a second fills no disk;
- a line is one line: what others named is quoted or made printable, and cut;
- no token is ever part of one: nobody who writes here has one at hand.

A log that cannot be written holds nothing up: the lines are let go.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from typing import TextIO

from ..wire.sanitize import one_line

EVERY_S = 60.0
_MOST = 2000  # characters of a line
_MAX_CAUSES = 1000


class _Handler(logging.Handler):
    """Warnings and errors of libraries, as events."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Any thread; what it raised is added in one line."""
        error = record.exc_info[1] if record.exc_info else None
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001  # a library's own mistake in its call
            text = str(record.msg)
        if error is None:
            self._log.write(f"{record.name} {record.msg}", f"{record.name}: {text}")
        else:
            self._log.fault(f"{record.name} ({one_line(text, 200)})", error)


class EventLog:
    """Writes lines with their time, UTC."""

    def __init__(self, out: TextIO | None = None) -> None:
        """`out`: default standard error, as it is when a line is written."""
        self._out = out
        self._lock = threading.Lock()
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def event(self, text: str) -> None:
        """Something that happens seldom: start, stop, a new token."""
        with self._lock:
            self._write(text)

    def pass_on(self, line: str) -> None:
        """Write a line of the log of another process, which has made it."""
        with self._lock:
            self._put(one_line(line, 2 * _MOST))

    def write(self, cause: str, text: str) -> None:
        """Something that may happen all the time."""
        with self._lock:
            now = time.monotonic()
            last = self._last.get(cause)
            if last is not None and now - last < EVERY_S:
                self._left_out[cause] = self._left_out.get(cause, 0) + 1
                return
            if len(self._last) >= _MAX_CAUSES:
                self._last.clear()
            self._last[cause] = now
            more = self._left_out.pop(cause, 0)
            self._write(f"{text} ({more} more like it since)" if more else text)

    def fault(self, what: str, error: BaseException) -> None:
        """One of ours: where it was raised, for whoever repairs it."""
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
        self.write(
            f"fault {type(error).__name__} {where}",
            f"fault in {what}: {type(error).__name__}: {error} [{where}]",
        )

    def take_over(self) -> None:
        """Take over what libraries log, by cause: a client that sends garbage fills no journal."""
        root = logging.getLogger()
        if not root.handlers:
            root.addHandler(_Handler(self))

    def _write(self, text: str) -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._put(f"{when} {one_line(text, _MOST)}")

    def _put(self, line: str) -> None:
        try:
            out = self._out or sys.stderr
            out.write(f"{line}\n")
            out.flush()
        except (OSError, ValueError):
            pass

"""Notices: sentences for the user about what went wrong, one per cause; and lines to standard error.

Runs in the training process.

Invariants:

- nothing here waits: a line is written only to a terminal, pipe or socket that says it has room, never to a file,
  whose disk may be frozen; every notice is kept, for `status()` and `logclient show`;
- the number of kept notices is bounded.
"""

from __future__ import annotations

import os
import select
import stat
import sys

from ..guest import foreign

MAX_NOTICES = 50
_PIPE_SAFE = 2048  # POLLOUT promises at least PIPE_BUF = 4096 bytes of room


class Notices:
    """Notices to the user, one line per cause."""

    __slots__ = ("_causes", "_quiet", "lines")

    def __init__(self, quiet: bool) -> None:
        self._causes: set[str] = set()
        self._quiet = quiet
        self.lines: list[str] = []

    def once(self, cause: str, line: str) -> bool:
        """Keep and show the line if this cause is new; True if it was."""
        if cause in self._causes or len(self._causes) >= MAX_NOTICES:
            return False
        self._causes.add(cause)
        self.lines.append(line)
        self.show(line)
        return True

    def show(self, line: str) -> None:
        """Write a line to standard error, if that cannot wait."""
        if not self._quiet:
            write_stderr(line)


def is_stderr_file() -> bool:
    """Is standard error a file, and handed on to what this process starts?"""
    try:
        return sys.__stderr__ is not None and stat.S_ISREG(os.fstat(2).st_mode) and os.get_inheritable(2)
    except OSError:
        return False


def write_stderr(line: str) -> bool:
    """One line to descriptor 2 without ever waiting, so never into a file; False where it was not written."""
    if sys.__stderr__ is None:  # closed at start: descriptor 2 is some file of the user's
        return False
    try:
        poll = select.poll()
        poll.register(2, select.POLLOUT)
        if stat.S_ISREG(os.fstat(2).st_mode) or not any(event & select.POLLOUT for _, event in poll.poll(0)):
            return False
        text = f"logclient: {line}\n".encode("utf-8", "backslashreplace")
        os.write(2, text if len(text) <= _PIPE_SAFE else text[: _PIPE_SAFE - 4] + b"...\n")
    except (OSError, ValueError, AttributeError) as error:  # closed, or `select` was changed by somebody
        if foreign.is_users(error):
            raise
        return False
    return True

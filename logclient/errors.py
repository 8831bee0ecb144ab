"""Exceptions of logclient.

::

    LogclientError
      BadArgument (also ValueError)   init or a reader was called wrongly
      NoRun (also LookupError)        a run was asked for that is not there
      FolderError (also OSError)      the run folder cannot be used and settings forbid another
      Corrupt                         stored bytes do not check; carries file, offset, expected, found
      Unsupported                     written by a newer version than this one
      RankFailed                      a rank of `launch` ended otherwise than by return or a common exception
        RankTimeout (also TimeoutError)   ranks did not end in the time that `launch` was given

``log()`` and callbacks raise none of these (``LOGCLIENT_STRICT=1`` makes bad arguments raise).
"""

from __future__ import annotations


class LogclientError(Exception):
    """Base of every error of this package."""


class BadArgument(LogclientError, ValueError):
    """A call that cannot be carried out as written; says what to change."""


class NoRun(LogclientError, LookupError):
    """No run answers to that name or id."""


class FolderError(LogclientError, OSError):
    """The run folder cannot be written and falling back was forbidden."""


class Unsupported(LogclientError):
    """The file was written by a newer version; update logclient to read it."""


class Corrupt(LogclientError):
    """Bytes in ``path`` at ``offset`` are not what was written there."""

    def __init__(self, path: str, offset: int, expected: object, found: object) -> None:
        super().__init__(f"{path}: damaged at byte {offset}: expected {expected}, found {found}")
        self.path = path
        self.offset = offset
        self.expected = expected
        self.found = found


class RankFailed(LogclientError):
    """A rank of `launch` was killed, left early, or raised what cannot be sent to the process that launched it."""

    rank = -1
    exit_code: int | None = None  # -9: killed by signal 9; None: it had not ended by itself


class RankTimeout(RankFailed, TimeoutError):
    """Ranks had not ended after `timeout_s`, and were stopped."""

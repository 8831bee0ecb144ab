"""Named crash points, off unless a test sets LOGCLIENT_FAILPOINTS (read from the agent's inherited environment).

``LOGCLIENT_FAILPOINTS="stage.appended=kill:3,copy.write=eio"``: at the third time the agent gets there it SIGKILLs
itself; every write to the run folder fails once. Actions: ``kill`` (SIGKILL of this process), ``stop`` (SIGSTOP),
``eio`` and ``enospc`` (that OSError, once), ``die`` (SystemExit: ends a thread
without a word). ``:N`` is the visit that acts
(default 1); ``:N+`` is that visit and every later one.

Every point is named in ARCHITECTURE.md; a test compares.
"""

from __future__ import annotations

import errno
import os
import signal

POINTS = (
    "drain.taken",  # frames copied out of a lane, nothing kept yet
    "stage.appended",  # block staged, lane not yet released
    "stage.released",  # lane released
    "copy.write",  # before bytes go to the run folder
    "copy.synced",  # past the fsync, not yet counted as durable
    "copy.seal",  # before a segment is sealed
    "copy.sealed",  # sealed, staged copy not yet removed
    "documents.save",  # before the documents are written
    "worker.loop",  # once per look at the lanes
    "worker.leave",  # everything drained, before the worker leaves
)

_visits: dict[str, int] = {}
_armed: dict[str, tuple[str, int, bool]] = {}


def arm(text: str) -> None:
    """Set the points from the variable's text; raises ValueError for a name or action that is none."""
    _armed.clear()
    for part in filter(None, text.split(",")):
        name, _, rest = part.partition("=")
        action, _, at = rest.partition(":")
        if name not in POINTS or action not in ("kill", "stop", "eio", "enospc", "die"):
            raise ValueError(f"no such fail point: {part!r}")
        _armed[name] = (action, int(at.rstrip("+") or 1), at.endswith("+"))


def hit(name: str) -> None:
    """Act, if this point is armed and this is the visit."""
    if not _armed or name not in _armed:
        return
    action, at, on = _armed[name]
    _visits[name] = visit = _visits.get(name, 0) + 1
    if visit != at and not (on and visit > at):
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "die":
        raise SystemExit(f"fail point {name}")
    else:
        number = errno.EIO if action == "eio" else errno.ENOSPC
        raise OSError(number, os.strerror(number), name)

"""Named crash points, off unless a test sets LOGCLIENT_FAILPOINTS (read from the agent's inherited environment).

``LOGCLIENT_FAILPOINTS="stage.appended=kill:3,copy.write=eio"``: at the third time a worker gets there it SIGKILLs
itself; the first write to the run folder fails. Actions: ``kill`` (SIGKILL of this process), ``stop`` (SIGSTOP),
``eio`` and ``enospc`` (that OSError), ``die`` (SystemExit: ends a thread or worker without a word), ``segv`` (SIGSEGV).
``:N`` is the visit of a process that acts (default 1), ``:N+`` that one and every later one, ``:N!`` that of the first
process that gets so far, and no other's: what is forked after `arm` shares a page.

Every point is named in ARCHITECTURE.md; a test compares.
"""

from __future__ import annotations

import errno
import mmap
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
    "media.encode",  # a value is in hand
    "media.written",  # blobs are written, none past an fsync
    "media.settled",  # they are, no reference is committed yet
    "media.referred",  # a reference is committed, its raw value not yet released
    "worker.loop",  # once per look at the lanes
    "worker.leave",  # everything drained, before the worker leaves
)

_ACTIONS = ("kill", "stop", "segv", "die", "eio", "enospc")
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "segv": signal.SIGSEGV}
_armed: dict[str, tuple[str, int, str]] = {}  # action, visit, its suffix
_visits: dict[str, int] = {}
_acted = memoryview(bytearray(len(POINTS)))  # shared once something is armed


def arm(text: str) -> None:
    """Set the points from the variable's text; raises ValueError for a name or action that is none."""
    global _acted
    _armed.clear()
    _visits.clear()
    if text:
        _acted = memoryview(mmap.mmap(-1, mmap.PAGESIZE))
    for part in filter(None, text.split(",")):
        name, _, rest = part.partition("=")
        action, _, at = rest.partition(":")
        if name not in POINTS or action not in _ACTIONS:
            raise ValueError(f"no such fail point: {part!r}")
        number = at.rstrip("+!")
        _armed[name] = (action, int(number or 1), at[len(number) :])


def hit(name: str) -> None:
    """Act, if this point is armed and this is the visit."""
    if not _armed or name not in _armed:
        return
    action, at, suffix = _armed[name]
    _visits[name] = visit = _visits.get(name, 0) + 1
    index = POINTS.index(name)
    if visit < at or (visit > at and suffix != "+") or (_acted[index] and suffix == "!"):
        return
    _acted[index] = 1
    if action in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[action])
    elif action == "die":
        raise SystemExit(f"fail point {name}")
    else:
        number = errno.EIO if action == "eio" else errno.ENOSPC
        raise OSError(number, os.strerror(number), name)

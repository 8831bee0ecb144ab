"""Who is the supervisor of a meeting place: a record lock on `agent.lock`.

Invariant: the lock counts only while the path of the place still leads to the folder that holds the locked file.
"""

from __future__ import annotations

import fcntl
import os
import time

from logclient import layout

from .place import Place
from .status import StatusPage

_LOCK = "agent.lock"
_PROBES_S = 0.3  # somebody may hold the lock for an instant, only to see whether anybody does
_CLOSING_S = 10.0
_NAP_S = 0.02


def win(place: Place, status: StatusPage) -> int | None:
    """The descriptor that holds the lock; None where another supervisor serves this place, newcomers included.

    A holder that says `closing` may not see newcomers any more: then it is waited for.
    """
    started = time.monotonic()
    while True:
        lock = try_lock(place)
        if lock is not None or not place.is_public:
            return lock
        patience = _CLOSING_S if status.words[layout.AGENT_CLOSING] else _PROBES_S
        if time.monotonic() - started > patience:
            return None
        time.sleep(_NAP_S)


def try_lock(place: Place) -> int | None:
    """The descriptor that holds the lock now; None where another process does, or the place is another's by now."""
    try:
        fd = os.open(place.file(_LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        named = os.stat(os.path.join(place.public, _LOCK), follow_symlinks=False)
        if os.path.samestat(named, os.fstat(fd)):
            return fd
    except OSError:
        pass
    os.close(fd)
    return None

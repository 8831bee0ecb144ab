"""Edits of a run in its folder: `<dir>/<run>/edits.json`.

For whoever reads or edits runs of folders. A live agent neither reads nor writes these files in its worker; its ship
process reads them, in the thread that may hang on a disk.

::

    edits.json   {"version": 1, "digest": hex, "edits": [...]}   content in `edits.py`; replaced as a whole
    edits.lock   empty; a POSIX record lock on it is held while one editor reads, merges and replaces

Invariants:

- the lock is for editors alone: no agent and no reader takes it, or waits for it;
- on a file system without locks, editors go on without: what was written is read back, and merged again where another
  editor came between;
- a damaged file costs the edits in it and nothing else. It is named, and never overwritten.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from logclient.errors import LogclientError, Unsupported
from logclient.shm.regular import OddFile, open_regular, read_regular

from ..wal.files import REAL, discard
from ..wal.whole import write_whole
from . import edits
from .edits import Edits

FILE, LOCK = "edits.json", "edits.lock"

_HERE = threading.Lock()  # a POSIX lock is between processes: threads of one all get it
_LOCK_S = 10.0  # for another editor, who needs some milliseconds, or for a share
_POLL_S = 0.02
_TRIES = 5
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Unreadable(LogclientError):
    """The edits of a run cannot be read; the sentence has the file and what helps."""


def load(folder: str) -> Edits:
    """Return the edits of the run in that folder; none where there is no file. `Unreadable` says why not."""
    path = os.path.join(folder, FILE)
    try:
        return edits.loads(read_regular(path, max_bytes=edits.MAX_BYTES))
    except FileNotFoundError:
        return edits.NONE
    except Unsupported:
        raise Unreadable(f"{path} was written by a newer logclient: update to read it") from None
    except OddFile as error:
        raise Unreadable(f"{path} is passed over: {error.reason}") from None
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Unreadable(
            f"{path} is damaged ({error}): the run is shown as its program left it; take the file from a copy of the "
            f"folder, or move it away to edit the run anew"
        ) from None


def change(folder: str, wish: Callable[[Edits], Edits]) -> Edits:
    """Store what `wish` makes of the edits of the run in that folder, and return it."""
    try:
        mode = (
            os.stat(folder).st_mode & 0o666
        )  # as who may write into the folder, by the umask of its program
        for _ in range(_TRIES):
            with _locked(folder, mode):
                before = load(folder)
                made = wish(before)
                if made == before:
                    return made
                path = os.path.join(folder, FILE)
                write_whole(path, made.dumps(), mode, sync_folder=True)
                os.chmod(path, mode)
                there = load(folder)
            if there.merged(made) == there:
                return there
            wish = made.merged
    except OSError as error:
        raise LogclientError(f"{folder}: its runs cannot be edited: {error.strerror or error}") from error
    raise LogclientError(f"{folder}: other editors replace {FILE} all the time; try again")


@contextmanager
def _locked(folder: str, mode: int) -> Iterator[None]:
    """One editor at a time, where the file system has locks."""
    path = os.path.join(folder, LOCK)
    deadline = time.monotonic() + _LOCK_S
    if not _HERE.acquire(timeout=_LOCK_S):
        raise LogclientError(f"{folder}: another thread has edited a run for {_LOCK_S:g} s; try again")
    fd = -1
    try:
        fd = open_regular(path, os.O_RDWR | os.O_CREAT, mode)
        if os.fstat(fd).st_uid == os.geteuid():
            os.fchmod(fd, mode)  # whatever our umask is
        while True:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _sweep(folder)
                break
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    break
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            if time.monotonic() > deadline:
                raise LogclientError(f"{path} has been locked by another editor for {_LOCK_S:g} s; try again")
            time.sleep(_POLL_S)
        yield
    finally:
        if fd >= 0:
            os.close(fd)
        _HERE.release()


def _sweep(folder: str) -> None:
    """Remove files that killed editors were making; the lock is held, so there is no other now."""
    for name in os.listdir(folder):
        if name.startswith(f"{FILE}.") and name.endswith(".new"):
            discard(REAL, os.path.join(folder, name))

"""Counts of processes that got no lanes: a page of the shm directory, one slot per process, with records refused.

Runs in the training process, in `init` or the first `log` of a forked child; the agent and readers add the slots up.
A process with lanes counts in its lane file. One without has no file of its own, and would count for itself alone.

::

    word 0               slots that are taken
    words 1, 2, 3 ...    records refused by the process that took the slot

Invariants:

- the page is made with the shm directory, so it is there when the mount is full;
- a slot is taken under a record lock that is held for some microseconds, and is written by its process alone.
"""

from __future__ import annotations

import fcntl
import os
import time

from ..guest.descriptors import Mapped
from .regular import open_regular, read_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .shm_dir import ShmDir

NAME = "refused"
BYTES = 4096
_SLOTS = BYTES // 8 - 1
_WAIT_S = 1.0  # for others that take a slot at the same moment
_FIRST_NAP_S = 0.001
_MAX_NAP_S = 0.05  # a hundred that ask each millisecond would keep the one with the lock from running


def take_slot(shm_dir: ShmDir) -> memoryview | None:
    """Return the word in which this process counts; None where there is none to be had."""
    try:
        fd = open_regular(shm_dir.file(NAME), os.O_RDWR)
    except OSError:
        return None
    try:
        if os.fstat(fd).st_size < BYTES:
            return None
        words = memoryview(Mapped(fd, BYTES)).cast("Q")  # before the lock, which is held for two words only
        if not _lock(fd):
            return None
        taken = words[0]
        if taken >= _SLOTS:
            return None
        words[0] = taken + 1
        return words[taken + 1 : taken + 2]
    except OSError:
        return None
    finally:
        os.close(fd)


def total(words: memoryview) -> int:
    """Return how many records the processes without lanes have refused, as the words of the page have it."""
    return sum(words[1 : 1 + min(words[0], _SLOTS)])


def read(shm_dir: ShmDir) -> int:
    """Return the same, asked once; 0 where the page is gone."""
    try:
        page = read_start(shm_dir.file(NAME), BYTES)
    except OSError:
        return 0
    return total(memoryview(page).cast("Q")) if len(page) == BYTES else 0


def _lock(fd: int) -> bool:
    deadline = time.monotonic() + _WAIT_S
    nap_s = _FIRST_NAP_S
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(nap_s)
            nap_s = min(1.5 * nap_s, _MAX_NAP_S)
        else:
            return True

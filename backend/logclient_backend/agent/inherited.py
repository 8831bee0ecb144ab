"""Files that a supervisor inherits from the worker that forked it, and that are not its own.

Runs once in each supervisor that a worker forked. The worker's copier may have had segments of the run folder open at
that moment: the thread is gone in the child, its descriptors are not. A supervisor that kept them would keep the disk
space of segments that are removed, and each generation would add to them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Set

_STANDARD = 3  # descriptors below it are /dev/null, or the terminal's


def close_files_but(kept: Set[int]) -> None:
    """Close all files and folders but these; descriptors of processes and sockets stay.

    The paths come from /proc, which asks no file system. To close a file may wait for its disk: a thread does that.
    """
    files = [fd for fd in _files() if fd not in kept]
    if files:
        threading.Thread(target=_close, args=(files,), name="close-inherited", daemon=True).start()


def _files() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor that listed them
        if fd >= _STANDARD and path.startswith("/"):
            found.append(fd)
    return found


def _close(files: list[int]) -> None:
    for fd in files:
        try:
            os.close(fd)
        except OSError:
            pass  # EIO: it is closed nevertheless

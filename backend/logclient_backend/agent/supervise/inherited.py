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


def open_files() -> set[tuple[int, str]]:
    """Return the open files and folders with their paths, as /proc has them: that asks no file system."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor that listed them
        if int(name) >= _STANDARD and path.startswith("/"):
            found.add((int(name), path))
    return found


def close_files_since(before: Set[tuple[int, str]], kept: Set[int]) -> None:
    """Close the files and folders that were opened since then, but these; descriptors of processes and sockets stay.

    To close a file may wait for its disk: a thread does that.
    """
    files = [fd for fd, _ in open_files() - before if fd not in kept]
    if files:
        threading.Thread(target=_close, args=(files,), name="close-inherited", daemon=True).start()


def _close(files: list[int]) -> None:
    for fd in files:
        try:
            os.close(fd)
        except OSError:
            pass  # EIO: it is closed nevertheless

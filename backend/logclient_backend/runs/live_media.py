"""Counts of the media values of a run's processes on this host, from the media files of its shm directory.

Only looks; a file that cannot be read, or goes meanwhile, is passed by.
"""

from __future__ import annotations

import mmap
import os

from logclient.shm import layout
from logclient.shm.media_ring import media_counts
from logclient.shm.regular import open_regular
from logclient.shm.side_stream import MEDIA, suffix_of

_MAX_BYTES = 1 << 31


def media_of(folder: str) -> dict[str, int]:
    """Return the sums over all media files; empty where there are none."""
    total: dict[str, int] = {}
    try:
        names = os.listdir(folder)
    except OSError:
        return total
    for name in names:
        if name.endswith(suffix_of(MEDIA)):
            for key, value in _counts(os.path.join(folder, name)).items():
                total[key] = total.get(key, 0) + value
    return total


def _counts(path: str) -> dict[str, int]:
    try:
        fd = open_regular(path)
    except OSError:
        return {}
    try:
        size = os.fstat(fd).st_size
        if not layout.KEYS_OFFSET < size <= _MAX_BYTES:
            return {}
        with mmap.mmap(fd, layout.KEYS_OFFSET, prot=mmap.PROT_READ) as mem, memoryview(mem) as seen:
            words = memoryview(bytes(seen)).cast("Q")
    except (OSError, ValueError):
        return {}
    finally:
        os.close(fd)
    if words[layout.FILE_MAGIC] != layout.MAGIC or words[layout.FILE_VERSION] != layout.VERSION:
        return {}
    return {key: int(str(value)) for key, value in media_counts(words).items()}

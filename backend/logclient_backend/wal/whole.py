"""Files on a disk that get their name when they are whole and past an fsync; the last one wins.

Runs in whichever thread or process calls it, and may hang there as long as the disk does.

After a power cut a name leads to the old content or to the new one. Where it must be the new one, the folder has to be
past an fsync too: `sync_folder`. Files in shared memory need neither, and have other modes: `logclient/shm/modes.py`.

Made by hand: a sealed segment, which is read back before it gets its name, by calls that a test lets fail (`seal.py`);
documents, which are written in place, two by turns (`documents.py`); a store, whose file SQLite fills; an imported run,
which is a folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from .files import REAL, discard

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def made_whole(path: str, mode: int = 0o666, *, sync_folder: bool = False) -> Iterator[IO[bytes]]:
    """A file to write to, at `path` after the `with`, in place of one that is there; nothing is left where that raises.

    `mode` is that of the new file, less the umask.
    """
    making = f"{path}.{os.urandom(4).hex()}.new"
    fd = os.open(making, _NEW, mode)
    try:
        with open(fd, "wb", buffering=1 << 20) as file:
            yield file
            file.flush()
            os.fsync(fd)
        os.rename(making, path)
    except BaseException:
        discard(REAL, making)
        raise
    if sync_folder:
        REAL.fsync_folder(os.path.dirname(path))


def write_whole(path: str, data: bytes, mode: int = 0o666, *, sync_folder: bool = False) -> None:
    """Write a file as `made_whole` does. Raises OSError."""
    with made_whole(path, mode, sync_folder=sync_folder) as file:
        file.write(data)

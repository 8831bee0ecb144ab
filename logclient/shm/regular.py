"""Files that others could put in the place of ours: only regular ones are opened, of a bounded size, and nothing waits.

Runs in the training process and in the agent, in collectors and readers. To open a FIFO waits for its other end, and a
sparse file of terabytes does not fit memory: whoever may write into a folder could stop everybody who reads it.
"""

from __future__ import annotations

import errno
import os
import stat

from ..guest import stdlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FILE_BYTES = 1 << 30  # of a segment, documents, or any other file that is read whole
MAX_STORE_BYTES = 1 << 62  # of a database, or of any other file that is read piece by piece

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class OddFile(OSError):
    """The path leads to no regular file, or to one larger than any of ours; `reason` is what it is instead."""

    def __init__(self, code: int, reason: str, path: str) -> None:
        super().__init__(code, reason, path)
        self.reason = reason


def open_regular(
    path: str, flags: int = os.O_RDONLY, mode: int = 0o666, *, max_bytes: int = MAX_FILE_BYTES
) -> int:
    """Open a regular file of at most `max_bytes`, without waiting and following no link; else raise `OddFile`."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    except OSError as error:
        raise _explained(error, path) from None
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_size <= max_bytes:
        return fd
    os.close(fd)
    raise _odd(path, found)


def read_regular(path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """All bytes of a regular file of at most `max_bytes`; else raise `OddFile`."""
    with open(open_regular(path, max_bytes=max_bytes), "rb") as file:
        return file.read(max_bytes)


def read_object(path: str, *, max_bytes: int = MAX_FILE_BYTES) -> dict[str, Any] | None:
    """The JSON object in a regular file; None where none can be read there."""
    json = stdlib.load("json")
    try:
        found = json.loads(read_regular(path, max_bytes=max_bytes))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_start(path: str, size: int) -> bytes:
    """At most the first `size` bytes of a regular file, however large it is; else raise `OddFile`."""
    fd = open_regular(path, max_bytes=MAX_STORE_BYTES)
    try:
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)


def _explained(error: OSError, path: str) -> OSError:
    """`OddFile` where the error says no more than that the path leads to something odd."""
    if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENODEV):
        try:
            return _odd(path, os.lstat(path))
        except OSError:
            pass  # gone since
    return error


def _odd(path: str, found: os.stat_result) -> OddFile:
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    if kind is not None:
        return OddFile(errno.EINVAL, f"it is {kind}, no regular file", path)
    return OddFile(errno.EFBIG, f"{found.st_size:,} bytes is larger than any file of ours", path)

"""The seam between the WAL and the file system: `Files`, and `RealFiles` that makes the calls.

Runs in whichever thread calls it; keeps no state. Tests put a failing one in its place (`tests/fakes.py`).

Invariants:

- `pwrite` writes all or raises; what it wrote before it raised may be there;
- no call follows a link in the last part of a path; descriptors are not inherited;
- only regular files of a size that a segment can have are opened, and no `open` waits: a FIFO, a device, a folder or
  a sparse file of terabytes under the name of a segment raises `OddFile`.

Does not: buffer, retry, or decide what an error means.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Protocol

READ = os.O_RDONLY
WRITE = os.O_RDWR  # an existing file
CREATE = os.O_RDWR | os.O_CREAT  # existing or new
NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL

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


def open_regular(path: str, flags: int = READ, mode: int = 0o666, *, max_bytes: int = MAX_FILE_BYTES) -> int:
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


class Files(Protocol):
    """What the WAL asks of a file system."""

    def open(self, path: str, flags: int) -> int: ...

    def close(self, fd: int) -> None: ...

    def pread(self, fd: int, size: int, offset: int) -> bytes: ...

    def pwrite(self, fd: int, data: bytes, offset: int) -> None: ...

    def fsync(self, fd: int) -> None: ...

    def size(self, fd: int) -> int: ...

    def truncate(self, fd: int, size: int) -> None: ...

    def fallocate(self, fd: int, size: int) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def list(self, folder: str) -> list[str]: ...

    def fsync_folder(self, folder: str) -> None: ...


class RealFiles:
    """The operating system's files. The umask and the folder decide who else may read them."""

    mode = 0o666

    def open(self, path: str, flags: int) -> int:
        return open_regular(path, flags, self.mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        data = os.pread(fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        have = len(data)
        while have < size:
            data = os.pread(fd, size - have, offset + have)
            if not data:
                break
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        done = os.pwrite(fd, data, offset)
        view = memoryview(data)
        while done < len(data):
            done += os.pwrite(fd, view[done:], offset + done)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fallocate(self, fd: int, size: int) -> None:
        """Reserve the first `size` bytes, or raise `OSError` (ENOSPC) before anything is written."""
        os.posix_fallocate(fd, 0, size)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def list(self, folder: str) -> list[str]:
        return os.listdir(folder)

    def fsync_folder(self, folder: str) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


REAL: Files = RealFiles()


def read_file(files: Files, path: str) -> bytes:
    """All bytes of a file as it is now."""
    fd = files.open(path, READ)
    try:
        return files.pread(fd, files.size(fd), 0)
    finally:
        files.close(fd)

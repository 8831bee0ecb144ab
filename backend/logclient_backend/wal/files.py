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

import os
from typing import Protocol

from logclient.shm.regular import open_regular

READ = os.O_RDONLY
WRITE = os.O_RDWR  # an existing file
CREATE = os.O_RDWR | os.O_CREAT  # existing or new
NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


class Files(Protocol):
    """The file system as the WAL uses it."""

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
        """The names of new and renamed files survive a power cut only past this."""
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


def discard(files: Files, path: str) -> None:
    """Remove a file that nobody needs any more; where it stays, or is gone, that does no harm."""
    try:
        files.unlink(path)
    except OSError:
        pass

"""Descriptors of ours that stay open: never 0, 1 or 2, and never closed once the number is somebody else's.

Runs in the training process, at `init` and when a run is let go. Where standard streams are closed, the next file
that is opened gets their number, and whatever writes to "standard error" writes into it. A program that closes all
descriptors (a daemon does) gives our numbers to files of its own.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


class AboveStandard:
    """Inside the `with`, what is opened gets no number below 3."""

    __slots__ = ("_taken",)

    def __enter__(self) -> None:
        self._taken: list[int] = []
        try:
            while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) < 3:
                self._taken.append(fd)
            os.close(fd)
        except OSError:
            pass  # no /dev, or no descriptor left: what comes next will tell

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fd in self._taken:
            os.close(fd)


def is_none_left() -> bool:
    """Has this process as many open descriptors as it may have? Asks no file system."""
    try:
        os.close(os.eventfd(0, os.EFD_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def identity(fd: int) -> tuple[int, int]:
    """Return device and inode of what the descriptor leads to; (0, 0) where it is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


class Mapped(mmap.mmap):
    """A mapped file whose end closes nobody else's descriptor.

    `mmap` duplicates the descriptor, keeps the number, and closes it in the end (since 3.13 it need not). Who is done
    with it says so by `let_go`. Not by a finalizer: what a user's signal handler raises in one is swallowed.
    """

    _number: int | None = None
    _identity = (0, 0)

    def __new__(cls, fd: int, length: int, flags: int = mmap.MAP_SHARED) -> Mapped:
        if sys.version_info >= (3, 13):
            return super().__new__(cls, fd, length, flags=flags, trackfd=False)
        wanted = identity(fd)
        number = os.dup(fd)
        os.close(number)
        self: Mapped = super().__new__(cls, fd, length, flags=flags)
        self._identity = wanted
        if identity(number) == wanted:  # else another thread took that number meanwhile
            self._number = number
        return self

    def let_go(self) -> None:
        """The last reference may go from now on; where the number is somebody else's by now, it never does."""
        if self._number is not None and identity(self._number) != self._identity:
            # kept until the very end, when all files are flushed
            os.register_at_fork(after_in_parent=self.__len__)
        self._number = None


def close_own(fd: int, wanted: tuple[int, int]) -> None:
    """Close the descriptor if it still leads to what it led to when it was ours."""
    if identity(fd) == wanted:
        os.close(fd)

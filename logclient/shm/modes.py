"""File modes and sizes: 0600 and 0700 in shared memory under every umask, and the umask that decides about run folders.

Runs in the training process and in the agent.

A umask may take the owner's own bits away (0177, 0777). A folder made under it cannot be entered, and a file cannot be
opened a second time, by the agent for one. So the mode is set after the file was made. The umask of the program stays
as it is: changing it would act on all of its threads.
"""

from __future__ import annotations

import errno
import os
import stat

from .proc import file_limit
from .regular import open_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER, FILE = 0o700, 0o600
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS = 0o077


def make_folder(path: str) -> bool:
    """Make a folder for this user alone, or mend the one that is there; True if it is new. Raises OSError."""
    try:
        os.mkdir(path, FOLDER)
    except FileExistsError:
        mend(path)
        return False
    mend(path)
    return True


def mend(path: str) -> None:
    """Give this user his own bits of a folder of his that nobody else may enter."""
    try:
        found = os.lstat(path)
        is_mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        # a folder that others may enter stays as it is: they may have put something there
        if is_mine and not found.st_mode & _OTHERS and found.st_mode & FOLDER != FOLDER:
            os.chmod(path, FOLDER)
    except OSError:
        return


def is_ours(path: str) -> bool:
    """Is this a folder of this user, no link, that he can use and nobody else may enter?"""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    is_mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return is_mine and found.st_mode & 0o777 == FOLDER


def new_file(path: str, flags: int) -> int:
    """Make a file for this user alone and open it with those flags. Raises OSError, FileExistsError above all."""
    fd = os.open(path, flags | _NEW, FILE)
    try:
        os.fchmod(fd, FILE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def private(path: str, flags: int) -> int:
    """Open or make a file for this user alone: an opener for `open`."""
    fd = open_regular(path, flags, FILE)
    try:
        os.fchmod(fd, FILE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def reserve(fd: int, size: int) -> None:
    """Reserve that much for a file. Raises OSError, and never the signal of a limit of file sizes (SIGXFSZ)."""
    if size > file_limit():
        raise OSError(errno.EFBIG, f"the limit of file sizes is {file_limit():,} bytes (ulimit -f)")
    os.posix_fallocate(fd, 0, size)


def umask_of(facts: Mapping[str, object]) -> int:
    """Return the umask for the run folder: that of the program that made the run, less the owner's own bits.

    `facts` is what the meeting place or a spool says. Without one the folder is for its owner alone.
    """
    given = facts.get("umask")
    return given & _OTHERS if type(given) is int else _OTHERS

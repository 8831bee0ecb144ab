"""Files in shared memory: their modes and sizes, how they appear whole, and how they go.

Runs in the training process and in the agent. Modes are 0600 and 0700 under every umask; the umask of the program
decides about run folders.

A umask may take the owner's own bits away (0177, 0777). A folder made under it cannot be entered, and a file cannot be
opened a second time, by the agent for one. So the mode is set after the file was made. The umask of the program stays
as it is: changing it would act on all of its threads.

Nothing here is past an fsync: what is in memory does not outlive a power cut. Files on a disk that shall, see
`wal/whole.py`. Made by hand, since what makes them whole is more than their bytes: lane files and cells (mapped before
they get their names: `lanes.py`, `cells.py`) and the file of a live lock (locked before it gets its name: `owner.py`).
"""

from __future__ import annotations

import errno
import os
import stat

from ..guest import foreign
from .proc import file_limit
from .regular import open_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER, FILE = 0o700, 0o600
MAKING = ".new"  # behind the names of files that are not yet whole
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


def publish(path: str, data: bytes, *, at_once: bool = False) -> None:
    """Have a file appear with all these bytes, in place of one that is there: the last one wins. Raises OSError.

    Where that fails, what was there is still there. `at_once`: others may publish it in the same moment. Without that
    one writer at a time does, and what it began before it was killed is written over: no rubbish gathers.
    """
    making = f"{path}.{os.urandom(4).hex()}{MAKING}" if at_once else path + MAKING
    fd = private(making, os.O_WRONLY | os.O_CREAT | (os.O_EXCL if at_once else os.O_TRUNC))
    try:
        try:
            _fill(fd, data)
        finally:
            os.close(fd)
        os.rename(making, path)
    except BaseException:
        remove(making)
        raise


def publish_first(path: str, data: bytes) -> None:
    """Have a file appear with all these bytes, only if none is there: the first one wins. Raises OSError."""
    making = f"{path}.{os.urandom(4).hex()}{MAKING}"
    fd = new_file(making, os.O_WRONLY)
    try:
        _fill(fd, data)
        os.link(making, path)
    except FileExistsError:
        pass  # another one was first, and its content counts
    finally:
        os.close(fd)
        os.unlink(making)  # an error here tells that the folder is being removed


def _fill(fd: int, data: bytes) -> None:
    if data:
        reserve(fd, len(data))  # all of it fits, or nothing is written
        os.pwrite(fd, data, 0)


def remove(path: str) -> None:
    """Remove a file that nobody needs any more; where it stays, or is gone, that does no harm."""
    try:
        os.unlink(path)
    except OSError as error:
        if foreign.is_users(error):
            raise


def remove_if_there(path: str) -> None:
    """Remove a file, which may be gone. Raises OSError where it is there and stays."""
    try:
        os.unlink(path)
    except FileNotFoundError as error:
        if foreign.is_users(error):
            raise


def remove_if_empty(folder: str) -> bool:
    """Remove a folder; False where something is in it, or it cannot be removed."""
    try:
        os.rmdir(folder)
    except OSError as error:
        if foreign.is_users(error):
            raise
        return False
    return True


def umask_of(facts: Mapping[str, object]) -> int:
    """Return the umask for the run folder: that of the program that made the run, less the owner's own bits.

    `facts` is what the shm directory or a spool says. Without one the folder is for its owner alone.
    """
    given = facts.get("umask")
    return given & _OTHERS if type(given) is int else _OTHERS

"""The server of a FUSE mount that shows another folder, and misbehaves as its flags say.

    python -m tools.faults.passthrough SETTINGS        (started by the guard of `fuse` only)

A process of its own, child of the guard, killed with it. libfuse runs each call in a thread of its pool and makes more
threads while all are busy, so a call that hangs keeps no other waiting, but for what the kernel itself orders: calls
that need the same file's or folder's lock (a create that hangs holds its folder).

- The folder behind is held by a descriptor, so the mount may lie over that very folder.
- All that is imported is imported before the mount, which may lie over this interpreter's own packages.
- A file that is unlinked while open goes on under a hidden name (HIDDEN) until it is closed: libfuse asks for the
  attributes of open files by path. Hidden names show in the folder behind, not in the mount; giving and removing
  them is counted as, and hangs with, the unlink that it is to the caller.
- Locks (record and flock) are the kernel's own, and need no call here. fallocate is not supported: EOPNOTSUPP, for
  which posix_fallocate writes instead. Hard links of one file show the same inode, but do not share locks.
- Mapped files and exec work; with `cache_s` 0 nothing is remembered of names and attributes between two calls.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fuse

from tools.faults import control

PR_SET_PDEATHSIG = 1
MAX_BACKGROUND = (
    128  # read-aheads under way; the kernel's default of 12 hanging ones would keep all others waiting
)
NOT_OURS = (
    os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_APPEND | os.O_NOCTTY
)  # done by the kernel before it asks
HIDDEN = ".fuse_hidden"  # libfuse's own prefix
TIMES = ("st_atime", "st_mtime", "st_ctime")
NUMBERS = (
    "st_ino",
    "st_mode",
    "st_nlink",
    "st_uid",
    "st_gid",
    "st_rdev",
    "st_size",
    "st_blocks",
    "st_blksize",
)


def is_hidden(path: str) -> bool:
    return path.rpartition("/")[2].startswith(HIDDEN)


class Folder:
    """The folder behind, held by a descriptor."""

    def __init__(self, folder: int, gate: control.Gate) -> None:
        self._root = f"/proc/self/fd/{folder}/."
        self._gate = gate

    def _real(self, path: str) -> str:
        return self._root + path

    def _give_to_caller(self, path: str) -> None:
        user, group, _ = fuse.fuse_get_context()
        if (user, group) != (os.geteuid(), os.getegid()):
            os.lchown(self._real(path), user, group)


class Files(Folder):
    """Calls on what is in files."""

    def open(self, path: str, flags: int) -> int:
        return os.open(self._real(path), flags & ~NOT_OURS | os.O_CLOEXEC | os.O_NOFOLLOW)

    def create(self, path: str, mode: int) -> int:
        handle = os.open(self._real(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        self._give_to_caller(path)
        return handle

    def read(self, path: str | None, size: int, offset: int, handle: int) -> bytes:
        return os.pread(handle, size, offset)

    def write(self, path: str | None, data: bytes, offset: int, handle: int) -> int:
        return os.pwrite(handle, data[: self._gate.allowed(len(data))], offset)

    def truncate(self, path: str | None, length: int, handle: int | None = None) -> None:
        if handle is not None:
            os.ftruncate(handle, length)
        elif path is not None:
            os.truncate(self._real(path), length)

    def fsync(self, path: str | None, datasync: int, handle: int) -> None:
        (os.fdatasync if datasync else os.fsync)(handle)

    def flush(self, path: str | None, handle: int) -> None:
        """A caller closes a descriptor; there may be more of the same file."""

    def release(self, path: str | None, handle: int) -> None:
        os.close(handle)


class Names(Folder):
    """Calls on names."""

    def readdir(self, path: str | None, handle: int) -> Iterator[tuple[str, dict[str, int] | None, int]]:
        yield from ((".", None, 0), ("..", None, 0))
        if path is None:
            return  # removed while it was open
        with os.scandir(self._real(path)) as entries:
            for entry in entries:
                if is_hidden(entry.name):
                    continue
                kind = (
                    stat.S_IFLNK if entry.is_symlink() else stat.S_IFDIR if entry.is_dir() else stat.S_IFREG
                )
                yield entry.name, {"st_ino": entry.inode(), "st_mode": kind}, 0

    def fsyncdir(self, path: str, datasync: int, handle: int) -> None:
        folder = os.open(self._real(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self._real(path), mode)
        self._give_to_caller(path)

    def mknod(self, path: str, mode: int, device: int) -> None:
        os.mknod(self._real(path), mode, device)
        self._give_to_caller(path)

    def symlink(self, path: str, target: str) -> None:
        os.symlink(target, self._real(path))
        self._give_to_caller(path)

    def readlink(self, path: str) -> str:
        return os.readlink(self._real(path))

    def link(self, path: str, existing: str) -> None:
        os.link(self._real(existing), self._real(path), follow_symlinks=False)

    def rename(self, old: str, new: str) -> None:
        os.rename(self._real(old), self._real(new))

    def unlink(self, path: str) -> None:
        os.unlink(self._real(path))

    def rmdir(self, path: str) -> None:
        names = os.listdir(self._real(path))
        if all(is_hidden(name) for name in names):
            for name in names:
                os.unlink(f"{self._real(path)}/{name}")  # their users go on with what they have open
        os.rmdir(self._real(path))


class Attributes(Folder):
    """Calls on what is known of a file, and of all of them."""

    def getattr(self, path: str, handle: object = None) -> dict[str, int]:
        found = os.fstat(handle) if isinstance(handle, int) else os.lstat(self._real(path))
        return {
            **{name: getattr(found, name) for name in NUMBERS},
            **{name: getattr(found, f"{name}_ns") for name in TIMES},
        }

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._real(path), mode)

    def chown(self, path: str, user: int, group: int) -> None:
        os.lchown(self._real(path), user, group)

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        os.utime(self._real(path), ns=times, follow_symlinks=False)  # type: ignore[arg-type]  # None means now

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._real(path))
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}


class Passthrough(Files, Names, Attributes):
    """All operations, as fusepy calls them: by name, through `__call__`."""

    use_ns = True
    flag_nullpath_ok = True  # a call on an open file that has no name any more comes with path None

    def __call__(self, op: str, path: str | None, *arguments: Any) -> Any:
        if op == "rename" and is_hidden(arguments[0]):
            self._gate.enter("unlink", path or "")
        elif not (op == "unlink" and path is not None and is_hidden(path)):
            self._gate.enter(op, path or "")
        return getattr(self, op)(path, *arguments)


def serve(name: str, base: Path, behind: str, point: str, cache_s: float) -> None:
    """Mount, and answer until the mount is gone."""
    folder = os.open(behind, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # before the mount hides it
    gate = control.Gate(control.Flags(base / control.FOLDER), control.Counts(base / "counts"))
    fuse.FUSE(
        Passthrough(folder, gate),
        point,
        foreground=True,
        nothreads=False,
        fsname=name,
        allow_other=True,
        default_permissions=True,
        nonempty=True,
        use_ino=True,
        attr_timeout=cache_s,
        entry_timeout=cache_s,
        negative_timeout=0,
        max_background=MAX_BACKGROUND,
        big_writes=True,
    )


def main(arguments: list[str]) -> int:
    settings = json.loads(arguments[0])
    ctypes.CDLL(None).prctl(
        PR_SET_PDEATHSIG, signal.SIGKILL
    )  # with it go the connection and all that hangs on it
    if os.getppid() != settings.pop("guard"):
        return 1
    os.umask(0)
    serve(base=Path(settings.pop("base")), **settings)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

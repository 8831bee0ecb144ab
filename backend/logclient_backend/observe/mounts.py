"""The mount that a process in state D most likely waits for.

Nothing here touches the file systems themselves: mounts come from this process's own `/proc/self/mountinfo`, the files
of the other one from `readlink` on `/proc/PID/fd` and `/proc/PID/cwd`, which the kernel answers from memory. The kernel
stack and the system call may wait for the other process, so the caller asks in a child with a deadline.

From the most certain to the least: the file of the system call's descriptor; the file system whose functions are in
the kernel stack, where one mount of it is meant; a network file system on which the process has files open.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_MAX_FILES = 4096
# File systems in memory, and views of the kernel: nobody waits long for them.
_VIRTUAL = re.compile(r"proc|sysfs|tmpfs|devtmpfs|devpts|ramfs|mqueue|cgroup2?|pstore|bpf|debugfs|tracefs|hugetlbfs|"
                      r"securityfs|configfs|fusectl|binfmt_misc|nsfs|rpc_pipefs|autofs$")  # fmt: skip
NETWORK = re.compile(
    r"nfs4?|cifs|smb3|fuse(\..*)?|ceph|lustre|gpfs|9p|afs|beegfs|wekafs|pvfs2|glusterfs|virtiofs|orangefs|mmfs"
)
# (start of a kernel function's name, type of file system)
_FUNCTIONS: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (re.compile(function), re.compile(kind))
    for function, kind in (
        (r"_*(ext4|jbd2)_", r"ext[234]"),
        (r"_*xfs_|xlog_", r"xfs"),
        (r"_*btrfs_", r"btrfs"),
        (r"_*(nfs|nfs[34]|rpc|xprt|rpciod)_", r"nfs4?"),
        (r"_*fuse_|request_wait_answer", r"fuse(blk|\..*)?|virtiofs"),
        (r"_*(cifs|smb[123]|SMB\w*)_", r"cifs|smb3"),
        (r"_*ceph_", r"ceph"),
        (r"_*(ll|osc|cl|ptlrpc|ldlm|lov|mdc|obd)_", r"lustre"),
        (r"_*(gpfs|mmfs|cxi)", r"gpfs|mmfs"),
        (r"_*(v9fs|p9)_", r"9p"),
        (r"_*(zfs|zpl|zio|txg|dmu)_", r"zfs"),
        (r"_*f2fs_", r"f2fs"),
        (r"_*(beegfs|Fhgfs)", r"beegfs"),
    )
)
# System calls whose first argument is the descriptor of the file that they work on.
_ON_FILE = {
    "x86_64": {
        0: "read", 1: "write", 5: "fstat", 17: "pread", 18: "pwrite", 19: "readv", 20: "writev",
        72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 77: "ftruncate", 78: "getdents",
        217: "getdents", 277: "sync_file_range", 285: "fallocate", 295: "preadv", 296: "pwritev", 306: "syncfs",
    },
    "aarch64": {
        25: "fcntl", 32: "flock", 46: "ftruncate", 47: "fallocate", 61: "getdents", 63: "read", 64: "write",
        65: "readv", 66: "writev", 67: "pread", 68: "pwrite", 69: "preadv", 70: "pwritev", 80: "fstat",
        82: "fsync", 83: "fdatasync", 84: "sync_file_range", 267: "syncfs",
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo."""

    path: str
    type: str
    source: str
    device: str = ""  # major:minor; mounts with the same one show the same file system


@dataclass(frozen=True, slots=True)
class Awaited:
    """The mount that is most likely waited for, and why."""

    path: str
    type: str
    source: str
    because: str  # a clause

    @property
    def text(self) -> str:
        """A clause for the verdict."""
        return f"most likely for {self.path} ({self.type}, {self.source}): {self.because}"


def mounts_of(text: str) -> list[Mount]:
    """Return the mounts of a mountinfo file, in its order: of two at one path the later one is on top."""
    found = []
    for line in text.splitlines():
        words = line.split(" ")
        try:
            dash = words.index("-", 6)
            found.append(Mount(_plain(words[4]), words[dash + 1], _plain(words[dash + 2]), words[2]))
        except (ValueError, IndexError):
            continue
    return found


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """Return the mount that a path is on, by its name alone."""
    best: Mount | None = None
    for mount in mounts:
        is_below = mount.path == "/" or path == mount.path or path.startswith(mount.path + "/")
        if is_below and (best is None or len(mount.path) >= len(best.path)):
            best = mount
    return best


def call_of(syscall: str) -> tuple[str, int] | None:
    """Return name and descriptor of the system call in /proc/PID/syscall; None where it works on none, or runs."""
    words = syscall.split()
    try:
        name = _ON_FILE.get(platform.machine(), {}).get(int(words[0]))
        return None if name is None else (name, int(words[1], 16))
    except (ValueError, IndexError):
        return None


def files_of(entry: str) -> dict[int, str]:
    """Return the absolute paths of the open files of a /proc entry by descriptor; the working directory is -1."""
    found = {}
    links = {-1: f"/proc/{entry}/cwd"}
    try:
        numbers = sorted(map(int, os.listdir(f"/proc/{entry}/fd")))[:_MAX_FILES]
        links |= {number: f"/proc/{entry}/fd/{number}" for number in numbers}
    except OSError:
        pass
    for number, link in links.items():
        try:
            path = os.readlink(link)
        except OSError:
            continue
        if path.startswith("/"):
            found[number] = path.removesuffix(" (deleted)")
    return found


def awaited(
    mounts: Sequence[Mount], files: dict[int, str], call: tuple[str, int] | None, functions: Iterable[str]
) -> Awaited | None:
    """Return the mount that is most likely waited for; None where nothing says which."""
    if call is not None and call[1] in files:
        path = files[call[1]]
        mount = mount_of(path, mounts)
        if mount is not None and not _VIRTUAL.fullmatch(mount.type):
            return _awaited(mount, f"it is in {call[0]} of {path}")
    used: dict[Mount, list[str]] = {}
    for number, path in files.items():
        mount = mount_of(path, mounts)
        if mount is not None and not _VIRTUAL.fullmatch(mount.type):
            used.setdefault(mount, []).append("its working directory" if number < 0 else path)
    function, kind = _known_function(list(functions))
    if kind is not None:
        there = [mount for mount in mounts if kind.fullmatch(mount.type)]
        open_there = [mount for mount in there if mount in used]
        for some in (open_there, there):
            if (
                len({mount.device for mount in some}) == 1
            ):  # a container binds single files of its host's disk
                mount = min(some, key=lambda mount: len(mount.path))
                return _awaited(mount, f"the kernel is in {function}{_has(used.get(mount, []))}")
        return None
    remote = [mount for mount in used if NETWORK.fullmatch(mount.type)]
    if len(remote) != 1:
        return None
    return _awaited(remote[0], f"no other network file system is in use{_has(used[remote[0]])}")


def _has(paths: Sequence[str]) -> str:
    if not paths:
        return ""
    return f", and it has {paths[0]} there" + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def _awaited(mount: Mount, because: str) -> Awaited:
    return Awaited(mount.path, mount.type, mount.source, because)


def _known_function(functions: Sequence[str]) -> tuple[str, re.Pattern[str] | None]:
    for function in functions:
        if function.startswith(
            "ovl_"
        ):  # the disk below an overlay is seldom mounted where the process can see it
            return function, re.compile("overlay")
    for function in functions:
        for name, kind in _FUNCTIONS:
            if name.match(function):
                return function, kind
    return "", None


def _plain(word: str) -> str:
    """Return a word of mountinfo without its escapes (a space is \\040)."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)

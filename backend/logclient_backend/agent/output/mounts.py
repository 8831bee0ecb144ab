"""Kinds of file systems, by the kernel's list of mounts: the file system itself is never asked.

Runs in the throw-away child that looks at the run folder, in the worker, and in `logclient doctor`.

Does not: resolve links, which asks the file systems on the way; whoever may hang does that before.
"""

from __future__ import annotations

import os
import re

_NETWORK = frozenset((
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "9p", "afs", "coda", "ceph", "lustre", "gpfs", "beegfs", "panfs",
    "wekafs", "pvfs2", "orangefs", "glusterfs", "davfs", "sshfs", "virtiofs", "ocfs2", "gfs2", "autofs", "fuse",
))  # fmt: skip
# of those that call themselves fuse.*, the ones that keep their files on a disk of this machine
_LOCAL_FUSE = frozenset(("fuse.fuse-overlayfs", "fuse.ntfs-3g", "fuse.ntfs", "fuse.exfat", "fuse.lxcfs"))
_DISK = frozenset((
    "ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "f2fs", "jfs", "nilfs2", "reiserfs", "zfs", "ntfs3", "exfat",
    "vfat", "fuseblk", "overlay",
))  # fmt: skip
_ESCAPED = re.compile(r"\\([0-7]{3})")  # \040 is a blank


def mount_of(path: str) -> tuple[str, str, str]:
    """(mount point, file system type, source) of the mount that a path is on."""
    path = os.path.abspath(path)
    best = ("/", "unknown", "")
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.readlines()
    except OSError:
        return best
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split()
        if len(fields) < 5 or len(rest) < 2:
            continue
        point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4])
        # of two on one point the later one lies on top
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best[0]):
            best = (point, rest[0], rest[1])
    return best


def is_network(kind: str) -> bool:
    """May this type of file system hang for minutes because another machine does?"""
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def network_of(path: str) -> str:
    """The type of the network file system that a path is on; empty: it is on none."""
    kind = mount_of(path)[1]
    return kind if is_network(kind) else ""


def is_disk(path: str) -> bool:
    """Is it on a file system of a disk of this machine?"""
    return mount_of(path)[1] in _DISK

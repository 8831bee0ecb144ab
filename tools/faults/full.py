"""Fills a file system to the last block, and frees it again. Used by `frozen` and `tmpfs`, in a child of their guard.

Afterwards no block is free: a file may still grow into the unused end of its own last block, and an empty file may
still be made where the folder has room, as on any full disk.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

FILLER = ".filler"  # in the root of the file system
ROUND = 4096  # smallest piece that is tried: a page of tmpfs, a block of ext4


def free_bytes(root: Path) -> int:
    at = os.statvfs(root)
    return at.f_bavail * at.f_frsize


def fill_up(root: Path, leave_bytes: int = 0) -> None:
    """Take all that is free but about `leave_bytes` (rounded up to blocks)."""
    handle = os.open(root / FILLER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # By reservation, without writing; in halves where the file system needs blocks for its own bookkeeping.
        while True:
            piece = (free_bytes(root) - leave_bytes) // ROUND * ROUND
            while piece >= ROUND and not _grow(handle, piece):
                piece = piece // 2 // ROUND * ROUND
            if piece < ROUND:
                break
        while not leave_bytes and _grow(handle, ROUND):
            pass  # what statvfs does not count
        os.fsync(handle)
    finally:
        os.close(handle)


def _grow(handle: int, size: int) -> bool:
    try:
        os.posix_fallocate(handle, os.fstat(handle).st_size, size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def free_up(root: Path) -> None:
    """Give back what `fill_up` took."""
    (root / FILLER).unlink(missing_ok=True)

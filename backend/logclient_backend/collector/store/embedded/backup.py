"""Backup and restore. Both work beside a collector that is running: a backup is one state of a store that changes.

Invariants: a copy gets its name only when it is whole, checked and past an fsync; it has an id of its own, because it
holds less than the store that it was made of: agents that find it in that store's place send again what they still
have. Neither ever writes into a folder that holds anything.
"""

from __future__ import annotations

import os
import secrets
import sqlite3

from logclient.shm import modes
from logclient.shm.regular import MAX_STORE_BYTES, open_regular

from ....wal.files import REAL
from ..interface import StoreError
from . import schema
from .database import FILE, errors, make_folder, version_of

_STEP_PAGES = 1024
_PART = ".part"


def backup(folder: str, target: str) -> None:
    """Copy the store in `folder` to `target`, in steps; writing goes on meanwhile."""
    source = os.path.join(folder, FILE)
    if version_of(source, newest=schema.VERSION) is None:
        raise StoreError(f"There is no store in {folder}.")
    _copy(source, target)


def restore(copy: str, folder: str) -> None:
    """Make a store of a backup: `copy` is its folder, `folder` a new or empty one."""
    source = os.path.join(copy, FILE)
    if version_of(source, newest=schema.VERSION) is None:
        raise StoreError(f"There is no backup in {copy}: no file {FILE}.")
    _copy(source, folder)


def _copy(source: str, target: str) -> None:
    make_folder(target)
    if os.listdir(target):
        raise StoreError(f"{target} is not empty. Choose a new folder.")
    path = os.path.join(target, FILE)
    part = path + _PART
    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with errors(target):
            _copy_pages(source, part)
            _check(part)
        fd = open_regular(part, max_bytes=MAX_STORE_BYTES)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(part, path)
        REAL.fsync_folder(target)
    except BaseException as error:
        for name in (part, part + "-journal", part + "-wal", part + "-shm"):
            modes.remove(name)
        if isinstance(error, OSError):
            raise StoreError(f"{target} cannot be written: {error.strerror}.") from error
        raise


def _copy_pages(source: str, part: str) -> None:
    origin = sqlite3.connect(source, isolation_level=None, timeout=60.0)
    copy = sqlite3.connect(part, isolation_level=None)
    try:
        # one state, held while pages are copied: a backup that saw changes would begin again, and never end
        origin.execute("PRAGMA query_only=1")
        origin.execute("BEGIN")
        origin.execute("SELECT count(*) FROM meta").fetchone()
        origin.backup(copy, pages=_STEP_PAGES, sleep=0.0)
        origin.execute("COMMIT")
        copy.execute("PRAGMA journal_mode=DELETE")
        copy.execute("UPDATE meta SET value=? WHERE name='id'", (secrets.token_hex(16),))
    finally:
        copy.close()
        origin.close()


def _check(part: str) -> None:
    copy = sqlite3.connect(part, isolation_level=None)
    try:
        found = [row[0] for row in copy.execute("PRAGMA integrity_check(10)")]
    finally:
        copy.close()
    if found != ["ok"]:
        raise StoreError(f"The copy does not check, so it was removed: {'; '.join(found)}.")

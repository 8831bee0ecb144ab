"""Estimate of bringing a store to this program's version, without a change to a byte of it."""

from __future__ import annotations

import os
import sqlite3
import time

from ..interface import Outlook, StoreError
from . import schema
from .database import FILE, errors, version_of

_ROW_BYTES = 16  # of what SQLite adds to a row, about


def outlook(folder: str) -> Outlook:
    """`StoreError` where there is no store, `Unsupported` where it is a newer version's."""
    path = os.path.join(folder, FILE)
    version = version_of(path, newest=schema.VERSION)
    if version is None:
        raise StoreError(f"There is no store in {folder}.")
    tables = {
        table
        for step in range(version + 1, schema.VERSION + 1)
        for table in schema.WRITTEN_ANEW.get(step, ())
    }
    started = time.monotonic()
    with errors(folder):
        sizes = [_size(path, table) for table in sorted(tables)]
    read_s = time.monotonic() - started
    disk = os.statvfs(folder)
    return Outlook(
        version,
        schema.VERSION,
        sum(rows for rows, _ in sizes),
        sum(size + rows * _ROW_BYTES for rows, size in sizes),
        os.stat(path).st_size,
        disk.f_bavail * disk.f_frsize,
        read_s,
    )


def _size(path: str, table: str) -> tuple[int, int]:
    """Rows, and bytes of their values."""
    # without a log there is no writer, and SQLite makes no file beside the store's
    how = "mode=ro" if os.path.exists(path + "-wal") else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{_quoted(path)}?{how}", uri=True, isolation_level=None)
    try:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        total = "+".join(f"coalesce(length(CAST({column} AS BLOB)), 0)" for column in columns)
        rows, size = connection.execute(f"SELECT count(*), total({total}) FROM {table}").fetchone()
        return int(rows), int(size)
    finally:
        connection.close()


def _quoted(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")

"""Check of a folder: create, write, fsync, stat, rename and remove a file in it, and how long each took."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .lines import Line, Message

BYTES = 4 << 20
_PIECE = 1 << 20


def check(line: Line, given: dict[str, Any]) -> Message:
    """Return seconds by operation; each is announced first, so that the one that hangs is known."""
    folder = given["path"]
    took: dict[str, float] = {}

    @contextmanager
    def timed(what: str) -> Iterator[None]:
        line.send({"stage": what})
        before = time.monotonic()
        yield
        took[what] = time.monotonic() - before

    with timed("stat"):
        os.stat(folder)
    path = os.path.join(folder, f".logclient-preflight-{secrets.token_hex(8)}")
    renamed = f"{path}.renamed"
    content = os.urandom(_PIECE)
    try:
        with timed("create"):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with timed("write"):
                for _ in range(BYTES // _PIECE):
                    _write(file, content)
            with timed("fsync"):
                os.fsync(file)
        finally:
            os.close(file)
        with timed("rename"):
            os.rename(path, renamed)
        with timed("read"), open(renamed, "rb") as again:
            is_equal = all(again.read(_PIECE) == content for _ in range(BYTES // _PIECE))
    finally:
        line.send({"stage": "remove"})
        for each in (path, renamed):
            if os.path.lexists(each):
                os.unlink(each)
    if not is_equal:
        raise OSError("it was read back with other bytes than were written")
    space = os.statvfs(folder)
    return {"seconds": took, "free_bytes": space.f_bavail * space.f_frsize}


def _write(file: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]

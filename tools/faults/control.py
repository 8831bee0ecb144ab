"""The flag files by which a FUSE mount is told how to misbehave, and the counters by which it tells what it did.

    control/hang.<op>     calls of this kind wait while the file exists; empty, or {"match": glob, "at_most_s": n}
    control/delay.<op>    {"seconds": s}: calls wait that long first
    control/fail.<op>     {"errno": n, "after": n, "times": n}: after so many good calls so many fail; -1: for ever
    control/limit         {"bytes": n, "errno": n}: so many bytes more can be written, to the byte
    counts                two words for each op: calls that came in, calls that hang now

<op> is one of OPS, or `everything`. A person may use `touch control/hang.write` and `rm` as well. The server reads
the flags at every call and counts down in `fail` and `limit`; a flag is replaced by rename, never half written.
A hang ends by itself after `at_most_s`, counted from the file's time stamp.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any

FOLDER = "control"  # in the base folder of the fault

OPS = (
    *("getattr", "open", "read", "write", "create", "fsync", "flush", "release"),
    *("readdir", "mkdir", "rmdir", "unlink", "rename", "link", "symlink", "readlink", "mknod"),
    *("truncate", "chmod", "chown", "utimens", "statfs", "fsyncdir"),
)
EVERYTHING = "everything"
ALIASES = {"stat": "getattr"}
NEVER = (
    "release",
)  # not hung with `everything`: nobody waits for it, but it would use up the server's threads

AT_MOST_S = 600.0  # of a hang, unless it says otherwise
POLL_S = 0.02  # how soon a hanging call sees that it may go on

CAME, HANGS = 0, 1  # words of an op in the counts file
COUNTS_BYTES = 16 * len(OPS)


def op_named(name: str) -> str:
    """The op's own name; ValueError for a name that is none."""
    op = ALIASES.get(name, name)
    if op not in OPS and op != EVERYTHING:
        raise ValueError(f"{name!r} is no operation; there are {', '.join((EVERYTHING, *ALIASES, *OPS))}.")
    return op


class Flags:
    """The control folder, for both sides."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except FileNotFoundError:
            return []  # removed at the end of the fault: everything may go on

    def set(self, name: str, **settings: Any) -> None:
        fresh = self._folder / f".{threading.get_ident()}"
        fresh.write_text(json.dumps(settings))
        fresh.rename(self._folder / name)

    def clear(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def get(self, name: str) -> dict[str, Any] | None:
        """What the flag says, with its age in seconds; None if it is not set."""
        try:
            with open(self._folder / name, encoding="utf-8") as file:
                settings: dict[str, Any] = json.loads(file.read() or "{}")
                return {**settings, "age_s": time.time() - os.fstat(file.fileno()).st_mtime}
        except FileNotFoundError:
            return None


class Counts:
    """The counters, in a mapped file: the server adds, anybody reads."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(COUNTS_BYTES))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), COUNTS_BYTES)
        self._words = memoryview(self._map).cast("Q")

    def add(self, op: str, which: int, n: int) -> None:
        self._words[2 * OPS.index(op) + which] += n

    def read(self, which: int) -> dict[str, int]:
        return {op: self._words[2 * i + which] for i, op in enumerate(OPS)}

    def close(self) -> None:
        self._words.release()
        self._map.close()


class Gate:
    """The server's side: every call passes here first, in the thread that serves it."""

    def __init__(self, flags: Flags, counts: Counts) -> None:
        self._flags = flags
        self._counts = counts
        self._lock = threading.Lock()  # of the counters and of what is counted down; never held while waiting

    def enter(self, op: str, path: str) -> None:
        """Count the call, then wait, or raise OSError, as the flags say."""
        with self._lock:
            self._counts.add(op, CAME, 1)
        names = self._flags.names()
        if not names:
            return
        if f"delay.{op}" in names and (flag := self._flags.get(f"delay.{op}")):
            time.sleep(flag["seconds"])
        if self._is_hung(op, path):
            self._wait(op, path)
        if f"fail.{op}" in names:
            self._fail(op)

    def _is_hung(self, op: str, path: str) -> bool:
        for name in (op,) if op in NEVER else (op, EVERYTHING):
            flag = self._flags.get(f"hang.{name}")
            if flag is None or flag["age_s"] >= flag.get("at_most_s", AT_MOST_S):
                continue
            if fnmatch.fnmatchcase(path, flag.get("match", "*")):
                return True
        return False

    def _wait(self, op: str, path: str) -> None:
        with self._lock:
            self._counts.add(op, HANGS, 1)
        try:
            while self._is_hung(op, path):
                time.sleep(POLL_S)
        finally:
            with self._lock:
                self._counts.add(op, HANGS, -1)

    def _fail(self, op: str) -> None:
        name = f"fail.{op}"
        with self._lock:
            flag = self._flags.get(name)
            if flag is None:
                return
            code, after, times = flag["errno"], flag.get("after", 0), flag.get("times", 1)
            if after > 0:
                self._flags.set(name, errno=code, after=after - 1, times=times)
                return
            if times == 1:
                self._flags.clear(name)
            elif times > 1:
                self._flags.set(name, errno=code, after=0, times=times - 1)
        raise OSError(code, os.strerror(code))

    def allowed(self, size: int) -> int:
        """How many of `size` bytes may be written; OSError if none."""
        if "limit" not in self._flags.names():
            return size
        with self._lock:
            flag = self._flags.get("limit")
            if flag is None:
                return size
            taken: int = min(size, flag["bytes"])
            code = flag.get("errno", errno.ENOSPC)
            if taken == 0 and size > 0:
                raise OSError(code, os.strerror(code))
            self._flags.set("limit", bytes=flag["bytes"] - taken, errno=code)
        return taken

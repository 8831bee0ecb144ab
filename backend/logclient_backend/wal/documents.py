"""`DocumentFile`: bytes that are kept whole (config, summary, state), where the newest version counts.

One writer at a time under one writer's name; readers read whenever they like.

::

    two files, written in turn: <name>.0 and <name>.1, or <name>.<writer, hex>.0 and .1
    +0   8  b"LCDOC\\r\\n\\0"
    +8   u32 format    u32 CRC-32 of all other bytes up to the end of the data
    +16  u64 version, grows          u64 bytes of the data
    +32  data

Invariants:

- the file that holds the newest version is not touched by a `save`, so one of the two is always whole;
- `save` returns when its data is past an fsync;
- a writer that hung and comes to itself later touches only files of its own name, with a version that is no longer
  the newest: it changes nothing, if each incarnation gives its own `writer`.

Does not: protect against two that save under the same writer's name at once.
"""

from __future__ import annotations

import os
import re
import zlib
from struct import Struct

from logclient.errors import Corrupt, Unsupported
from logclient.shm.regular import OddFile

from .files import CREATE, REAL, Files, read_file

MAGIC = b"LCDOC\r\n\0"
FORMAT = 1
HEAD = Struct("<8sIIQQ")
_CHECK = slice(12, 16)


class DocumentFile:
    """One document of a folder, in two files a writer."""

    def __init__(
        self, folder: str, *, name: str = "documents", writer: bytes = b"", files: Files = REAL
    ) -> None:
        """`writer` is only of interest to `save`: `load` finds the newest of all writers."""
        self.folder = folder
        self.version = 0  # that `load` or `save` met last; 0: none
        self.written_ns = 0  # when that was, by the file system's clock; 0: not known
        self.odd: dict[str, str] = {}  # files under our names that `load` met and that are none of ours: why
        stem = f"{name}.{writer.hex()}" if writer else name
        self._mine = (f"{stem}.0", f"{stem}.1")
        self._pattern = re.compile(re.escape(name) + r"(\.[0-9a-f]+)?\.[01]")
        self._files = files
        self._has_writer = bool(writer)
        self._is_first = True  # this writer has saved nothing yet
        self._next = -1  # which of mine to write next; -1: not looked yet

    def load(self) -> bytes | None:
        """The newest version that checks; None where there is none. `Unsupported` where a newer logclient wrote it."""
        newest: tuple[int, bytes] = (0, b"")
        holder = ""
        self.odd = {}
        for name in self._names():
            try:
                found = read_slot(self._files, os.path.join(self.folder, name))
            except OddFile as error:
                self.odd[name] = error.reason
                continue
            if found is not None and found[0] > newest[0]:
                newest = found
                holder = name
        self._next = 1 if holder == self._mine[0] else 0
        self._is_first = holder not in self._mine
        self.version = newest[0]
        self.written_ns = _written_ns(os.path.join(self.folder, holder)) if holder else 0
        return newest[1] if newest[0] else None

    def save(self, data: bytes) -> int:
        """Write a new version past an fsync and return its number; on `OSError` the version before is still there.

        What other writers left is removed once both files of this one are newer.
        """
        if self._next < 0:
            self.load()
        files = self._files
        # a save of another writer that hangs now has at most the next number: jump over it
        version = self.version + (2 if self._is_first and self._has_writer else 1)
        fd = files.open(os.path.join(self.folder, self._mine[self._next]), CREATE)
        try:
            is_new = files.size(fd) == 0
            whole = pack_slot(version, data)
            files.pwrite(fd, whole, 0)
            files.truncate(fd, len(whole))
            files.fsync(fd)
        finally:
            files.close(fd)
        if is_new:
            files.fsync_folder(self.folder)
        self.version = version
        self._next = 1 - self._next
        self._is_first = False
        if is_new:
            self._remove_others()
        return version

    def _names(self) -> list[str]:
        try:
            names = self._files.list(self.folder)
        except FileNotFoundError:
            return []
        return sorted(name for name in names if self._pattern.fullmatch(name))

    def _remove_others(self) -> None:
        names = self._names()
        if not set(self._mine) <= set(names):
            return  # until then an older writer's is the version before
        for name in names:
            if name not in self._mine and name not in self.odd:
                self._files.unlink(os.path.join(self.folder, name))


def _written_ns(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


def pack_slot(version: int, data: bytes) -> bytes:
    """The bytes of one file."""
    head = HEAD.pack(MAGIC, FORMAT, 0, version, len(data))
    check = _check(head, data).to_bytes(4, "little")
    return b"".join((head[: _CHECK.start], check, head[_CHECK.stop :], data))  # large ones are copied once


def _check(head: bytes, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(head[_CHECK.stop :], zlib.crc32(head[: _CHECK.start])))


def read_slot(files: Files, path: str) -> tuple[int, bytes] | None:
    """(version, data) of one file; None where it is not there or does not check."""
    try:
        raw = read_file(files, path)
    except FileNotFoundError:
        return None
    try:
        return parse_slot(raw, path)
    except Corrupt:
        return None


def parse_slot(raw: bytes, path: str) -> tuple[int, bytes]:
    """(version, data); `Corrupt` or `Unsupported` where that cannot be had."""
    if len(raw) < HEAD.size:
        raise Corrupt(path, 0, f"at least {HEAD.size} bytes", len(raw))
    magic, form, check, version, length = HEAD.unpack_from(raw)
    if magic != MAGIC:
        raise Corrupt(path, 0, MAGIC, magic)
    end = HEAD.size + length
    if end > len(raw):
        raise Corrupt(path, HEAD.size, f"{length} bytes", len(raw) - HEAD.size)
    found = _check(raw[: HEAD.size], raw[HEAD.size : end])
    if found != check:
        raise Corrupt(path, _CHECK.start, f"check {check:#010x}", f"{found:#010x}")
    if form > FORMAT:
        raise Unsupported(f"{path}: written in format {form}, this logclient reads up to {FORMAT}")
    return version, raw[HEAD.size : end]

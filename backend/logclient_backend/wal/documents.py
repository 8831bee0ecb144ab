"""`DocumentFile`: bytes that are kept whole (config, summary, state), where the newest version counts.

One writer at a time; readers read whenever they like.

::

    two files, <name>.0 and <name>.1, written in turn
    +0   8  b"LCDOC\\r\\n\\0"
    +8   u32 format    u32 CRC-32 of all other bytes up to the end of the data
    +16  u64 version, grows by 1     u64 bytes of the data
    +32  data

Invariants:

- the file that holds the newest version is not touched by a `save`, so one of the two is always whole;
- `save` returns when its data is past an fsync.

Does not: protect against two writers. A writer that hung and comes to itself later may overwrite one slot with what
it had then: give each incarnation a name of its own where that can happen, and load the newest of all.
"""

from __future__ import annotations

import os
import zlib
from struct import Struct

from logclient.errors import Corrupt, Unsupported

from .files import CREATE, REAL, Files, read_file

MAGIC = b"LCDOC\r\n\0"
FORMAT = 1
HEAD = Struct("<8sIIQQ")
_CHECK = slice(12, 16)


class DocumentFile:
    """One document of a folder, in two files."""

    def __init__(self, folder: str, *, name: str = "documents", files: Files = REAL) -> None:
        self.folder = folder
        self.version = 0  # that `load` or `save` met last; 0: none
        self._paths = [os.path.join(folder, f"{name}.{slot}") for slot in (0, 1)]
        self._files = files
        self._next: int | None = None  # the slot to write next; None: not looked yet

    def load(self) -> bytes | None:
        """The newest version that checks; None where there is none. `Unsupported` where a newer logclient wrote it."""
        newest: tuple[int, bytes] = (0, b"")
        self._next = 0
        for slot, path in enumerate(self._paths):
            found = read_slot(self._files, path)
            if found is not None and found[0] > newest[0]:
                newest = found
                self._next = 1 - slot
        self.version = newest[0]
        return newest[1] if newest[0] else None

    def save(self, data: bytes) -> int:
        """Write a new version past an fsync and return its number; on `OSError` the version before is still there."""
        if self._next is None:
            self.load()
        assert self._next is not None
        files = self._files
        version = self.version + 1
        path = self._paths[self._next]
        whole = pack_slot(version, data)
        fd = files.open(path, CREATE)
        try:
            is_new = files.size(fd) == 0
            files.pwrite(fd, whole, 0)
            files.truncate(fd, len(whole))
            files.fsync(fd)
        finally:
            files.close(fd)
        if is_new:
            files.fsync_folder(self.folder)
        self.version = version
        self._next = 1 - self._next
        return version


def pack_slot(version: int, data: bytes) -> bytes:
    """The bytes of one file."""
    whole = HEAD.pack(MAGIC, FORMAT, 0, version, len(data)) + data
    return whole[: _CHECK.start] + _check(whole).to_bytes(4, "little") + whole[_CHECK.stop :]


def _check(whole: bytes) -> int:
    return zlib.crc32(whole[_CHECK.stop :], zlib.crc32(whole[: _CHECK.start]))


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
    found = _check(raw[:end])
    if found != check:
        raise Corrupt(path, _CHECK.start, f"check {check:#010x}", f"{found:#010x}")
    if form > FORMAT:
        raise Unsupported(f"{path}: written in format {form}, this logclient reads up to {FORMAT}")
    return version, raw[HEAD.size : end]

"""Documents: config, summary, state and the like, which no lap of a ring may overwrite.

`DocumentWriter` runs in the training process, `read_document` in the agent. Each kind has two slots in the lane
file; the older one is overwritten, its version stored last, and the newest slot that checks wins. What is larger
than a slot goes to a file of its own beside the lane file, and the slot holds its name.

A document is a JSON object: ``{"time": ns since 1970, "data": ...}``.

Invariant: whatever is killed at whatever moment, the older version or the newer one can be read.
"""

from __future__ import annotations

import os
from time import time_ns
from zlib import crc32

from . import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _slots(words: memoryview, kind: int) -> tuple[int, int]:
    """Byte offset of the first slot of a kind, and bytes of one slot."""
    start, large, small = words[layout.FILE_DOCUMENTS : layout.FILE_DOCUMENTS + 3]
    if kind < layout.LARGE_KINDS:
        return start + 2 * kind * large, large
    return start + 2 * layout.LARGE_KINDS * large + 2 * (kind - layout.LARGE_KINDS) * small, small


class DocumentWriter:
    """Writes documents of one process; the caller sees to it that only one thread does so at a time."""

    __slots__ = ("_mem", "_path", "_versions", "_words")

    def __init__(self, mem: memoryview, lane_path: str) -> None:
        self._mem = mem
        self._words = mem.cast("Q")
        self._path = lane_path
        self._versions = [0] * len(layout.DOCUMENT_KINDS)

    def write(self, kind_name: str, data: Any) -> None:
        """Store `data` (anything JSON can hold; NaN too) as the newest version."""
        import json  # loaded by `init`; not at import: 4 ms

        text = json.dumps({"time": time_ns(), "data": data}, separators=(",", ":"), default=str)
        payload = text.encode("utf-8", "backslashreplace")
        kind = layout.DOCUMENT_KINDS.index(kind_name)
        version = self._versions[kind] + 1
        start, size = _slots(self._words, kind)
        if len(payload) > size - layout.DOCUMENT_HEADER:
            payload = json.dumps({"file": self._spill(kind_name, version, payload)}).encode()
        at = start + version % 2 * size
        word = at >> 3
        self._words[word] = 0  # the slot is void while it is written
        self._mem[at + layout.DOCUMENT_HEADER : at + layout.DOCUMENT_HEADER + len(payload)] = payload
        self._words[word + 1] = crc32(payload) << 32 | len(payload)
        self._words[word] = version
        self._versions[kind] = version
        self._words[layout.DOCUMENTS_WRITTEN] += 1

    def _spill(self, kind: str, version: int, payload: bytes) -> str:
        """A document larger than its slot: a file in the meeting place, whole or not there."""
        path = f"{self._path[: -len('.lanes')]}.{kind}.{version % 2}.block"
        making = f"{path}.new"
        fd = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, len(payload))
            os.pwrite(fd, payload, 0)
        finally:
            os.close(fd)
        os.rename(making, path)
        return os.path.basename(path)


def read_document(mem: memoryview, kind_name: str, seen_version: int = 0) -> tuple[int, bytes] | None:
    """(version, JSON bytes) of the newest slot that checks; None where none is newer than `seen_version`.

    The bytes may be ``{"file": name}``: the document then lies in that file of the meeting place.
    """
    words = mem.cast("Q")
    start, size = _slots(words, layout.DOCUMENT_KINDS.index(kind_name))
    best: tuple[int, bytes] | None = None
    for slot in (0, 1):
        at = start + slot * size
        version, check = words[at >> 3], words[(at >> 3) + 1]
        length = check & 0xFFFF_FFFF
        if version <= seen_version or length > size - layout.DOCUMENT_HEADER:
            continue
        payload = bytes(mem[at + layout.DOCUMENT_HEADER : at + layout.DOCUMENT_HEADER + length])
        if words[at >> 3] == version and crc32(payload) == check >> 32:
            if best is None or version > best[0]:
                best = (version, payload)
    return best

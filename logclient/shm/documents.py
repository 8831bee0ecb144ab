"""Documents: config, summary, state and the like, which no lap of a ring may overwrite.

`DocumentWriter` runs in the training process, `read_document` in the agent. Each kind has two slots in the lane
file; the older one is overwritten, its version stored last, and the newest slot that checks wins. What is larger
than a slot goes to a file of its own beside the lane file, and the slot holds its name.

A document is a JSON object: ``{"time": ns since 1970, "mono_ns": by the monotonic clock, "data": ...}``.

Invariants:

- whatever is killed at whatever moment, the older version or the newer one can be read;
- the fork mark is looked at right before the stores: a forked child never writes to its parent's documents.
"""

from __future__ import annotations

import os
from time import monotonic_ns, time_ns
from zlib import crc32

from ..guest import stdlib
from . import layout, modes
from .ring import Forked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .ring import Mark


def _slots(words: memoryview, kind: int) -> tuple[int, int]:
    """Byte offset of the first slot of a kind, and bytes of one slot."""
    start, large, small = words[layout.FILE_DOCUMENTS : layout.FILE_DOCUMENTS + 3]
    if kind < layout.LARGE_KINDS:
        return start + 2 * kind * large, large
    return start + 2 * layout.LARGE_KINDS * large + 2 * (kind - layout.LARGE_KINDS) * small, small


MAX_BYTES = 32 << 20  # of one document, as JSON: the agent reads twice as much at most


class TooLarge(Exception):
    """The document has more bytes than one may have."""


class DocumentWriter:
    """Writes documents of one process, from any thread and handler at once; nobody waits for anybody."""

    __slots__ = ("_files", "_mark", "_mem", "_path", "_versions", "_words")

    def __init__(self, mem: memoryview, lane_path: str, mark: Mark = b"\1") -> None:
        """`mark[0]` reads 0 in a process that was forked since (`owner.ForkMark`)."""
        self._mark = mark
        self._mem = mem
        self._words = mem.cast("Q")
        self._path = lane_path
        self._versions = [0] * len(layout.DOCUMENT_KINDS)
        self._files: dict[tuple[int, int], str] = {}

    def write(self, kind_name: str, data: Any) -> None:
        """Store `data` (anything JSON can hold; NaN too) as the newest version. Raises `TooLarge`.

        Whoever finds that somebody else wrote meanwhile turns its `data` into text again: so `data` must be the
        live object, and then the last version holds the changes of all.
        """
        kind = layout.DOCUMENT_KINDS.index(kind_name)
        while not self._try(kind, data):
            pass

    def _try(self, kind: int, data: Any) -> bool:
        json = stdlib.load("json")  # `init` did; not at import: 4 ms

        version = self._versions[kind] + 1
        content = {"time": time_ns(), "mono_ns": monotonic_ns(), "data": data}
        payload = json.dumps(content, separators=(",", ":"), default=str).encode()
        if len(payload) > MAX_BYTES:
            raise TooLarge(f"{len(payload):,} bytes, and at most {MAX_BYTES:,} can be stored")
        start, size = _slots(self._words, kind)
        path = ""
        if len(payload) > size - layout.DOCUMENT_HEADER:
            path = self._spill(kind, payload)
            payload = json.dumps({"file": os.path.basename(path)}).encode()
        at = start + version % 2 * size
        word, begin = at >> 3, at + layout.DOCUMENT_HEADER
        stop, check = begin + len(payload), crc32(payload) << 32 | len(payload)
        if not self._mark[0]:
            raise Forked
        # no call from here to the last store: no fork, handler or thread comes between
        if self._versions[kind] == version - 1:
            words = self._words
            words[word] = 0  # the slot is void while it is written
            self._mem[begin:stop] = payload
            words[word + 1] = check
            words[word] = version
            self._versions[kind] = version
            words[layout.DOCUMENTS_WRITTEN] += 1
            is_done = True
        else:
            is_done = False
        useless = self._files.pop((kind, version % 2), "") if is_done else path
        if is_done and path:
            self._files[kind, version % 2] = path
        if useless:
            modes.remove(useless)
        return is_done

    def _spill(self, kind: int, payload: bytes) -> str:
        """A document larger than its slot: a file in the shm directory, whole or not there."""
        stem = self._path[: -len(".lanes")]
        path = f"{stem}.{layout.DOCUMENT_KINDS[kind]}.{os.urandom(4).hex()}.block"
        try:
            modes.publish(path, payload)
        except BaseException:
            modes.remove(path)  # what was raised may have come after it was there
            raise
        return path

    def detach(self) -> None:
        """In a forked child, for good: whoever still holds this writer gets `Forked`."""
        self._mark = b"\0"


def read_document(mem: memoryview, kind_name: str, seen_version: int = 0) -> tuple[int, bytes] | None:
    """(version, JSON bytes) of the newest slot that checks; None where none is newer than `seen_version`.

    The bytes may be ``{"file": name}``: the document then lies in that file of the shm directory.
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
        is_whole = words[at >> 3] == version and crc32(payload) == check >> 32
        if is_whole and (best is None or version > best[0]):
            best = (version, payload)
    return best

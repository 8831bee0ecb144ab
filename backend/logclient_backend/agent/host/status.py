"""The status page: words on tmpfs by which the agent tells trainers and the command line how it is.

Supervisor and worker each write their own words; nobody waits for anybody. Layout: `logclient.shm.layout.AGENT_...`.
"""

from __future__ import annotations

import os
import time
import zlib

from logclient.shm import layout
from logclient.shm.regular import open_regular

from .mapping import map_file


class StatusPage:
    """The mapped page; `words[layout.AGENT_...]`."""

    def __init__(self, path: str) -> None:
        fd = open_regular(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(fd).st_size < layout.STATUS_BYTES:
                os.posix_fallocate(fd, 0, layout.STATUS_BYTES)
            self._map = map_file(fd, layout.STATUS_BYTES)
        finally:
            os.close(fd)
        self.words = memoryview(self._map).cast("Q")

    def beat(self, which: int) -> None:
        """Note that this is now: we are alive, or an agent was called for."""
        self.words[which] = time.monotonic_ns()

    def age_s(self, which: int) -> float:
        """Seconds since that beat."""
        return (time.monotonic_ns() - self.words[which]) / 1e9

    def progress(self) -> tuple[int, int]:
        """Grows whenever a duty of the worker's got something done; shipping is none of them."""
        words = self.words
        return words[layout.AGENT_DRAINED], words[layout.AGENT_WRITTEN]

    def write_server(self, address: str, error: str, reason: str = "", page: str = "") -> None:
        """Store texts about shipping for `logclient.shm.health.ship_texts`; one writer at a time.

        `reason` is why a collector refuses records for good, in its words; `page` the address of its page.
        """
        words = self.words
        slots = [layout.SHIP_TEXTS + slot * layout.SHIP_TEXT_BYTES for slot in (0, 1)]
        at = min(slots, key=lambda at: words[at >> 3])  # the older one
        version = max(words[at >> 3] for at in slots) + 1
        most = layout.SHIP_TEXT_BYTES - layout.DOCUMENT_HEADER
        lines = (address, " ".join(error.split()), " ".join(reason.split()))
        head, sentence, why = (line.encode("utf-8", "backslashreplace") for line in lines)
        last = page.encode("ascii", "ignore")
        room = most - len(head) - len(last) - 3
        why = why[: max(0, room // 2)]
        text = b"\n".join((head, sentence[: max(0, room - len(why))], why, last))[:most]
        begin = at + layout.DOCUMENT_HEADER
        words[at >> 3] = 0  # void while it is written
        self._map[begin : begin + len(text)] = text
        words[(at >> 3) + 1] = zlib.crc32(text) << 32 | len(text)
        words[at >> 3] = version

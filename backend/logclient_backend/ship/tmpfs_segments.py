"""The segments that an agent holds on tmpfs, as far as they are committed, and its documents there.

Runs in the shipper's thread: tmpfs answers at once. Only looks.

Invariant: nothing beyond the commit word is read. What lies behind it may be cut off by the next worker, and staged
again with other seqs forgotten.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from logclient.shm import layout
from logclient.shm.regular import read_regular

from ..wal.dedup import Seen
from ..wal.encoded import StreamColumns
from ..wal.reader import Follower
from ..wal.scan import Damage, Gap
from ..wal.segment import parse_name

_MAX_DOCUMENTS = 1 << 30


class TmpfsSegments:
    """New items of one shm directory."""

    def __init__(self, shm_dir: str, seen: Seen, status: memoryview | None = None) -> None:
        """`status`: the words of the agent's status page, which has the commit word."""
        self.shm_dir = shm_dir
        self.trouble = ""
        self._status = status
        limit = self._limit if status is not None else None
        self._follower = Follower(shm_dir, seen=seen, limit=limit, decodes=False)
        self._items: Iterator[object] | None = None
        self._ledger = os.path.join(shm_dir, "ledger.json")
        self._ledger_seen: tuple[int, int, int] | None = None
        self._documents: bytes | None = None

    def next(self) -> StreamColumns | Gap | None:
        """The next item; None: that was all now."""
        try:
            if self._items is None:
                self._items = self._follower.items(patient=True)
            for item in self._items:
                if not isinstance(item, Damage):
                    assert isinstance(item, (StreamColumns, Gap))
                    return item
            self.trouble = ""
        except OSError as error:  # being given back in this moment; its copy is in the run folder
            self.trouble = f"{self.shm_dir}: {error.strerror}"
        self._items = None
        return None

    def has(self, name: str) -> bool:
        """Is the open segment of that name here?"""
        return os.path.exists(os.path.join(self.shm_dir, name))

    def documents(self) -> bytes | None:
        """The newest; None where there are none here."""
        try:
            facts = os.stat(self._ledger)
            seen = facts.st_ino, facts.st_mtime_ns, facts.st_size
            if seen != self._ledger_seen and facts.st_size < _MAX_DOCUMENTS:
                self._documents = read_regular(self._ledger)
                self._ledger_seen = seen
        except OSError:  # removed with the directory: what was read last stays the newest
            pass
        return self._documents

    def _limit(self, name: str) -> int | None:
        parsed = parse_name(name)
        status = self._status
        if parsed is None or status is None:
            return None
        writer = status[layout.AGENT_STAGE_WRITER]
        commit = status[layout.AGENT_STAGE_COMMIT]
        if writer != status[layout.AGENT_STAGE_WRITER]:
            return 0  # taken over in this moment: next time
        if parsed.writer != writer.to_bytes(8, "little") or parsed.number < commit >> layout.STAGE_END_BITS:
            return None
        return (
            commit & (1 << layout.STAGE_END_BITS) - 1
            if parsed.number == commit >> layout.STAGE_END_BITS
            else 0
        )

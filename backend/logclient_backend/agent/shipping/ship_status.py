"""The worker's view of shipping: what is acked, and whether the worker may leave.

Runs in the worker's main thread; reads tmpfs only.

Invariants:

- what counts as acked is what the collector of the last welcome has committed, never a guess;
- nobody stays for a collector for longer than `ship_leave_s` since anything was acked and since anybody logged;
- at most one line a minute goes to the agent's log.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from logclient.shm import layout
from logclient.shm.health import ship_texts
from logclient.shm.regular import read_regular

from ...wal.seqs import SeqSet
from ..drain.node_document import Ledger
from ..host.shm_dir_handle import ShmDirHandle
from .ship_process import SHIPPED_FILE, digest

_LOG_EVERY_S = 60.0
_FLAPPING_S = 5.0
_LOOKING_S = 10.0  # until it is known whether there is a server
_OFF = ("off", "looking")
_REFUSED = "refused"


class _Missing(Enum):
    """Why there is nothing to take over from the file of the ship process."""

    ABSENT = 0
    UNREADABLE = 1  # as one that was not written by it


class Shipped:
    """Progress of shipping, as one worker sees it."""

    def __init__(
        self,
        handle: ShmDirHandle,
        status: memoryview,
        ledger: Ledger,
        log: Callable[[str], None],
        *,
        leave_s: float,
    ) -> None:
        self.acked: dict[bytes, SeqSet] = {}  # by stream; replaced as a whole, so that the copier may read it
        self._handle = handle
        self._status = status
        self._ledger = ledger
        self._log = log
        self._leave_s = leave_s
        self._seen_written = -1
        self._looked_for: tuple[int, ...] = ()
        self.is_settled = True  # nothing more is to be noted or logged of what was found
        self._counts: dict[str, int] = {}
        self._documents = ""  # digest of those that the collector has
        self._refused = 0
        self._has_connected = False
        self._is_last = False
        self._noted = ("", "")  # as the documents have it
        self._note_at: dict[str, float] = {}  # not before, by state
        self._logged = ""  # in the log
        self._log_at = 0.0
        self._started = self._needed_at = time.monotonic()

    def has_news(self) -> bool:
        """Did the ship process tell anything since `look`?"""
        return self._words() != self._looked_for

    def _words(self) -> tuple[int, ...]:
        words = self._status
        texts = (words[layout.SHIP_TEXTS >> 3], words[layout.SHIP_TEXTS + layout.SHIP_TEXT_BYTES >> 3])
        return (words[layout.AGENT_SHIP_WRITTEN], words[layout.AGENT_SHIP_STATE], *texts)

    def look(self) -> bool:
        """Take over what is new; True where other records are acked than before."""
        words = self._status
        self._looked_for = self._words()
        self._report()
        written = words[layout.AGENT_SHIP_WRITTEN]
        if written == self._seen_written:
            return False
        found = self._load()
        if found is _Missing.ABSENT and not written:
            # no ship process has left anything here, in this agent or an earlier one
            self._seen_written = written
            return False
        if isinstance(found, _Missing):
            self.is_settled = False  # what was announced is looked for again
            return False
        self._seen_written = written
        acked = {bytes.fromhex(key): SeqSet(map(tuple, ranges)) for key, ranges in found["streams"].items()}
        self._documents, self._refused = str(found["documents"]), int(found["refused"])
        counts = {stream.hex(): len(seqs) for stream, seqs in acked.items()}
        has_changed = counts != self._counts
        self.acked, self._counts = acked, counts
        if has_changed:
            self._ledger.note_acked(counts)
        return has_changed

    def count(self, stream: bytes) -> int:
        """Records of that stream that the collector has."""
        return self._counts.get(stream.hex(), 0)

    def _load(self) -> dict[str, Any] | _Missing:
        """The file of the ship process, or why it cannot be had."""
        try:
            found = json.loads(read_regular(self._handle.file(SHIPPED_FILE)))
        except FileNotFoundError:
            return _Missing.ABSENT
        except (OSError, ValueError):
            return _Missing.UNREADABLE
        return found if isinstance(found, dict) else _Missing.UNREADABLE

    @property
    def _state(self) -> str:
        return layout.SHIP_STATES[min(self._status[layout.AGENT_SHIP_STATE], len(layout.SHIP_STATES) - 1)]

    def _report(self) -> None:
        """To the documents and the agent's log."""
        state = self._state
        texts = ship_texts(self._status) if state not in _OFF else None
        self.is_settled = True
        if texts is None:
            return
        address, error, _ = texts
        now = time.monotonic()
        self._has_connected |= state in ("shipping", "idle")
        if state == _REFUSED:
            known = state
        elif error:
            known = "waiting"
        else:
            known = "connected" if self._has_connected else "connecting"
        is_due = now >= self._note_at.get(known, 0.0) or (self._is_last and known != self._noted[0])
        if (known, error) != self._noted and is_due:
            if known != "connecting":
                self._note_at = dict.fromkeys(("waiting", "connected"), now + _FLAPPING_S)
                self._note_at[known] = now + _LOG_EVERY_S  # another sentence for the same
            self._noted = (known, error)
            self._ledger.ship = {"server": address, "state": known, "error": error}
        if error != self._logged and (now >= self._log_at or state == _REFUSED):
            self._log(f"shipping: {error}" if error else f"shipping to {address} works again")
            self._logged, self._log_at = error, now + _LOG_EVERY_S
        self.is_settled = (known, error) == self._noted and error == self._logged

    # ---- leaving -------------------------------------------------------------------------------------------

    def stay(self) -> None:
        """Somebody logs: patience begins anew."""
        self._needed_at = time.monotonic()
        self._is_last = False

    @property
    def is_behind(self) -> bool:
        """Are records stored that the collector neither has nor refused, and that it may still get?"""
        return self._state not in (*_OFF, _REFUSED) and self._ledger.missing_there > self._refused

    def is_done(self, documents: bytes) -> bool:
        """Nothing is left to ship, these newest documents included, or it is no use to wait any longer."""
        self._is_last = True  # what the documents say now is what stays
        is_there = not self.is_behind and self._documents == digest(documents)
        return is_there or self._is_useless()

    def has_taken(self, staged: Mapping[bytes, int]) -> bool:
        """Does the collector have all of a run without a folder? `staged`: records in shared memory, by stream."""
        missing = sum(max(0, number - self.count(stream)) for stream, number in staged.items())
        return missing <= self._refused or self._is_useless()

    def _is_useless(self) -> bool:
        state, now = self._state, time.monotonic()
        if state in _OFF:
            return state == "off" or now - self._started > _LOOKING_S
        if state == _REFUSED:
            return True
        moved_s = (time.monotonic_ns() - self._status[layout.AGENT_SHIP_MOVED_NS]) / 1e9
        return min(moved_s, now - self._needed_at) > self._leave_s

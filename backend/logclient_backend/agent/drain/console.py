"""Processes whose output is captured (`shm/console_stream.py`): when pieces of it are staged, and how many: the budget.

Runs in the worker's main thread; part of `Worker`.

The budget: what the pieces of a process take in segments may be `console_disk_bytes`, and `RATE` bytes a second beyond
that. Where it is used up nothing is staged until there is room again: the ring goes on and forgets its oldest pieces,
which counts them. So it is the newest that are kept, and what is in the ring when the process ends is stored in any
case. The last words before a crash are there, and a flood takes a known amount of the disk.

Invariants:

- records that the user logs go first: pieces are staged after them, and not while half of the stage is in use;
- one look takes what was there when it began, at most a ring.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from logclient.shm import layout
from logclient.shm.side_stream import CONSOLE

from ..host.crash_report import Handover
from ..host.shm_dir_handle import ShmDirHandle
from .node_document import Ledger
from .producer import Producer
from .producers import SideRoster

RATE = 4096  # bytes a second
_EVERY_S = 1.0  # between two looks while pieces come
_FLOOD_S = (
    0.25  # the same while a quarter of a ring comes in less: a flood shall not take a core of the agent's
)
_PAUSE_S = 0.2  # between two questions whether a ring fills, while pieces come
_LIVELY_S = 3.0  # without pieces, after which the worker may rest
_SHARE = 4


class Console(SideRoster):
    """The processes whose output is captured on this node."""

    def __init__(
        self,
        handle: ShmDirHandle,
        handover: Handover,
        ledger: Ledger,
        log: Callable[[str], None],
        disk_bytes: int,
    ) -> None:
        super().__init__(CONSOLE, handle, handover, ledger, log)
        self._disk_bytes = disk_bytes
        self._at = 0.0  # when pieces were staged last
        self._has_some = False  # they came at the last look

    def pause_s(self, pause_s: float) -> float:
        """Return how long the worker may sleep, which would sleep so long."""
        is_lively = self._has_some and time.monotonic() - self._at < _LIVELY_S
        return min(pause_s, _PAUSE_S) if is_lively else pause_s

    def is_due(self, now: float) -> bool:
        """Is there anything to stage, and time to do it? Reads words of shared memory."""
        if now - self._at < _FLOOD_S:
            return False
        is_time = now - self._at >= _EVERY_S
        for producer in self.producers.values():
            for lane in producer.lanes:
                pending = lane.reader.pending
                is_wanted = pending > 0 and (is_time or _SHARE * pending >= lane.reader.size)
                if is_wanted and (producer.has_left or self._has_room(producer)):
                    return True
        return False

    def ended(self) -> list[Producer]:
        """Return the processes whose output is over. They finished, or are gone."""
        return self.gone() if self.producers else []

    def wanted(self, now: float, gone: list[Producer]) -> Iterator[Producer]:
        """Yield the processes whose pieces are to be staged now, of those that are gone whatever the budget."""
        self._at, self._has_some = now, False
        for producer in self.each(
            which=lambda each: each.pending > 0 or any(lane.lost for lane in each.lanes)
        ):
            if producer in gone or self._has_room(producer):
                self._has_some = True
                yield producer

    def farewell(self, producer: Producer, *, saved_version: int, linger_s: float = 0.0) -> bool:
        if producer.has_left and producer.pending > 0:
            return False  # there was no room for its last words yet
        return super().farewell(producer, saved_version=saved_version, linger_s=linger_s)

    def note_staged(self, producer: Producer, size: int) -> None:
        """Note that its pieces took so many bytes in segments."""
        producer.words[layout.CONSOLE_STORED] += size

    def _has_room(self, producer: Producer) -> bool:
        age_ns = max(0, time.monotonic_ns() - producer.words[layout.FILE_CREATED_MONO_NS])
        room = self._disk_bytes + RATE * age_ns // 10**9
        return bool(producer.words[layout.CONSOLE_STORED] < room)

"""Limits of a collector: of one conversation, of one run, of all together; and the ids that it takes at all.

Whatever goes beyond is refused, with a time to come again where that helps. Together these bound its memory.

Pure but for the lock in `RunLimits`, which conversations of one run share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from logclient.shm.record import Shape

from ..wire.messages import BUSY, INVALID, Hello, NotTaken

MAX_ID_BYTES = 512
MAX_NODE_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """Each is an option of `logclient server`."""

    conversations: int = 256
    run_conversations: int = 256
    under_way_bytes: int = 64 << 20  # as they were sent
    queue_bytes: int = 128 << 20  # unpacked, waiting to be committed
    parcel_bytes: int = 16 << 20  # as it was sent
    unpacked_bytes: int = 64 << 20  # of one parcel
    window_bytes: int = 8 << 20  # of one conversation, as they were sent
    parcels_per_s: float = 200.0  # of one conversation, over ten seconds
    documents_bytes: int = 16 << 20  # of one node
    media_bytes: int = 100 << 30  # disk for blobs of media values; beyond it the oldest go
    run_streams: int = 200_000
    run_keys: int = 200_000
    wait_s: float = 10.0  # for room; then the client is refused for now
    retry_after_s: float = 5.0
    web_processes: int = 1  # that answer over HTTP; 0: the committing process does it itself


def check_ids(hello: Hello) -> None:
    """`NotTaken` where a run or a node cannot have that id. Slashes and dots are fine: no path is made of one."""
    for what, id, most in (("run", hello.run, MAX_ID_BYTES), ("node", hello.node, MAX_NODE_CHARACTERS)):
        try:
            size = len(id.encode())
        except UnicodeEncodeError:
            raise _wrong(f"the id of the {what} is no text: it holds half of a surrogate pair") from None
        if not id:
            raise _wrong(f"the {what} has no id")
        if size > most:
            raise _wrong(f"the id of the {what} has {size} bytes, and at most {most} are taken")
        if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in id):
            raise _wrong(f"the id of the {what} holds a control character: choose another id")


def _wrong(text: str) -> NotTaken:
    return NotTaken(text, INVALID, is_final=True)


def busy(text: str, after_s: float) -> NotTaken:
    return NotTaken(f"{text}; it is tried again later", BUSY, retry_after_s=after_s)


class Pace:
    """A token bucket: so many a second over time, and ten seconds' worth at once."""

    def __init__(self, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._most = 10 * per_s
        self._left = self._most
        self._clock = clock
        self._at = clock()

    def take(self) -> float:
        """Seconds to wait before this one may go on."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at = now
        self._left -= 1
        return 0.0 if self._left >= 0 else -self._left / self._per_s


class RunLimits:
    """Limits of streams and keys of one run, for as long as somebody ships it."""

    def __init__(self, limits: Limits, streams: Iterable[bytes], keys: Mapping[str, Iterable[str]]) -> None:
        """`keys`: by side (`shm/side_stream.py`), "" for the user's own; one takes no room from another."""
        self.conversations = 0
        self._limits = limits
        self._lock = threading.Lock()
        self._streams = set(streams)
        self._keys = {side: set(names) for side, names in keys.items()}

    def take_stream(self, stream: bytes) -> None:
        """`NotTaken`, final for this parcel, where that is one too many."""
        with self._lock:
            if stream not in self._streams:
                if len(self._streams) >= self._limits.run_streams:
                    raise _wrong(
                        f"the run has {self._limits.run_streams:,} streams, its most: start another run"
                    )
                self._streams.add(stream)

    def take_keys(self, shape: Shape, side: str = "") -> None:
        """Count the keys of some records of a side against its limit."""
        with self._lock:
            keys = self._keys.setdefault(side, set())
            new = [name for name in shape.names if name not in keys]
            if len(keys) + len(new) > self._limits.run_keys:
                raise _wrong(
                    f"the run would have {len(keys) + len(new):,} keys, and at most {self._limits.run_keys:,} "
                    f"are taken: are numbers part of the names?"
                )
            keys.update(new)

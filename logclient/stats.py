"""Counters of a run in this process, and what it has to tell its user, once per cause.

Runs in the training process. `itertools.count` is the counter: `next` on it is atomic, an addition is not.

Invariants:

- nothing here waits: a line is written only to a terminal, pipe or socket that says it has room, never to a file
  (whose disk may be frozen); every notice is kept and can be read in `status()` and with `logclient show`;
- the number of kept notices is bounded.
"""

from __future__ import annotations

import os
import select
import stat
from itertools import count

from . import layout
from .ring import read_counts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_NOTICES = 50
_PIPE_SAFE = 2048  # POLLOUT promises at least PIPE_BUF = 4096 bytes of room


class Counter:
    """Counts exactly from any thread and handler, and publishes into one word."""

    __slots__ = ("_count", "_index", "_words")

    def __init__(self, words: memoryview | None, index: int) -> None:
        self._count = count(1)
        self._words = words
        self._index = index

    def add(self, amount: int = 1) -> None:
        for _ in range(amount):
            next(self._count)
        words = self._words
        if words is not None:
            words[self._index] = self.value

    def detach(self) -> None:
        self._words = None

    @property
    def value(self) -> int:
        state = self._count.__reduce__()[1]
        return int(state[0]) - 1  # type: ignore[call-overload]


class Counters:
    """What one process counts beside its lanes: records refused, points left out."""

    __slots__ = ("left_out", "refused")

    def __init__(self, words: memoryview | None) -> None:
        self.refused = Counter(words, layout.REFUSED)
        self.left_out = Counter(words, layout.LEFT_OUT)

    def detach(self) -> None:
        """Go on counting without the shared words."""
        self.refused.detach()
        self.left_out.detach()


def lane_counts(words: memoryview) -> dict[str, int]:
    """Counts over all lanes of one lane file, from its words: also of a process that is gone."""
    total = dict.fromkeys(("accepted", "forgotten", "damaged", "durable", "stored", "acked"), 0)
    for index in range(min(words[layout.FILE_LANES], layout.MAX_LANES)):
        at = layout.LANE_HEADERS + index * layout.LANE_HEADER_WORDS
        durable, stored, damaged = read_counts(words[at : at + layout.LANE_HEADER_WORDS])
        total["accepted"] += words[at + layout.SEQ]
        total["durable"] += durable
        total["stored"] += stored
        total["damaged"] += damaged
        total["forgotten"] += max(0, durable - stored - damaged)
        total["acked"] += words[at + layout.ACKED_SEQ]
    return total


class Notices:
    """What went wrong, one line per cause."""

    __slots__ = ("_causes", "_quiet", "lines")

    def __init__(self, quiet: bool) -> None:
        self._causes: set[str] = set()
        self._quiet = quiet
        self.lines: list[str] = []

    def once(self, cause: str, line: str) -> bool:
        """Keep and show the line if this cause is new; True if it was."""
        if cause in self._causes or len(self._causes) >= MOST_NOTICES:
            return False
        self._causes.add(cause)
        self.lines.append(line)
        self.show(line)
        return True

    def show(self, line: str) -> None:
        """Write a line to standard error, if that cannot wait."""
        if not self._quiet:
            tell(line)


def tell(line: str, *, files_too: bool = False) -> bool:
    """One line to descriptor 2 without ever waiting; False where it was not written."""
    try:
        kind = os.fstat(2).st_mode
        if stat.S_ISREG(kind):
            if not files_too:
                return False
        else:
            poll = select.poll()
            poll.register(2, select.POLLOUT)
            if not any(event & select.POLLOUT for _, event in poll.poll(0)):
                return False
        text = f"logclient: {line}\n".encode("utf-8", "backslashreplace")
        os.write(2, text if len(text) <= _PIPE_SAFE else text[: _PIPE_SAFE - 4] + b"...\n")
    except (OSError, ValueError):  # closed
        return False
    return True


def describe_agent(words: memoryview | None, now_ns: int, stall_s: float) -> dict[str, Any]:
    """Health of the agent in words: running, starting, stalled, gave up or gone."""
    if words is None:
        return {"state": "gone"}
    beat, worker = words[layout.AGENT_SUPERVISOR_BEAT], words[layout.AGENT_WORKER_BEAT]
    limit = int(max(1.0, stall_s) * 1e9)
    if words[layout.AGENT_GAVE_UP]:
        state = "gave up"
    elif not beat and not worker:
        state = "starting"
    elif now_ns - max(beat, worker) > limit:
        state = "gone"
    elif now_ns - worker > limit:
        state = "stalled"
    else:
        state = "running"
    stalled_since = words[layout.AGENT_WRITE_STALLED_NS]
    return {
        "state": state,
        "supervisor": words[layout.AGENT_SUPERVISOR],
        "worker": words[layout.AGENT_WORKER],
        "restarts": words[layout.AGENT_RESTARTS],
        "disk": "answers" if not stalled_since else f"silent for {max(0, now_ns - stalled_since) / 1e9:.0f} s",
        "disk_error": os.strerror(words[layout.AGENT_WRITE_ERROR]) if words[layout.AGENT_WRITE_ERROR] else "",
        "spill_bytes": words[layout.AGENT_SPILL_BYTES],
    }

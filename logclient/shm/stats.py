"""Counters of a run in this process, and what it has to tell its user, once per cause.

Runs in the training process. `itertools.count` is the counter: `next` on it is atomic, an addition is not.

Invariants:

- nothing here waits: a line is written only to a terminal, pipe or socket that says it has room, never to a file,
  whose disk may be frozen; every notice is kept, for `status()` and `logclient show`;
- the number of kept notices is bounded.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from itertools import count, islice
from zlib import crc32

from ..guest import foreign
from . import layout
from .lane_file import headers
from .ring import read_counts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..typed import AgentStatus, DeviceStatus, ServerStatus
    from .ring import Mark

MAX_NOTICES = 50
_START_STALLS = 2  # stall times within which the worker of an agent that was called for is heard
_SHIP_STALLS = 6  # stall times after which the process that ships has been replaced, if that is any use
_PIPE_SAFE = 2048  # POLLOUT promises at least PIPE_BUF = 4096 bytes of room


class Counter:
    """Counts exactly from any thread and handler, and publishes into one word."""

    __slots__ = ("_count", "_index", "_mark", "_words", "uncalled")

    def __init__(self, index: int) -> None:
        self._count = count(1)
        self.uncalled = 0  # counted by a caller at the recursion limit: `+=` is one step there, and no call
        self._index = index
        self._words: memoryview | None = None
        self._mark: Mark = b"\0"

    def add(self, amount: int = 1) -> None:
        if amount > 0:
            next(islice(self._count, amount - 1, None))
            try:
                self.publish()
            except RecursionError:  # it is counted, and published with the next one
                return

    def attach(self, words: memoryview, mark: Mark, index: int | None = None) -> None:
        """Publish into `words` as long as `mark[0]` is set: not from a process that was forked since."""
        self._words = None  # a handler that counts now must not publish into the wrong word
        self._index = self._index if index is None else index
        self._words, self._mark = words, mark
        self.publish()

    def detach(self) -> None:
        """Go on counting without the shared word."""
        self._words = None

    def publish(self) -> None:
        """Again until nobody counted meanwhile: whoever comes last leaves the newest value."""
        value = -1
        while value != self.value:
            value = self.value
            if not self._mark[0]:
                return
            words = self._words  # no call between the look at the mark and the store
            if words is None:
                return
            words[self._index] = value

    @property
    def value(self) -> int:
        called = (
            int(repr(self._count)[len("count(") : -1]) - 1
        )  # the one way to read it that all versions have
        return called + self.uncalled


class Counters:
    """Counts of one process beside its lanes: records refused, points left out."""

    __slots__ = ("left_out", "refused")

    def __init__(self) -> None:
        self.refused = Counter(layout.REFUSED)
        self.left_out = Counter(layout.LEFT_OUT)

    def attach(self, words: memoryview, mark: Mark) -> None:
        self.refused.attach(words, mark)
        self.left_out.attach(words, mark)

    def count_in(self, slot: memoryview | None, mark: Mark) -> None:
        """Publish what a process without lanes refuses: in a slot of `refusals`, if it has got one."""
        if slot is not None:
            self.refused.attach(slot, mark, index=0)

    def detach(self) -> None:
        self.refused.detach()
        self.left_out.detach()

    def publish(self) -> None:
        self.refused.publish()
        self.left_out.publish()


def lane_counts(words: memoryview) -> dict[str, int]:
    """Counts over all lanes of one lane file, from its words: also of a process that is gone."""
    total = dict.fromkeys(("accepted", "forgotten", "damaged", "durable", "stored", "acked"), 0)
    for lane in headers(words):
        durable, stored, damaged = read_counts(lane)
        total["accepted"] += lane[layout.SEQ]
        total["durable"] += durable
        total["stored"] += stored
        total["damaged"] += damaged
        total["forgotten"] += max(0, durable - stored - damaged)
        total["acked"] += lane[layout.ACKED_SEQ]
    return total


def missing_there(counts: dict[str, int]) -> int:
    """Records that are accepted, not known to be gone, and not committed at a collector."""
    return max(0, counts["accepted"] - counts["forgotten"] - counts["damaged"] - counts["acked"])


class Notices:
    """Notices to the user, one line per cause."""

    __slots__ = ("_causes", "_quiet", "lines")

    def __init__(self, quiet: bool) -> None:
        self._causes: set[str] = set()
        self._quiet = quiet
        self.lines: list[str] = []

    def once(self, cause: str, line: str) -> bool:
        """Keep and show the line if this cause is new; True if it was."""
        if cause in self._causes or len(self._causes) >= MAX_NOTICES:
            return False
        self._causes.add(cause)
        self.lines.append(line)
        self.show(line)
        return True

    def show(self, line: str) -> None:
        """Write a line to standard error, if that cannot wait."""
        if not self._quiet:
            write_stderr(line)


def is_stderr_file() -> bool:
    """Is standard error a file, and handed on to what this process starts?"""
    try:
        return sys.__stderr__ is not None and stat.S_ISREG(os.fstat(2).st_mode) and os.get_inheritable(2)
    except OSError:
        return False


def write_stderr(line: str) -> bool:
    """One line to descriptor 2 without ever waiting, so never into a file; False where it was not written."""
    if sys.__stderr__ is None:  # closed at start: descriptor 2 is some file of the user's
        return False
    try:
        poll = select.poll()
        poll.register(2, select.POLLOUT)
        if stat.S_ISREG(os.fstat(2).st_mode) or not any(event & select.POLLOUT for _, event in poll.poll(0)):
            return False
        text = f"logclient: {line}\n".encode("utf-8", "backslashreplace")
        os.write(2, text if len(text) <= _PIPE_SAFE else text[: _PIPE_SAFE - 4] + b"...\n")
    except (OSError, ValueError, AttributeError) as error:  # closed, or `select` was changed by somebody
        if foreign.is_users(error):
            raise
        return False
    return True


def no_agent() -> AgentStatus:
    """Health of an agent of which nothing is known."""
    return {
        "state": "gone",
        "supervisor": 0,
        "worker": 0,
        "restarts": 0,
        "disk": "unknown",
        "disk_silent_s": 0.0,
        "disk_error": "",
        "disk_errno": 0,
        "spill_bytes": 0,
    }


def no_device() -> DeviceStatus:
    """Device values of a process that logged none."""
    return {"way": "", "trouble": "", "in_flight": 0}


def describe_agent(words: memoryview | None, now_ns: int, stall_s: float) -> AgentStatus:
    """Health of the agent: running, starting, stalled, gave up or gone; `words` is its page, None where it has none.

    By the page alone: `starting` is one that was called for a moment ago and is not heard yet, `gone` one that is
    silent for longer than a restart takes. Whether a process lives after all is for the caller to find out.
    """
    found = no_agent()
    if words is None:
        return found
    beat, worker = words[layout.AGENT_SUPERVISOR_BEAT], words[layout.AGENT_WORKER_BEAT]
    called = words[layout.AGENT_CALLED_NS]
    limit = int(max(1.0, stall_s) * 1e9)
    if words[layout.AGENT_GAVE_UP]:
        found["state"] = "gave up"
    elif worker < called and now_ns - called <= _START_STALLS * limit:
        found["state"] = "starting"
    elif now_ns - max(beat, worker) > limit:
        found["state"] = "gone"
    elif now_ns - worker > limit:
        found["state"] = "stalled"
    else:
        found["state"] = "running"
    stalled_since, code = words[layout.AGENT_WRITE_STALLED_NS], words[layout.AGENT_WRITE_ERROR]
    silent_s = max(0, now_ns - stalled_since) / 1e9 if stalled_since else 0.0
    found["supervisor"], found["worker"] = words[layout.AGENT_SUPERVISOR], words[layout.AGENT_WORKER]
    found["restarts"], found["spill_bytes"] = words[layout.AGENT_RESTARTS], words[layout.AGENT_SPILL_BYTES]
    found["disk"] = f"silent for {silent_s:.0f} s" if stalled_since else "answers"
    found["disk_silent_s"] = silent_s
    found["disk_error"], found["disk_errno"] = os.strerror(code) if code else "", code
    return found


def no_server() -> ServerStatus:
    """Shipping where there is no collector to ship to."""
    return {"address": "", "state": "off", "error": "", "reason": "", "lag_records": 0, "refused_records": 0}


def describe_server(
    words: memoryview | None, wanted: str, lag_records: int, now_ns: int, stall_s: float
) -> ServerStatus:
    """Return address and progress of shipping as the agent reported last. `wanted`: the address given to `init`.

    `state` is off (no server), starting, connecting, shipping, idle (all is there), waiting (for the next try: see
    `error`), refused (for good) or stalled. `lag_records` are not there; `refused_records` of them never will be.
    """
    unknown = (wanted, "", "")
    address, error, reason = unknown if words is None else ship_texts(words) or unknown
    state = layout.SHIP_OFF if words is None else words[layout.AGENT_SHIP_STATE]
    name = layout.SHIP_STATES[state] if state < len(layout.SHIP_STATES) else "stalled"
    if state <= layout.SHIP_LOOKING:
        if not address:
            return no_server()
        name = "starting"
    elif words is not None and name != "refused":
        silent_s = (now_ns - words[layout.AGENT_SHIP_BEAT]) / 1e9
        name = "stalled" if silent_s > _SHIP_STALLS * max(1.0, stall_s) else name
    refused = min(lag_records, 0 if words is None else words[layout.AGENT_SHIP_REFUSED])
    return {
        "address": address,
        "state": name,  # type: ignore[typeddict-item]  # one of layout.SHIP_STATES
        "error": error,
        "reason": reason,
        "lag_records": lag_records,
        "refused_records": refused,
    }


def ship_texts(words: memoryview) -> tuple[str, str, str] | None:
    """Return address, error and reason of refusal from the agent's status page; None where nothing there checks."""
    mem = words.cast("B")
    newest: tuple[int, bytes] = (0, b"")
    for slot in (0, 1):
        at = layout.SHIP_TEXTS + slot * layout.SHIP_TEXT_BYTES
        version, check = words[at >> 3], words[(at >> 3) + 1]
        begin, length = at + layout.DOCUMENT_HEADER, check & 0xFFFF_FFFF
        if version <= newest[0] or length > layout.SHIP_TEXT_BYTES - layout.DOCUMENT_HEADER:
            continue
        text = bytes(mem[begin : begin + length])
        if words[at >> 3] == version and crc32(text) == check >> 32:
            newest = version, text
    if not newest[0]:
        return None
    address, error, reason, *_ = (*newest[1].decode("utf-8", "replace").split("\n"), "", "")
    return address, error, reason

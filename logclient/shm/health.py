"""Health of agent, shipping and device values, as `run.status()` and `logclient status` show it.

Reads the agent's status page; runs in the training process and in readers.
"""

from __future__ import annotations

import os
from zlib import crc32

from . import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..typed import AgentStatus, DeviceStatus, MediaStatus, ServerStatus

_START_STALLS = 2  # stall times within which the worker of an agent that was called for is heard
_SHIP_STALLS = 6  # stall times after which the process that ships has been replaced, if that is any use


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


def no_media() -> MediaStatus:
    """Media values of a process that logged none."""
    return {
        "accepted": 0,
        "stored": 0,
        "lost": 0,
        "forgotten": 0,
        "damaged": 0,
        "over_budget": 0,
        "refused": 0,
    }


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
    lines = _ship_lines(words)
    return None if lines is None else (lines[0], lines[1], lines[2])


def page_address(words: memoryview | None) -> str:
    """Return the address of the collector's page from the agent's status page; empty where none is there."""
    lines = None if words is None else _ship_lines(words)
    return "" if lines is None else lines[3]


def _ship_lines(words: memoryview) -> list[str] | None:
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
    return [*newest[1].decode("utf-8", "replace").split("\n"), "", "", ""]  # an older agent writes fewer

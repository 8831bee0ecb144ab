"""The status of a run as one process sees it: counts, health of its agent, shipping, device values.

Runs in the training process, in whatever thread asks. Reads memory alone, waits for nobody.
"""

from __future__ import annotations

import time

from ..guest.descriptors import Mapped
from ..shm.counters import lane_counts, missing_there
from ..shm.health import describe_agent, describe_server
from ..spawn import agent as spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..typed import DeviceStatus, MediaStatus, RunState, Status
    from .session import Session


def status_of(session: Session) -> Status:
    """Implement `Run.status`."""
    session.counters.publish()  # an exception of a handler's may have struck in the middle of it
    is_here = bool(session.mark[0])  # else a forked child that has logged nothing yet
    taken = session.lanes if is_here else None
    counts = dict(session.outcome.counts) if taken is None else lane_counts(taken.words)
    words, now_ns, stall_s = session.status_page, time.monotonic_ns(), session.settings.stall_s
    if words is not None and not isinstance(words.obj, Mapped):
        now_ns = session.outcome.left_ns  # the page is a copy, of when this process let go of the run
    agent = describe_agent(words, now_ns, stall_s)
    if agent["state"] == "gone" and words is not None and spawn.agent_lives(session.shm_dir):
        agent["state"] = "stalled"  # on a machine that is very busy, or stopped
    return {
        "state": _state_of(session),
        "accepted": counts["accepted"],
        "forgotten": counts["forgotten"],
        "damaged": counts["damaged"],
        "durable": counts["stored"],
        "acked": counts["acked"],
        "refused": session.counters.refused.value if is_here else 0,
        "left_out": session.counters.left_out.value if is_here else 0,
        "agent": agent,
        "server": describe_server(words, session.server, missing_there(counts), now_ns, stall_s),
        "device": device_of(session),
        "media": media_of(session),
        "notices": list(session.notices.lines),
    }


def _state_of(session: Session) -> RunState:
    if session.closed:
        return "finished"
    if not session.mark[0]:
        return "forked"
    return "open" if session.lanes is not None else "no memory"


def device_of(session: Session) -> DeviceStatus:
    session.settle_device_values()
    encoder = session.encoder if session.mark[0] else None
    if encoder is None or encoder.device is None:
        return {**session.outcome.device}
    return encoder.device.describe()


def media_of(session: Session) -> MediaStatus:
    """Return the counts of media values; after the run those of its end."""
    encoder = session.encoder if session.mark[0] else None
    if encoder is None or encoder.media is None:
        return {**session.outcome.media}
    return encoder.media.counts()

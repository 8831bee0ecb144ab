"""Types of what `Run.status()` returns, for type checkers and for whoever builds on it.

A module of its own, loaded when somebody asks for one of these names: `typing` costs some milliseconds of import that
a training process does not pay. At run time every value is a plain dict.

Every key is there in every state of a run: disabled, starting, forked, finished, without agent or shared memory.
Sentences (`disk`, `disk_error`, `error`, `reason`, `trouble`, `notices`) are for people and may change; codes and
numbers stand beside them.
"""

from __future__ import annotations

from typing import Literal, TypedDict

RunState = Literal["open", "finished", "forked", "no memory", "no run", "disabled"]
AgentState = Literal["running", "starting", "stalled", "gave up", "gone"]
ServerState = Literal["off", "starting", "connecting", "shipping", "idle", "waiting", "refused", "stalled"]


class AgentStatus(TypedDict):
    """Health of the agent that serves this run on this node."""

    state: AgentState
    supervisor: int  # PIDs; 0: none is known
    worker: int
    restarts: int
    disk: str  # how the disk under the run folder answers, in words
    disk_silent_s: float  # seconds since it stopped answering; 0.0: it answers
    disk_error: str  # the last failed write, in words; empty: none since the last success
    disk_errno: int  # the same as a number; 0: none
    spill_bytes: int  # shared memory taken by what is not on disk yet


class ServerStatus(TypedDict):
    """Progress of shipping to a collector."""

    address: str
    state: ServerState
    error: str  # what is wrong, in words
    reason: str  # why the collector refuses `refused_records`, in its words
    lag_records: int  # accepted, and not committed at the collector
    refused_records: int  # of these, so many never will be


class DeviceStatus(TypedDict):
    """Progress of values that lie on a device."""

    way: str  # empty: none were logged
    trouble: str
    in_flight: int  # records that wait for some


class MediaStatus(TypedDict):
    """Counts of media values: accepted = stored + forgotten + damaged, when everything is written."""

    accepted: int  # written to shared memory
    stored: int  # of these, on disk past an fsync
    lost: int  # of these, without bytes: a file was gone, an encoder failed; the reason is stored
    forgotten: int  # overwritten before the agent took them
    damaged: int
    over_budget: int  # values, images in cells and frames of films left out, since they did not fit
    refused: int  # the same for any other reason


class Status(TypedDict):
    """Counts of this process, health of the agent, and how shipping goes."""

    state: RunState
    accepted: int
    forgotten: int
    damaged: int
    durable: int
    acked: int
    refused: int
    left_out: int
    agent: AgentStatus
    server: ServerStatus
    device: DeviceStatus
    media: MediaStatus
    notices: list[str]

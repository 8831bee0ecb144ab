"""One node's folder of a run: its documents, parsed and checked, and where its segments lie.

A run has a node folder per shm directory: one per host, and one more each time it is resumed. Runs in any reader.

Invariants: nothing in the documents is believed to have the type it should; what has not counts as absent. A folder
whose documents cannot be read is still a node, with the reason in `problem`: its segments may be whole.

Does not: read segments, or say what the documents of several nodes mean together (`view.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from logclient.errors import Unsupported
from logclient.shm.side_stream import side_of

from ..wal.coverage import Spans
from ..wal.documents import DocumentFile
from ..wal.files import REAL
from ..wal.reader import list_stems
from .observed import Observation, StallSpan, observation_of, stalls_of

VERSION = 1  # of the documents' JSON
_COPY_NS = (
    24 * 3600 * 10**9
)  # documents that were written so long after what they say lie in a copy of the folder


@dataclass(frozen=True, slots=True)
class Document:
    """A document that a process wrote about the run, and when (ns since 1970)."""

    time: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class End:
    """The end of a process as the agent saw it: with a code, a signal, or neither: nobody could tell.

    `alive`: it only gave up its lanes. `replaced`: it became another program by `exec`, whose end says nothing of this.
    `dropped`: its last handle of the run went, without `finish`; whatever its process did then is another matter.
    """

    time: int
    alive: bool
    exit_code: int | None
    signal: int | None
    replaced: bool = False
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Process:
    """One process incarnation that logged to the run."""

    id: str
    node: str
    host: str
    pid: int
    rank: int | None
    created_ns: int
    documents: dict[str, Document]
    refused: int
    left_out: int
    end: End | None
    job: str = ""  # what a scheduler said became of its job: preempted or requeued
    found: dict[str, tuple[int, bool]] = field(
        default_factory=dict
    )  # see agent/drain/other_nodes.py; of an owner

    def data(self, kind: str) -> dict[str, Any]:
        """The newest document of that kind; empty where there is none."""
        found = self.documents.get(kind)
        return found.data if found else {}

    @property
    def is_owner(self) -> bool:
        return self.data("start").get("role") == "owner"

    @property
    def is_abandoned(self) -> bool:
        """`init` raised: this process was never part of the run."""
        return self.data("state").get("state") == "abandoned"


@dataclass(frozen=True, slots=True)
class Told:
    """The agent's counts of one stream when it last wrote the documents."""

    process: str
    lane: int
    accepted: int
    stored: int
    damaged: int
    acked: int = 0  # by a collector


HEARTBEAT_S = 10  # of an agent to which records come; one at rest promises another in its documents
_MAX_HEARTBEAT_S = 600


@dataclass(slots=True)
class Node:
    """One node of a run."""

    path: str
    id: str
    problem: str = ""
    odd: dict[str, str] = field(default_factory=dict)  # files in it that are none of ours, and what they are
    raw: dict[str, Any] | None = None  # the documents as they are stored
    run: dict[str, Any] = field(default_factory=dict)
    host: str = ""
    revision: int = 0  # of the documents; 0: an earlier build wrote them
    heard_ns: int = 0
    written_ns: int = (
        0  # the same moment as the file system of the folder told it: one clock for all nodes; 0: not known
    )
    heard_mono_ns: int = 0  # the same moment by the monotonic clock of its host; 0: an earlier build wrote it
    heartbeat_s: int = HEARTBEAT_S  # within which the agent promised the next documents
    closed: bool = False
    refused: int = 0  # records, by processes that got no lanes
    ship: dict[str, Any] = field(
        default_factory=dict
    )  # server, state and error of shipping; empty: it is not shipped
    requests: list[Any] = field(default_factory=list)  # to stop or to save, see `stop_requests.py`
    observed: Observation | None = None  # by its observer; None: it has none
    stalls: list[StallSpan] = field(default_factory=list)
    environment: dict[str, Any] = field(
        default_factory=dict
    )  # see `agent/supervise/capture.py`; empty: not known
    processes: dict[str, Process] = field(default_factory=dict)
    streams: dict[str, Told] = field(default_factory=dict)
    # the same of each side (`shm/side_stream.py`), which are in no count of the run
    side_processes: dict[str, dict[str, Process]] = field(default_factory=dict)
    side_streams: dict[str, dict[str, Told]] = field(default_factory=dict)
    side: str = ""  # `processes` and `streams` are those of this side, too
    # where they are not what this host's clock and the segments in `path` tell: in a collector, and read from one
    now_ns: int = 0  # what time it is by the clock of this node
    spans: Callable[[], Spans] | None = None

    def of_side(self, side: str) -> Node:
        """Return the same node with the records of a side in the place of what was logged."""
        processes, streams = self.side_processes.get(side, {}), self.side_streams.get(side, {})
        return replace(self, processes=processes, streams=streams, refused=0, side=side)

    def own_raw(self) -> dict[str, Any] | None:
        """Return the documents as stored, with processes and streams of its side only; None: there are none."""
        if self.raw is None or not (self.side_processes or self.side_streams):
            return self.raw
        return self.raw | {
            name: {key: each for key, each in table(self.raw.get(name)).items() if side_of(key) == self.side}
            for name in ("processes", "streams")
        }

    @property
    def rest_s(self) -> int:
        """By how much its heartbeat may be slower than that of a run to which records come."""
        return self.heartbeat_s - HEARTBEAT_S

    def clock_ns(self, now_ns: int) -> int:
        """Return the time by the clock of this node, if `now_ns` is that of the reader.

        Two hosts' clocks differ by minutes, so how long the node is silent is told by when its documents were written,
        as the file system has it: a clock that all nodes and readers of a shared folder have in common, about. In a
        copy of the folder that is the time of the copy, and nothing but the node's own time is left.
        """
        if self.now_ns:
            return self.now_ns
        if self.written_ns and abs(self.written_ns - self.heard_ns) < _COPY_NS:
            return self.heard_ns + max(0, now_ns - self.written_ns)
        return now_ns


def load_node(path: str) -> Node:
    """The node in that folder; never raises for what is in it."""
    node = Node(path, os.path.basename(path))
    try:
        documents = DocumentFile(path)
        data = documents.load()
        node.odd = documents.odd
        if data is None:
            names = list_stems(REAL, path)
            node.problem = "its documents are missing or damaged" if names else "empty"
            return node
        node.written_ns = documents.written_ns
        take(node, json.loads(data))
    except Unsupported:
        node.problem = "written by a newer logclient: update to read it"
    except OSError as error:
        node.problem = f"not readable: {error.strerror}"
    except (ValueError, RecursionError) as error:
        node.problem = f"its documents are no JSON: {error}"
    return node


def is_older(node: Node, than: Node) -> bool:
    """Were these documents of a node written before those? An earlier build's have no revision, only a time."""
    if node.revision or than.revision:
        return node.revision < than.revision
    return node.heard_ns < than.heard_ns


def shorten(node: Node) -> None:
    """Let go of what its processes and streams told, configs above all; for those who look at very many runs at once.

    What is left says whose it is, and whether it is over.
    """
    if node.raw is not None:
        node.raw = {"node": node.raw.get("node")}
    node.processes, node.streams, node.environment = {}, {}, {}
    node.side_processes, node.side_streams = {}, {}


def take(node: Node, raw: Any) -> None:
    """Fill a node from its documents' JSON; `Unsupported` where a newer version wrote it, `ValueError` for none."""
    if not isinstance(raw, dict):
        raise ValueError("no object")
    if whole(raw.get("version")) > VERSION:
        raise Unsupported(f"documents of version {raw['version']}, this logclient reads up to {VERSION}")
    node.raw = raw
    node.run = table(raw.get("run"))
    node.host = text(raw.get("host"))
    node.revision = whole(raw.get("revision"))
    node.heard_ns = whole(raw.get("heard_ns"))
    node.heard_mono_ns = whole(raw.get("heard_mono_ns"))
    node.heartbeat_s = min(_MAX_HEARTBEAT_S, max(HEARTBEAT_S, whole(raw.get("heartbeat_s"))))
    node.closed = raw.get("closed") is True
    node.refused = whole(raw.get("refused"))
    node.ship = table(raw.get("ship"))
    node.requests = listed(raw.get("requests"))
    observed = table(raw.get("observed"))
    node.observed = observation_of(observed, partial(_when, node), node=node.id, host=node.host)
    node.environment = table(raw.get("environment"))
    node.stalls = stalls_of(observed.get("stalls"), partial(_when, node), host=node.host)
    node.processes, node.side_processes = {}, {}
    for key, value in table(raw.get("processes")).items():
        if is_id(key) and isinstance(value, dict):
            side = side_of(key)
            processes = node.side_processes.setdefault(side, {}) if side else node.processes
            processes[key] = _process(key, node, value)
    node.streams, node.side_streams = {}, {}
    for key, value in table(raw.get("streams")).items():
        if not is_id(key) or not isinstance(value, dict):
            continue
        side = side_of(key)
        streams = node.side_streams.setdefault(side, {}) if side else node.streams
        streams[key] = Told(
            value["process"] if is_id(value.get("process")) else "",
            whole(value.get("lane")),
            whole(value.get("accepted")),
            whole(value.get("stored")),
            whole(value.get("damaged")),
            whole(value.get("acked")),
        )


def _process(key: str, node: Node, value: dict[str, Any]) -> Process:
    rank = value.get("rank")
    return Process(
        key,
        node.id,
        node.host,
        whole(value.get("pid")),
        rank if type(rank) is int else None,
        _when(node, value.get("created_ns"), value.get("created_mono_ns")),
        {
            kind: Document(_when(node, document.get("time"), document.get("mono_ns")), document["data"])
            for kind, document in table(value.get("documents")).items()
            if isinstance(document, dict) and isinstance(document.get("data"), dict)
        },
        whole(value.get("refused")),
        whole(value.get("left_out")),
        _end(node, value.get("end")),
        text(table(value.get("job")).get("state")),
        _found(value.get("found")),
    )


def _when(node: Node, time: Any, mono_ns: Any) -> int:
    """Return a time of that node by the last setting of its wall clock, where the monotonic one is known too."""
    if whole(mono_ns) > 0 and node.heard_mono_ns > 0:
        return node.heard_ns - node.heard_mono_ns + whole(mono_ns)
    return whole(time)


def _found(value: Any) -> dict[str, tuple[int, bool]]:
    return {
        name: (told[0], told[1] is True)
        for name, told in table(value).items()
        if isinstance(told, list) and len(told) == 2 and type(told[0]) is int
    }


def _end(node: Node, value: Any) -> End | None:
    if not isinstance(value, dict):
        return None
    code, signal = value.get("exit_code"), value.get("signal")
    return End(
        _when(node, value.get("time"), value.get("mono_ns")),
        value.get("alive") is True,
        code if type(code) is int else None,
        signal if type(signal) is int else None,
        value.get("replaced") is True,
        value.get("dropped") is True,
    )


def is_id(value: Any) -> bool:
    """An id of a stream or process: 16 bytes as hex."""
    return isinstance(value, str) and len(value) == 32 and not set(value) - set("0123456789abcdef")


def whole(value: Any) -> int:
    """An int; 0 for what is none."""
    return value if type(value) is int else 0


def text(value: Any) -> str:
    """A str; empty for what is none."""
    return value if isinstance(value, str) else ""


def table(value: Any) -> dict[str, Any]:
    """A dict; empty for what is none."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """A list; empty for what is none."""
    return value if isinstance(value, list) else []

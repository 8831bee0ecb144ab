"""The node's documents: what is known of the run, its processes and streams on this node, as one JSON object.

Runs in the worker's main thread; the copier saves what `content` returns. Readers (`runs/`) parse it.

::

    {"version": 1, "revision": n, "run": {...}, "node": id, "host": name, "heard_ns": n, "heard_mono_ns": n,
     "heartbeat_s": n (only at rest), "closed": bool, "set_aside": [{"file", "reason"}],
     "refused": n (by processes without lanes), "ship": null | {"server", "state", "error"},
     "requests": [{"id", "kind", "save", "reason", "by", "via", "time_ns", "taken_ns", "step", "state", "why"}],
     "environment": {"process", "captured_ns", "environment": {...}} (as `supervise/capture.py` leaves it),
     "observed": {"kind", "verdict", "text", "since_ns", "since_mono_ns", "rank", "step", "stalls": [...]},
     "processes": {hex: {"pid", "rank", "created_ns", "created_mono_ns",
                         "documents": {kind: {"time", "mono_ns", "data"}}, "refused", "left_out",
                         "job": null | {"time", "state": "preempted" | "requeued"},
                         "end": null | {"time", "mono_ns", "alive",
                                        "exit_code" | "signal" | "replaced" | none of them},
                         "found": null | {node: [revision, is over]}}},
     "streams": {hex: {"process", "lane", "accepted", "stored", "damaged", "acked" (where a collector has some)}}}

Times with a `mono_ns` beside them are ordered, and made into times, by that: `heard_ns` is the time of `heard_mono_ns`.
`heartbeat_s`: the next version comes within that time; where it is missing, within 10 s (a margin is not included).
`requests`: to stop or to save, as `stop_requests.py` took them; `step` null: at once. Missing where there are none.
`observed`: does the run get on, as `observer/why_files.py` has it. Missing where there is no observer.
`found`: of an owner that no launcher numbers, what lay beside this node when it came (`other_nodes.py`).
With "signal" goes "signal_name", as a shell has it.

Processes and streams with an id of a side (`side_stream.py`; `kind` of the start document is the side) are not among
what was logged: readers leave them out of a run's counts.
forgotten = accepted - stored - damaged, once the process has ended and everything is durable.

Invariants:

- an entry becomes text when it changes, not when the whole is written: a run with thousands of ended processes costs
  little more than copying their bytes, and that is done the less often the longer it takes;
- of an ended process that is no owner only what says something is kept;
- each content has a higher revision than any before it, whoever wrote that: of two versions the higher one is newer;
- nothing that an earlier worker knew is lost: it is taken over from tmpfs, and from the run folder once that answers.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from typing import Any

from logclient.shm import layout, modes
from logclient.shm.regular import read_regular
from logclient.shm.shm_dir import ShmDir
from logclient.shm.side_stream import side_of

from ...signals import signal_name
from ..host.process_handle import Cause
from .producer import Producer

_TO_JSON = json.JSONEncoder(separators=(",", ":")).encode
# Seconds between two contents while nothing changes, and within how many the next one is promised. It is promised where
# a reader cannot know it: at rest. What may be late in a file system or a network comes on top (`runs/state.py`).
_HEARTBEAT_S = 10.0
_REST_HEARTBEAT_S, _REST_PROMISE_S = 30.0, 40
_MIN_S = 0.5  # between two contents
_COUNTS_S = 5.0  # the same where only counts grew
_SHARE, _SHARE_AT_ONCE = 20, 2  # writing it takes at most 1/20 of the time, 1/2 while somebody waits for it


class Entry:
    """One process and its streams, as text; and what is asked about them."""

    __slots__ = ("end", "found", "is_run", "job", "seen", "streams", "text", "version")

    def __init__(
        self,
        version: int,
        key: str,
        value: dict[str, Any],
        streams: dict[str, Any],
        seen: tuple[Any, ...] = (),
    ) -> None:
        self.version = version  # of the first content that holds it like this
        self.seen = seen
        self.end: dict[str, Any] | None = value.get("end")
        self.job: dict[str, Any] | None = value.get("job")
        self.found: dict[str, Any] | None = value.get("found")
        self.is_run = not side_of(key) and (bool(streams) or not _is_abandoned(value))
        self.text = _members({key: value})
        self.streams = _members(streams)


class Ledger:
    """Collects; `content` is due when `is_due`."""

    def __init__(self, shm_dir: ShmDir, status: memoryview | None = None) -> None:
        """`status`: the words of the agent's status page, which keep the revision."""
        facts = shm_dir.facts
        names = ("run_id", "project", "name", "created_ns", "server")
        self._status = status
        self._revision = 0  # of the last content that is known
        self._fixed = {
            "run": {name: facts.get(name) for name in names},
            "node": facts.get("node"),
            "host": os.uname().nodename,
        }
        self._path = shm_dir.file("ledger.json")
        self._entries: dict[str, Entry] = {}
        self._set_aside: dict[str, str] = {}
        self._streams: dict[
            str, tuple[str, int]
        ] = {}  # of every stream: its process, and how many are stored
        self._acked: dict[str, int] = {}
        self._ship: dict[str, str] | None = None
        self._requests: dict[str, dict[str, Any]] = {}  # by id
        self._observed: dict[str, Any] | None = None
        self._environment: dict[str, Any] | None = None
        self.refused = 0  # records, by processes without lanes
        self._refused_written = 0  # in the last content
        self._made_at = 0.0
        self._want_s = _MIN_S
        self._cost_s = 0.0
        self.closed = False
        self.is_at_rest = False  # no record has come for a while
        self._heartbeat_s = _HEARTBEAT_S  # after the last content
        self.has_absorbed = False  # what is in the run folder
        self.version = 0

    # ---- what earlier workers knew -----------------------------------------------------------------------

    def load(self) -> None:
        """Go on from what an earlier worker left on tmpfs."""
        try:
            self._merge(read_regular(self._path))
        except OSError:
            return

    def absorb(self, saved: bytes) -> None:
        """Add what only the documents in the run folder know: tmpfs may have been full, or cleared."""
        self.has_absorbed = True
        self._merge(saved)
        self._want(0.0)  # what was kept in memory alone until now

    def _merge(self, saved: bytes) -> None:
        try:
            whole = json.loads(saved or b"{}")
            self._revision = max(self._revision, int(whole.get("revision", 0)))
            streams: dict[str, dict[str, Any]] = {}
            for key, counts in dict(whole.get("streams", {})).items():
                streams.setdefault(str(counts["process"]), {})[key] = counts
            for key, value in dict(whole.get("processes", {})).items():
                if key not in self._entries and isinstance(value, dict):
                    self._entries[key] = Entry(self.version + 1, key, value, streams.get(key, {}))
                    self._know(key, streams.get(key, {}))
                    self._want(_MIN_S)
            self.refused = max(self.refused, int(whole.get("refused", 0)))
            for request in whole.get("requests", []):
                self._requests.setdefault(str(request["id"]), dict(request))
            if self._observed is None and isinstance(whole.get("observed"), dict):
                self._observed = whole["observed"]
            if self._environment is None and isinstance(whole.get("environment"), dict):
                self._environment = whole["environment"]
            for item in whole.get("set_aside", []):
                self.set_aside(str(item["file"]), str(item["reason"]))
        except (ValueError, AttributeError, TypeError, KeyError):
            return

    # ---- what is known now ---------------------------------------------------------------------------------

    def note(self, producer: Producer, *, counts: bool = True) -> None:
        """Take over a producer's documents and counts; not `counts`: those alone can wait for the next content."""
        seen = _seen(producer)
        before = self._entries.get(producer.process.hex())
        if before is not None and before.seen == seen:
            return
        only_counts = before is not None and before.seen[:1] == seen[:1]
        if counts or not only_counts:
            self._store(producer, seen, before.end if before else None)
        self._want(_COUNTS_S if only_counts else _MIN_S)
        self.closed = False

    def end(self, producer: Producer, cause: Cause | None, *, alive: bool, is_replaced: bool = False) -> None:
        """The process ended, became another program (`is_replaced`), or gave up its lanes and lives on (`alive`)."""
        entry = self._entries[producer.process.hex()]
        end: dict[str, Any] = {"time": time.time_ns(), "mono_ns": time.monotonic_ns(), "alive": alive}
        if is_replaced:
            end["replaced"] = True
        if producer.is_dropped:
            end["dropped"] = True
        if cause is not None:
            if cause.signal is None:
                end["exit_code"] = cause.exit_code
            else:
                end["signal"], end["signal_name"] = cause.signal, signal_name(cause.signal)
        now = {"time": 0, "mono_ns": 0}
        if {**(entry.end or {}), **now} != {**end, **now}:
            self._store(producer, entry.seen, end)
            self._want(_MIN_S)

    def note_job(self, producer: Producer, state: str) -> None:
        """Note the scheduler's verdict about the process's job."""
        self.note(producer)
        entry = self._entries[producer.process.hex()]
        if entry.job is None or entry.job.get("state") != state:
            entry.job = {"time": time.time_ns(), "state": state}
            self._store(producer, entry.seen, entry.end)
            self._want(0.0)

    def _store(self, producer: Producer, seen: tuple[Any, ...], end: dict[str, Any] | None) -> None:
        key = producer.process.hex()
        before = self._entries.get(key)
        found = before.found if before and before.found is not None else producer.found
        value = {
            "pid": producer.pid,
            "rank": producer.rank,
            "created_ns": producer.created_ns,
            "created_mono_ns": producer.created_mono_ns,
            "documents": _significant(producer.documents) if end else dict(producer.documents),
            "refused": producer.words[layout.REFUSED],
            "left_out": producer.words[layout.LEFT_OUT],
            "end": end,
            "job": before.job if before else None,
            **({"found": found} if found is not None else {}),
        }
        streams = {
            lane.stream.hex(): {
                "process": key,
                "lane": lane.index,
                "accepted": lane.durable,
                "stored": lane.stored,
                "damaged": lane.damaged,
                **self._acked_of(lane.stream.hex()),
            }
            for lane in producer.lanes
            if lane.durable
        }
        self._entries[key] = Entry(self.version + 1, key, value, streams, seen)
        self._know(key, streams)

    def _know(self, process: str, streams: dict[str, dict[str, Any]]) -> None:
        for stream, counts in streams.items():
            self._streams[stream] = (process, int(counts["stored"]))
            self._acked.setdefault(stream, int(counts.get("acked", 0)))

    def _acked_of(self, stream: str) -> dict[str, int]:
        number = self._acked.get(stream)
        return {"acked": number} if number else {}

    # ---- shipping --------------------------------------------------------------------------------------------

    def note_acked(self, acked: Mapping[str, int]) -> None:
        """Note how many records of each stream the collector has, streams of processes that are gone included."""
        changed: dict[str, list[str]] = {}
        for stream in acked.keys() | self._acked.keys():
            number = acked.get(stream, 0)
            if self._acked.get(stream, 0) != number and stream in self._streams:
                changed.setdefault(self._streams[stream][0], []).append(stream)
            self._acked[stream] = number
        for process, those in changed.items():
            entry = self._entries[process]
            streams = json.loads(b"{%b}" % entry.streams)
            for stream in those:
                streams[stream].pop("acked", None)
                streams[stream].update(self._acked_of(stream))
            entry.streams = _members(streams)  # of no new version: nobody's end waits for it
        if not all(
            map(side_of, changed)
        ):  # those of host and device metrics are written with what comes anyway
            self._want(_COUNTS_S)

    @property
    def ship(self) -> dict[str, str] | None:
        """Progress of shipping: server, state, error."""
        return self._ship

    @ship.setter
    def ship(self, ship: dict[str, str]) -> None:
        if ship != self._ship:
            self._ship = ship
            self._want(_MIN_S)

    @property
    def observed(self) -> dict[str, Any] | None:
        """The finding of the observer: does the run get on?"""
        return self._observed

    @observed.setter
    def observed(self, observed: dict[str, Any] | None) -> None:
        if observed != self._observed:
            self._observed = observed
            self._want(_MIN_S)

    @property
    def environment(self) -> dict[str, Any] | None:
        """Environment of the process that owned the run last."""
        return self._environment

    @environment.setter
    def environment(self, environment: dict[str, Any]) -> None:
        self._environment = environment
        self._want(_MIN_S)

    @property
    def missing_there(self) -> int:
        """Records that are stored and that no collector is known to have."""
        acked = self._acked
        return sum(max(0, stored - acked.get(stream, 0)) for stream, (_, stored) in self._streams.items())

    # ---- requests to stop or to save ---------------------------------------------------------------------------

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Requests that were taken, the oldest first."""
        return list(self._requests.values())

    @requests.setter
    def requests(self, requests: list[dict[str, Any]]) -> None:
        self._requests = {request["id"]: request for request in requests}
        self._want(0.0)

    def let_go(self, producer: Producer) -> None:
        """Nothing more will be noted of it: its text stays."""
        entry = self._entries[producer.process.hex()]
        entry.seen, entry.end, entry.job = (), None, None

    def version_of(self, producer: Producer) -> int:
        """The first version of the content with what is known of it now."""
        return self._entries[producer.process.hex()].version

    def set_aside(self, file: str, reason: str) -> None:
        """A lane file that cannot be read."""
        if self._set_aside.get(file) != reason:
            self._set_aside[file] = reason
            self._want(_MIN_S)

    def close(self) -> None:
        """Nothing more will come from this node unless a new process joins."""
        if not self.closed:
            self.closed = True
            self._want(_MIN_S)

    @property
    def has_run(self) -> bool:
        """Something was logged, or an `init` succeeded (or has not failed yet)."""
        return any(entry.is_run for entry in self._entries.values())

    def _want(self, after_s: float) -> None:
        self._want_s = min(self._want_s, after_s)

    # ---- writing it ------------------------------------------------------------------------------------------

    def is_due(self, *, at_once: bool) -> bool:
        """Changed (and not written just before), or the heartbeat's time has come."""
        if self.refused != self._refused_written:
            self._want(_COUNTS_S)
        age = time.monotonic() - self._made_at
        if not self.is_written:
            return age > (
                _SHARE_AT_ONCE * self._cost_s if at_once else max(self._want_s, _SHARE * self._cost_s)
            )
        return age > self._heartbeat_s and not self.closed

    @property
    def due_at(self) -> float:
        """The time at which the documents are due if nothing else happens (monotonic)."""
        if not self.is_written:
            return self._made_at + max(self._want_s, _SHARE * self._cost_s)
        return math.inf if self.closed else self._made_at + self._heartbeat_s

    @property
    def is_written(self) -> bool:
        """The last `content` holds all that is known."""
        return self._want_s == math.inf

    def content(self) -> tuple[int, bytes]:
        """(version, JSON bytes) as of now."""
        started = time.monotonic()
        self._want_s = math.inf
        self.version += 1
        aside = [{"file": file, "reason": reason} for file, reason in self._set_aside.items()]
        # in this order: `runs/document_head.py` looks for both at the very beginning, and for the first key of the
        # name `heard_ns` or `closed`, before which nothing may stand that a user writes
        head: dict[str, Any] = {"version": 1, "revision": self._next_revision()}
        heard = {"heard_ns": time.time_ns(), "heard_mono_ns": time.monotonic_ns()}
        head |= {**self._fixed, **heard, "closed": self.closed, "set_aside": aside}
        head["ship"], head["refused"] = self._ship, self.refused
        if self._requests:
            head["requests"] = self.requests
        if self._observed is not None:
            head["observed"] = self._observed
        if self._environment is not None:
            head["environment"] = self._environment
        self._heartbeat_s = _HEARTBEAT_S
        if self.is_at_rest:
            self._heartbeat_s, head["heartbeat_s"] = _REST_HEARTBEAT_S, _REST_PROMISE_S
        self._refused_written = self.refused
        entries = self._entries.values()
        processes = b",".join([entry.text for entry in entries])
        streams = b",".join([entry.streams for entry in entries if entry.streams])
        data = b'{%b,"processes":{%b},"streams":{%b}}' % (_members(head), processes, streams)
        self._keep(data)
        self._made_at = time.monotonic()
        self._cost_s = self._made_at - started
        return self.version, data

    def _next_revision(self) -> int:
        words = self._status
        self._revision = 1 + max(self._revision, words[layout.AGENT_REVISION] if words is not None else 0)
        if words is not None:
            words[layout.AGENT_REVISION] = (
                self._revision
            )  # before anybody sees it: nobody gives it a second time
        return self._revision

    def _keep(self, data: bytes) -> None:
        try:
            modes.publish(self._path, data)
        except OSError:
            pass  # tmpfs is full, or was cleared: a successor asks the run folder


def _seen(producer: Producer) -> tuple[Any, ...]:
    """Return the parts that an entry is made from, its documents first."""
    words = producer.words
    counts = tuple((lane.durable, lane.stored, lane.damaged) for lane in producer.lanes)
    documents = producer.documents_seen, producer.found is not None
    return (documents, words[layout.REFUSED], words[layout.LEFT_OUT], counts)


def _members(value: dict[str, Any]) -> bytes:
    """Return the entries as JSON, without the braces."""
    return _TO_JSON(value)[1:-1].encode("utf-8", "backslashreplace")


def _is_abandoned(process: dict[str, Any]) -> bool:
    state = (process.get("documents") or {}).get("state") or {}
    return (state.get("data") or {}).get("state") == "abandoned"


def _significant(documents: dict[str, Any]) -> dict[str, Any]:
    """Without what a member process writes in any case: it has nothing that its entry does not contain."""
    start = (documents.get("start") or {}).get("data")
    if not isinstance(start, dict) or start.get("role") != "member":
        return documents
    return {kind: document for kind, document in documents.items() if kind != "start" and _has_data(document)}


def _has_data(document: Any) -> bool:
    data = document.get("data") if isinstance(document, dict) else document
    return any(data.values()) if isinstance(data, dict) else bool(data)

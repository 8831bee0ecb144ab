"""The node's documents: what is known of the run, its processes and streams on this node, as one JSON object.

Runs in the worker's main thread; the copier saves what `content` returns. Readers (`runs/`) parse it.

::

    {"version": 1, "run": {...}, "node": id, "host": name, "heard_ns": n, "closed": bool,
     "processes": {hex: {"pid", "rank", "created_ns", "documents": {kind: {"time", "data"}},
                         "refused", "left_out", "end": null | {"time", "exit_code" | "signal" | neither}}},
     "streams": {hex: {"process", "lane", "accepted", "stored", "damaged"}}}

forgotten = accepted - stored - damaged, once the process has ended and everything is durable.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from logclient import layout
from logclient.meeting import Meeting

from .attach import Producer
from .exits import Cause

_HEARTBEAT_S = 10.0


class Ledger:
    """Collects; `content` is due when `is_due`."""

    def __init__(self, meeting: Meeting) -> None:
        facts = meeting.facts
        names = ("run_id", "project", "name", "created_ns", "server")
        self._fixed = {
            "version": 1,
            "run": {name: facts.get(name) for name in names},
            "node": facts.get("node"),
            "host": os.uname().nodename,
        }
        self._path = meeting.file("ledger.json")
        self._processes: dict[str, dict[str, Any]] = {}
        self._streams: dict[str, dict[str, Any]] = {}
        self._made_at = 0.0
        self._changed = True
        self._cost_s = 0.0
        self.closed = False
        self.version = 0

    def load(self) -> None:
        """Go on from what an earlier worker knew; kept on tmpfs, since the run folder may not answer."""
        try:
            with open(self._path, "rb") as file:
                saved = json.loads(file.read())
            self._processes = dict(saved.get("processes", {})) | self._processes
            self._streams = dict(saved.get("streams", {})) | self._streams
        except (OSError, ValueError, AttributeError, TypeError):
            return

    def note(self, producer: Producer) -> None:
        """Take over a producer's documents and counts."""
        key = producer.process.hex()
        entry = {
            "pid": producer.pid,
            "rank": producer.rank,
            "created_ns": producer.created_ns,
            "documents": dict(producer.documents),
            "refused": producer.words[layout.REFUSED],
            "left_out": producer.words[layout.LEFT_OUT],
            "end": (self._processes.get(key) or {}).get("end"),
        }
        self._set(self._processes, key, entry)
        for lane in producer.lanes:
            if lane.durable:
                counts = {
                    "process": key,
                    "lane": lane.index,
                    "accepted": lane.durable,
                    "stored": lane.stored,
                    "damaged": lane.damaged,
                }
                self._set(self._streams, lane.stream.hex(), counts)

    def end(self, producer: Producer, cause: Cause | None, *, alive: bool) -> None:
        """The process ended (or gave up its lanes and lives on)."""
        entry = self._processes[producer.process.hex()]
        end: dict[str, Any] = {"time": time.time_ns(), "alive": alive}
        if cause is not None:
            end["exit_code" if cause.signal is None else "signal"] = (
                cause.exit_code if cause.signal is None else cause.signal
            )
        before = entry.get("end") or {}
        if {**before, "time": 0} != {**end, "time": 0}:
            entry["end"] = end
            self._changed = True

    def close(self) -> None:
        """Nothing more will come from this node unless a new process joins."""
        if not self.closed:
            self.closed = self._changed = True

    def _set(self, where: dict[str, dict[str, Any]], key: str, entry: dict[str, Any]) -> None:
        if where.get(key) != entry:
            where[key] = entry
            self._changed = True

    def is_due(self, *, at_once: bool) -> bool:
        """Changed (and not written just before), or the heartbeat's time has come."""
        age = time.monotonic() - self._made_at
        if self._changed:
            return at_once or age > max(0.5, 20 * self._cost_s)
        return age > _HEARTBEAT_S and not self.closed

    def content(self) -> tuple[int, bytes]:
        """(version, JSON bytes) as of now."""
        started = time.monotonic()
        self._changed = False
        self.version += 1
        whole = {
            **self._fixed,
            "heard_ns": time.time_ns(),
            "closed": self.closed,
            "processes": self._processes,
            "streams": self._streams,
        }
        data = json.dumps(whole, separators=(",", ":")).encode("utf-8", "backslashreplace")
        self._keep(data)
        self._made_at = time.monotonic()
        self._cost_s = self._made_at - started
        return self.version, data

    def _keep(self, data: bytes) -> None:
        making = f"{self._path}.new"
        try:
            with open(making, "wb") as file:
                file.write(data)
            os.rename(making, self._path)
        except OSError:
            pass  # tmpfs is full: a successor starts from what the lane files say

"""Requests to stop or to save that came to the collector, for a run whose nodes stop together.

Each is kept with the attempt in which it was made, and sent to every node of that: at once in the conversations that
are open, else when a node's next one begins, or when its documents show that it is part of that attempt. Runs in any
thread.

::

    <data>/requests.json, mode 0600
    {"version": 1, "requests": [{"run", "attempt", "id", "kind", "save", "reason", "by", "time_ns", "step"}]}

Invariants:

- the step is the newest that is stored of any stream of the attempt, and so far ahead of it that every node has the
  request in time: `AHEAD_S` of the fastest stream's steps;
- a node that is not known to be part of the attempt gets nothing: a run that was resumed does not stop at once;
- nothing but kind, reason, who asked, time and step is kept and sent: no command, no path;
- the file is replaced as a whole; it holds the newest `_MAX_REQUESTS`.

Does not: ask who may (`web/access.py`).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from logclient.shm import stop_requests
from logclient.shm.regular import read_regular

from ..runs import stop_step as steps
from ..wal.coverage import StreamSpan
from ..wal.whole import write_whole
from ..wire.messages import Request
from .eventlog import EventLog
from .store.interface import Reader, StoreError

FILE = "requests.json"
VERSION = 1
AHEAD_S = 10.0  # what is stored is up to a few seconds old, and a request takes a moment to the nodes

_MAX_REQUESTS = 1000
_MAX_BYTES = 4 << 20
_MAX_STREAMS = 16  # whose newest records are read, those first that came last
_RECORDS = 1000  # of each
_UNKNOWN_AHEAD = 10  # steps, where a single record shows no pace


class Answers(Protocol):
    """`wire.outbound.Replies`, as far as it is used here."""

    def ask(self, request: Request) -> None: ...


class NotNow(Exception):
    """There is nothing to ask; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A request, and the attempt in which it was made."""

    run: str
    attempt: int
    request: Request

    def as_dict(self) -> dict[str, Any]:
        return {"run": self.run, "attempt": self.attempt, **asdict(self.request)}


class StopRequests:
    """The requests of one data folder, and the conversations that they go to."""

    def __init__(self, folder: str, reader: Reader, log: EventLog) -> None:
        """Read the file; one that is damaged is as good as none."""
        self._path = os.path.join(folder, FILE)
        self._reader = reader
        self._log = log
        self._lock = threading.Lock()
        self._kept: list[Kept] = list(self._load())
        self._open: dict[tuple[str, str], set[Answers]] = {}  # conversations by run and node

    # ---- somebody asks -----------------------------------------------------------------------------------

    def ask(self, run: str, kind: str, reason: str, by: str, *, save: bool = False) -> tuple[Kept, int]:
        """Keep a request, send it to the run's nodes, return it and to how many. `NotNow` where the run is over."""
        described = self._reader.run(run)
        attempts = described.description.attempts if described is not None else {}
        if described is None or not attempts:
            raise NotNow("nothing is known of the run yet but its id: ask again in a moment")
        if described.description.state != "running":
            raise NotNow(f"the run is over ({described.description.state})")
        attempt = max(attempts.values())
        request = Request(
            stop_requests.new_id(),
            kind,
            save and kind == stop_requests.STOP,
            stop_requests.one_line(reason, stop_requests.MAX_REASON),
            stop_requests.one_line(by, stop_requests.MAX_BY),
            time.time_ns(),
            self._step(run, {process for process, number in attempts.items() if number == attempt}),
        )
        made = Kept(run, attempt, request)
        with self._lock:
            self._kept = [*self._kept, made][-_MAX_REQUESTS:]
            self._save()
        self._log.event(f"{kind} of run {run!r} was asked by token {by}{f': {reason}' if reason else ''}")
        nodes = [node for (of, node) in self._nodes() if of == run]
        return made, sum(self._send(run, node) for node in nodes)

    def of_run(self, run: str) -> list[Kept]:
        """Return what was asked of a run, the oldest first."""
        return [each for each in self._kept if each.run == run]

    # ---- conversations -----------------------------------------------------------------------------------

    def opened(self, run: str, node: str, answers: Answers) -> None:
        """Note that a conversation of a live node has begun."""
        with self._lock:
            self._open.setdefault((run, node), set()).add(answers)
        self._send(run, node)

    def closed(self, run: str, node: str, answers: Answers) -> None:
        """Note that it is over."""
        with self._lock:
            there = self._open.get((run, node), set())
            there.discard(answers)
            if not there:
                self._open.pop((run, node), None)

    def documents_came(self, run: str, node: str) -> None:
        """Look whether a node has become known as part of the attempt that a request was made in."""
        if any(each.run == run for each in self._kept):
            self._send(run, node)

    def _nodes(self) -> list[tuple[str, str]]:
        with self._lock:
            return list(self._open)

    def _send(self, run: str, node: str) -> bool:
        """Send what holds for a node; False where it has no conversation, or is not known to be part of the attempt."""
        due = self._due(run)
        if not due or not self._is_in(run, node, due[0].attempt):
            return False
        with self._lock:
            there = tuple(self._open.get((run, node), ()))
        for answers in there:
            for each in due:
                answers.ask(each.request)
        return bool(there)

    def _due(self, run: str) -> list[Kept]:
        """Return the requests that hold: of the newest attempt, from the last withdrawal on."""
        due: list[Kept] = []
        for each in self.of_run(run):
            if each.request.kind == stop_requests.CLEAR or (due and due[0].attempt != each.attempt):
                due = []
            due.append(each)
        return due

    def _is_in(self, run: str, node: str, attempt: int) -> bool:
        """Is the newest attempt of a run this one, and is the node part of it?"""
        try:
            found = self._reader.run(run)
            if found is None or found.deleted_ns:
                return False
            attempts = found.description.attempts
            if max(attempts.values(), default=0) != attempt:
                return False
            documents = json.loads(self._reader.documents(run).get(node) or b"{}")
        except (StoreError, ValueError, RecursionError):
            return False
        processes = documents.get("processes") if isinstance(documents, dict) else None
        return isinstance(processes, dict) and any(attempts.get(each) == attempt for each in processes)

    # ---- the step ----------------------------------------------------------------------------------------

    def _step(self, run: str, processes: set[str]) -> int | None:
        """Return the step of a new request; None where these processes have logged none."""
        spans = [
            span
            for span in self._reader.contents(run).values()
            if span.records and span.process.hex() in processes
        ]
        spans.sort(key=lambda span: span.last_time, reverse=True)
        paces = [found for span in spans[:_MAX_STREAMS] if (found := self._pace(run, span)) is not None]
        if not paces:
            return None
        newest = max([step for step, _ in paces] + [span.last_step for span in spans])
        return min(newest + max(ahead for _, ahead in paces), -stop_requests.LOWEST - 1)

    def _pace(self, run: str, span: StreamSpan) -> tuple[int, int] | None:
        """Return the newest step of a stream, and by how many steps a request must be ahead of it."""
        first = max(span.first or 1, (span.last or 1) - _RECORDS)
        columns, _ = self._reader.records(run, span.stream, first, most=_RECORDS + 1)
        points = sorted(
            (int(seq), int(when_ns), int(step))
            for each in columns
            for seq, when_ns, step in zip(each.columns.seq, each.columns.time, each.columns.step, strict=True)
        )
        rising = steps.rising((when_ns, step) for _, when_ns, step in points)
        if not rising:
            return None
        pace = steps.pace(rising)
        # how old the newest record is cannot be told: its host has another clock
        ahead = 2 * pace.gap + pace.ahead(pace.newest_ns, AHEAD_S)
        return rising[0][1], ahead if len(rising) > 1 else max(_UNKNOWN_AHEAD, ahead)

    # ---- the file ----------------------------------------------------------------------------------------

    def _save(self) -> None:
        content = {"version": VERSION, "requests": [each.as_dict() for each in self._kept]}
        try:
            write_whole(self._path, json.dumps(content).encode(), 0o600, sync_folder=True)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error.strerror}") from error

    def _load(self) -> Iterable[Kept]:
        try:
            content = json.loads(read_regular(self._path, max_bytes=_MAX_BYTES))
            if content["version"] > VERSION:
                raise ValueError("a newer logclient wrote it")
            yield from map(_kept, content["requests"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            self._log.event(
                f"warning: {self._path} cannot be read ({error}): requests to stop in it are forgotten"
            )


def _kept(entry: Mapping[str, Any]) -> Kept:
    checked = stop_requests.checked(entry)
    if checked is None or "step" not in checked:
        raise ValueError("a request that is none")
    fields = {name: checked[name] for name in ("id", "kind", "save", "reason", "by", "time_ns", "step")}
    return Kept(str(entry["run"]), int(entry["attempt"]), Request(**fields))

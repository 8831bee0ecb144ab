"""Environment of the run's program: asked of the supervisor's child, and taken into the node's documents.

Runs in the worker's main thread; reads and writes tmpfs only. It is asked once for each process that owns the run,
when its start document has come; the answer is `environment.json` (`supervise/capture.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from logclient.shm import layout, modes
from logclient.shm.regular import read_object

from ..host.pauses import Pipe
from ..host.shm_dir_handle import ShmDirHandle
from .node_document import Ledger
from .producer import Producer

FILE, ASKED = "environment.json", "capture"  # as `supervise/capture.py` has them


class Environments:
    """Questions and answers, as one worker sees them."""

    def __init__(
        self, handle: ShmDirHandle, status: memoryview, ledger: Ledger, supervisor: Pipe, *, is_wanted: bool
    ) -> None:
        """`supervisor` is rung with each question."""
        self._handle = handle
        self._status = status
        self._ledger = ledger
        self._supervisor = supervisor
        self._is_wanted = is_wanted
        self._seen = 0
        self._asked: set[str] = set()

    def has_news(self) -> bool:
        """Was an answer written since `look`?"""
        return bool(self._status[layout.AGENT_CAPTURE_WRITTEN] != self._seen)

    def look(self, producers: Iterable[Producer]) -> None:
        """Take an answer; ask about an owner that has come."""
        written = self._status[layout.AGENT_CAPTURE_WRITTEN]
        if written != self._seen:
            self._seen = written
            found = read_object(self._handle.file(FILE)) or {}
            if isinstance(found.get("environment"), dict):
                self._ledger.environment = found
        if self._is_wanted:
            for producer in producers:
                key = producer.process.hex()
                if key not in self._asked and not producer.is_gone:
                    self._ask(key, producer)

    def _ask(self, key: str, producer: Producer) -> None:
        start = (producer.documents.get("start") or {}).get("data")
        if not isinstance(start, dict):
            return  # not read yet
        self._asked.add(key)
        if start.get("role") != "owner" or (self._ledger.environment or {}).get("process") == key:
            return
        question = {"process": key, "pid": producer.pid, "script": str(start.get("program") or "")}
        try:
            modes.publish(self._handle.file(ASKED), json.dumps(question).encode())
        except OSError:
            return  # tmpfs is full: the run goes on without it
        self._status[layout.AGENT_CAPTURE_ASKED] += 1
        self._supervisor.ring()

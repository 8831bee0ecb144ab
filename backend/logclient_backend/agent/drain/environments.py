"""Environment of the run's program: asked of the supervisor's child, and taken into the node's documents.

Runs in the worker's main thread; reads and writes tmpfs only. It is asked once for each attempt, about the first
process that owns the run, when its start document has come; the answer is `environment.json` (`supervise/capture.py`).
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
            self._look_for_owner([producer for producer in producers if not producer.is_gone])

    def _look_for_owner(self, producers: list[Producer]) -> None:
        """Ask about an owner that has come; the ranks of one attempt on this node are asked about once."""
        known = {*self._asked, str((self._ledger.environment or {}).get("process"))}
        if any(producer.process.hex() in known for producer in producers):
            return
        for producer in producers:
            start = (producer.documents.get("start") or {}).get("data")
            if isinstance(start, dict) and start.get("role") == "owner":
                self._ask(producer, str(start.get("program") or ""))
                return

    def _ask(self, producer: Producer, script: str) -> None:
        key, ticks = producer.process.hex(), producer.words[layout.FILE_START_TICKS]
        self._asked.add(key)
        question = {"process": key, "pid": producer.pid, "ticks": ticks, "script": script}
        try:
            modes.publish(self._handle.file(ASKED), json.dumps(question).encode())
        except OSError:
            return  # tmpfs is full: the run goes on without it
        self._status[layout.AGENT_CAPTURE_ASKED] += 1
        self._supervisor.ring()

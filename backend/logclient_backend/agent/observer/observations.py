"""Takes over into the node's documents, and so to run folder and collector, whether the run gets on.

Runs in the worker's main thread; reads tmpfs only.
"""

from __future__ import annotations

from logclient.shm import layout

from ..drain.node_document import Ledger
from ..host.shm_dir_handle import ShmDirHandle
from . import why_json


class Observations:
    """The observer's findings, as one worker sees them."""

    def __init__(self, handle: ShmDirHandle, status: memoryview, ledger: Ledger) -> None:
        self._handle = handle
        self._status = status
        self._ledger = ledger
        self._seen = 0

    def has_news(self) -> bool:
        """Did the observer write anything since `look`?"""
        return bool(self._status[layout.AGENT_OBSERVER_WRITTEN] != self._seen)

    def look(self) -> None:
        """Take over what is new."""
        written = self._status[layout.AGENT_OBSERVER_WRITTEN]
        if written == self._seen:
            return
        self._seen = written
        found = why_json.read(self._handle)
        observed = found.get("observed")
        if isinstance(observed, dict):
            self._ledger.observed = {**observed, "stalls": found.get("stalls")}

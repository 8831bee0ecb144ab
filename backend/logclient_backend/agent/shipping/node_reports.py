"""The newest report of this node for a collector: what the observer keeps in `why.json` while the run does not get on.

Runs in the ship process; reads tmpfs only. While the run gets on there is no report, which is sent as well: what a
collector had of this node is not true any more.
"""

from __future__ import annotations

import os
import time

from logclient.shm import layout

from ...observe import bounded, saved
from ...observe.report import Report
from ...wire import node_report
from ...wire.node_report import NodeReport
from ..host.shm_dir_handle import ShmDirHandle
from ..observer import why_json


class NodeReports:
    """One per ship process."""

    def __init__(self, handle: ShmDirHandle, words: memoryview) -> None:
        self._handle = handle
        self._words = words
        self._seen = (0, 0)  # the version of the file that `_newest` was made of
        self._newest = NodeReport(node_report.OFF)

    def newest(self) -> NodeReport:
        """With each turn of the shipper; the same object until something is new."""
        number = self._words[layout.AGENT_OBSERVED]
        kind = layout.OBSERVED_STATES[number] if number < len(layout.OBSERVED_STATES) else node_report.OFF
        if kind not in (node_report.QUIET, node_report.STALLED):
            if self._newest.kind != kind:
                self._newest, self._seen = NodeReport(kind), (0, 0)
            return self._newest
        try:
            found = os.stat(self._handle.file(why_json.JSON_FILE))
        except OSError:
            found = None
        seen = (found.st_ino, found.st_mtime_ns) if found is not None else (0, 0)
        if kind != self._newest.kind or seen != self._seen:
            self._seen = seen
            self._newest = self._made(kind, age_s=max(0.0, time.time() - seen[1] / 1e9))
        return self._newest

    def _made(self, kind: str, age_s: float) -> NodeReport:
        """Return the report that lies there, cut to the size that is sent."""
        nothing = NodeReport(kind, time.monotonic())
        reports = why_json.read(self._handle).get("reports")
        if not isinstance(reports, list) or not reports:
            return nothing  # nothing was sampled yet
        try:
            report = saved.from_json(Report, reports[0], "reports[0]")
        except saved.Damaged:
            return nothing
        size = 0

        def fit(content: bytes) -> bytes | None:
            nonlocal size
            size = len(content)
            return node_report.pack(content)

        packed = bounded.bounded(report, fit)
        if packed is None:
            return nothing
        return NodeReport(kind, time.monotonic() - age_s, size, packed)

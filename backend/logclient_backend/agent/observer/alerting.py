"""Alerts of this node: hands what the observer sees to the rules (`alerts/node_alerts.py`), which send what they find.

Runs in the observer, with each of its looks; waits for nothing but in `deliver`, when the run is over here.

Invariants:

- records are decoded only where a rule looks at values;
- alerts of a program are taken from its lanes as soon as it wakes the observer, and again from the documents of the
  node when the run is over: nothing is missed of a process that came and went between two looks;
- records are taken from the oldest that a lane holds, by a successor as well, whose detectors learn from them.
"""

from __future__ import annotations

import time

from logclient.config import alerts_file
from logclient.shm import layout, refusals

from ...alerts.facts import Facts, RankState
from ...alerts.node_alerts import NodeAlerts
from ...observe import ranks
from ...observe.stall import STALLED, Standing
from ...runs.node import table
from ..host.shm_dir_handle import ShmDirHandle
from ..settings import Settings
from .disk_space import DiskSpace
from .lane_records import LaneRecords
from .node_state import ledger_of, state_of
from .processes import Processes, Seen

_DROPPED = ("forgotten", "refused", "damaged")
_COUNT_EVERY_S = 60.0
_WATCHFUL_S = 30.0  # after anything happened; what rules wait for takes less
_REST_S = 10.0  # between two looks afterwards
_RUNNING = "running"


class Alerting:
    """One per observer."""

    def __init__(
        self, handle: ShmDirHandle, status: memoryview, settings: Settings, processes: Processes
    ) -> None:
        self._handle = handle
        self._status = status
        self._settings = settings
        self._processes = processes
        self._alerts = NodeAlerts(handle.shm_dir, alerts_file())
        self._disk = DiskSpace(handle, status)
        self._records: dict[str, LaneRecords] = {}
        self._dropped = 0  # by processes whose lanes are gone
        self._counted: tuple[tuple[int, ...], int] = (
            (),
            0,
        )  # what moved the count of dropped records, and that
        self._is_last = False
        self._marks: tuple[object, ...] = ()
        self._watchful_until = self._next = 0.0

    @property
    def due_in_s(self) -> float:
        """Seconds until a look is wanted for deliveries alone."""
        return self._alerts.due_in_s

    def look(self, now: float, standing: Standing) -> None:
        """Take what is new, judge it, and go on with deliveries."""
        if self._is_at_rest(now, standing):
            return
        self._disk.look(now)
        state, cause = (_RUNNING, "") if self._processes.watched() else ("", "")
        self._look(now, standing, state, cause)

    def end(self, now: float, standing: Standing, *, is_over: bool) -> None:
        """Look for the last time, and let go of the shm directory. `is_over`: no process has the run open here."""
        state, cause, self._is_last = "", "", True
        if is_over:
            ledger = ledger_of(self._handle)
            for process, each in table(ledger.get("processes")).items():
                notices = table(table(table(each).get("documents")).get("notices")).get("data")
                rank = table(each).get("rank")
                self._alerts.take_notices(process, notices, rank if isinstance(rank, int) else None)
            found = state_of(ledger)
            state, cause = (found.name, found.cause) if found is not None else ("", "")
        self._look(now, standing, state, cause)
        self._alerts.leave("the run is over on this node" if is_over else "")

    def deliver(self, timeout_s: float) -> None:
        """Deliver what is queued, after `end`."""
        self._alerts.deliver(timeout_s)

    # ---- resting ------------------------------------------------------------------------------------------

    def _is_at_rest(self, now: float, standing: Standing) -> bool:
        """Has nothing happened for a while? Then a look now and then is enough: a run at rest costs nearly nothing."""
        everybody = self._processes.all.values()
        marks = (
            *(self._processes.run.count, len(everybody), sum(each.ended is not None for each in everybody)),
            *(sum(each.lanes.words[layout.DOCUMENTS_WRITTEN] for each in everybody), standing),
        )
        if marks != self._marks:
            self._marks, self._watchful_until = marks, now + _WATCHFUL_S
        if now > self._watchful_until and now < self._next and self._alerts.due_in_s > _REST_S:
            return True
        self._next = now + _REST_S
        return False

    # ---- inside -------------------------------------------------------------------------------------------

    def _look(self, now: float, standing: Standing, state: str, cause: str) -> None:
        for gone in self._processes.take_gone():
            self._read(gone)
            self._dropped += _dropped_by(gone)
            self._records.pop(gone.id, None)
        for each in self._processes.all.values():
            self._read(each)
        self._alerts.look(self._facts(now, standing, state, cause))

    def _read(self, each: Seen) -> None:
        """Take the new alerts of a process, and its records where a rule looks at values."""
        if (notices := each.new_notices()) is not None:
            self._alerts.take_notices(each.id, notices, each.rank)
        records = self._records.get(each.id)
        if records is None:
            records = self._records[each.id] = LaneRecords(self._handle, each.lanes)
        if self._alerts.wants_values and (self._alerts.knows_rules or self._is_last):
            for stream, columns in records.new(is_over=each.is_over):
                self._alerts.feed_columns(stream, columns)

    def _facts(self, now: float, standing: Standing, state: str, cause: str) -> Facts:
        is_stalled = standing.kind == STALLED
        status, settings = self._status, self._settings
        return Facts(
            now=now,
            state=state,
            cause=cause,
            ranks=self._ranks(),
            stalled=f"{standing.verdict}: {standing.text}" if is_stalled else "",
            stalled_rank=standing.rank if is_stalled else None,
            work=self._work() if self._alerts.wants_work else {},
            disk_free=self._disk.free,
            disk_free_bytes=self._disk.free_bytes,
            budgets={
                "shared memory for what is not on disk yet": status[layout.AGENT_WRITE_PENDING]
                / settings.spill_bytes,
                "disk of this run": status[layout.AGENT_RUN_DISK] / max(1, settings.disk_bytes),
            },
            dropped=self._dropped_so_far(now),
            streams=self._streams() if self._alerts.wants_values else None,
        )

    def _ranks(self) -> dict[int, RankState]:
        """Return the state of each rank: of several processes that had one the one that lives counts, else the last."""
        found = {
            each.rank: RankState(False, each.is_clean, each.text)
            for each in self._processes.ends()
            if each.rank is not None
        }
        for each in self._processes.all.values():
            if each.rank is not None and each.ended is None:
                found[each.rank] = RankState(not each.is_over, is_clean=each.is_over)
        return found

    def _dropped_so_far(self, now: float) -> int:
        """Return how many records were dropped; counted anew where records moved, and once a minute."""
        words = self._status
        marks = (
            *(self._processes.run.count, self._dropped, int(now // _COUNT_EVERY_S)),
            *(words[layout.AGENT_DRAINED], words[layout.AGENT_WRITTEN]),
        )
        if marks != self._counted[0]:
            living = sum(map(_dropped_by, self._processes.all.values()))
            self._counted = marks, self._dropped + refusals.read(self._handle.shm_dir) + living
        return self._counted[1]

    def _work(self) -> dict[int, tuple[int, float]]:
        """Return the last step of each rank, and its time in sections outside collectives."""
        found = {}
        for each in self._processes.watched():
            sections, records = each.lanes.sections(time.monotonic_ns()), ranks.newest(each.lanes, 1)
            if each.rank is not None and sections is not None and records:
                found[each.rank] = records[-1][1], sections.work_s
        return found

    def _streams(self) -> set[str]:
        living = [self._records[id] for id, each in self._processes.all.items() if each.ended is None]
        return {stream for records in living for stream in records.streams()}


def _dropped_by(each: Seen) -> int:
    counts = each.lanes.counts()
    return sum(counts[name] for name in _DROPPED)

"""Alerts of a collector: rules over what was committed, of all nodes of a run, delivered from a file of its own.

One thread, `alerts`, which the committing thread hands what it has committed; and one process (`alerts/sender.py`),
which sends and is the only one that knows URLs. The thread may lag: what does not fit its queue is counted, and no
commit ever waits for it.

Invariants:

- nothing that was uploaded after the fact (`logclient sync`) raises an alert;
- each episode is one over all nodes of a run; agents that send alerts themselves use targets of their own;
- what was sent is known after a restart: `alerts.json` in the data folder.

A run's own rules are conditions alone, checked again here; where alerts go comes from the file.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from logclient.errors import BadArgument
from logclient.shm.alert_rules import ALWAYS, checked

from ..alerts import saved
from ..alerts.episodes import DETECTED, Episodes
from ..alerts.event import Event, Finding, RunName
from ..alerts.facts import Facts, RankState
from ..alerts.rules import Rules
from ..alerts.user_alerts import UserAlerts
from ..wal.encoded import StreamColumns
from .alert_process import AlertProcess
from .eventlog import EventLog
from .metrics import Metrics
from .store.interface import Description, Parcel

MAX_RUNS = 500  # that are watched at once: those that something came for last
_QUEUE_RECORDS = 200_000  # that wait for the thread
_MAX_STREAMS = 10_000  # whose last seq is known
_LOOK_S = 0.5
_WORK_S = 0.1  # of each look for records: the committing thread wants the interpreter, too
_FRESH_S = 15.0  # after something came from it a run is judged at each look, later with the questions below
_ASK_S, _ASK_LOST_S = 5.0, 60.0  # between two questions for the state of a run that nothing comes from
_SAVE_S = 2.0
_STATES = {"late": "running"}  # the network may be slow: it is no change that anybody must know at once


@dataclass(slots=True)
class Committed:
    """A parcel that is in the store; records of a live run, or a new description of it."""

    run: str
    batches: tuple[StreamColumns, ...]
    description: Description | None


class RunAlerts:
    """Rules and episodes of one run."""

    def __init__(self, run: str, known: Mapping[str, Any], now: float) -> None:
        """`known`: what `saved` returned before a restart."""
        self.run = run
        self.episodes = Episodes(RunName(run))
        self.rules = Rules(checked(ALWAYS))
        self.alerts = UserAlerts(
            {str(key): int(number) for key, number in dict(known.get("alerts", {})).items()}
        )
        self.description: Description | None = None
        self.state = ""
        self.cause = ""
        self.came_at = self.asked_at = now
        self._given: tuple[Any, ...] = ()
        self._attempt = 0
        self._seqs: OrderedDict[bytes, int] = OrderedDict()
        if known:
            self.episodes.restore(known["episodes"], now)
            self.rules.conditions.restore(known["conditions"])

    def saved(self) -> dict[str, Any]:
        return {
            "alerts": self.alerts.saved(),
            "episodes": self.episodes.saved(),
            "conditions": self.rules.conditions.saved(),
        }

    def take(self, committed: Committed, file_rules: tuple[Any, ...]) -> list[Event]:
        """Take a parcel; return what the change of rules or attempts ends."""
        ended: list[Event] = []
        if committed.description is not None:
            ended = self._describe(committed.description, file_rules)
        return ended

    def _describe(self, described: Description, file_rules: tuple[Any, ...]) -> list[Event]:
        self.description = described
        self.state, self.cause = described.state, described.reason
        self.episodes.run = RunName(self.run, described.name, described.project)
        given = (described.more.get("rules"), file_rules)
        attempt = max(described.attempts.values(), default=0)
        if given == self._given and attempt == self._attempt:
            return []
        is_first, self._given, self._attempt = not self._given, given, attempt
        try:
            own = checked(described.more.get("rules") or ())
        except BadArgument:  # anybody with a token may send documents
            own = []
        conditions = self.rules.conditions.saved()
        self.rules = Rules([*checked(ALWAYS), *own, *file_rules])
        self.rules.conditions.restore(conditions)
        return [] if is_first else self.episodes.end_all("another attempt or other rules began", DETECTED)

    def feed(self, batch: StreamColumns) -> list[Finding]:
        """Take records, those that came before left out."""
        shape = batch.shape
        if not any(self.rules.wants(name) for name in shape.names):
            return []
        columns = batch.decoded()
        if columns is None or not len(columns):
            return []
        before = self._seqs.get(batch.stream, 0)
        self._seqs[batch.stream] = max(before, columns.seq[-1])
        self._seqs.move_to_end(batch.stream)
        if len(self._seqs) > _MAX_STREAMS:
            self._seqs.popitem(last=False)
        if columns.seq[0] <= before:
            start = next((at for at, seq in enumerate(columns.seq) if seq > before), len(columns))
            columns = columns.part(start, len(columns))
        return self.rules.feed_columns(batch.stream.hex(), columns)

    def facts(self, now: float) -> Facts:
        described = self.description
        if described is None:
            return Facts(now=now)
        more, counts = described.more, described.counts
        by_process: dict[str, list[Any]] = {}
        for alert in _listed(more.get("alerts")):
            if isinstance(alert, dict):
                by_process.setdefault(str(alert.get("process")), []).append(alert)
        new = [each for id, some in by_process.items() for each in self.alerts.new(id, {"alerts": some})]
        return Facts(
            now=now,
            state=_STATES.get(self.state, self.state),
            cause=self.cause,
            ranks=_ranks(more.get("rank_ends")),
            stalled=_stalled(more.get("observed"), described.state),
            stalled_rank=_stalled_rank(more.get("observed")),
            dropped=sum(counts.get(name, 0) for name in ("forgotten", "refused", "damaged")),
            alerts=new,
        )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _stalled(observed: Any, state: str) -> str | None:
    """Return the verdict of the observer of the worst node; empty where the run moves or is over, None: not known."""
    if not isinstance(observed, dict):
        return None if state == "running" else ""
    return f"{observed.get('verdict')}: {observed.get('text')}" if observed.get("kind") == "stalled" else ""


def _stalled_rank(observed: Any) -> int | None:
    rank = observed.get("rank") if isinstance(observed, dict) else None
    return rank if isinstance(rank, int) and observed.get("kind") == "stalled" else None


def _ranks(ends: Any) -> dict[int, RankState]:
    """Return the ranks of the newest attempt; `ends`: as `catalog.describe` makes them."""
    if not isinstance(ends, dict):
        return {}
    found = {rank: RankState(is_alive=True) for rank in _listed(ends.get("living")) if isinstance(rank, int)}
    for rank, is_clean, text in _listed(ends.get("ended")):
        found[rank] = RankState(is_alive=False, is_clean=bool(is_clean), text=str(text))
    return found


class Alerting:
    """Owns the thread."""

    def __init__(
        self,
        path: str,
        data_folder: str,
        state: Callable[[str], tuple[str, str] | None],
        metrics: Metrics,
        log: EventLog,
    ) -> None:
        """`path`: of the file of targets. `state`: name and cause of a run's state now; None where it is gone."""
        self._state = state
        self._metrics = metrics
        self._log = log
        self._saved_at = 0.0
        self._written = ""
        self._saved_path = f"{data_folder}/{saved.NAME}"
        self._queue: deque[Committed] = deque()
        self._put = self._taken = 0  # records, by the committing thread and by ours
        self._runs: OrderedDict[str, RunAlerts] = OrderedDict()
        self._known: dict[str, Any] = {}  # of runs that nothing came for since the start
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)
        self._number = 0
        self._events: list[tuple[int, Event]] = []
        before = saved.read(self._saved_path)
        if before is not None:
            self._number, self._events, self._known = before.number, before.events, before.part("runs")
        self._process = AlertProcess(path, log, before)

    def start(self) -> None:
        self._process.start()
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Send what is queued; False where that takes longer."""
        deadline = time.monotonic() + timeout_s
        self._stop.set()
        self._thread.join(timeout_s)
        is_done = self._process.stop(max(0.1, deadline - time.monotonic()))
        if self._thread.is_alive():
            return False
        self._save(is_forced=True)  # what was sent meanwhile
        return is_done

    def committed(self, parcels: list[Parcel]) -> None:
        """Take parcels of live runs that are in the store; by the committing thread, never waits."""
        for parcel in parcels:
            records = sum(len(batch) for batch in parcel.batches)
            batches = tuple(parcel.batches)
            if self._put - self._taken + records > _QUEUE_RECORDS:
                self._metrics.count("alerts_skipped_records_total", records)
                records, batches = 0, ()
            if batches or parcel.description is not None:
                self._put += records
                self._queue.append(Committed(parcel.run, batches, parcel.description))

    @property
    def trouble(self) -> str:
        """The reason why some alerts do not get anywhere; no secret is in it."""
        return self._process.trouble

    @property
    def waiting(self) -> int:
        return self._process.waiting

    # ---- the thread ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            is_last = self._stop.wait(_LOOK_S)
            try:
                self._look()
                self._process.look()
                self._save(is_forced=is_last)
            except Exception as error:  # noqa: BLE001  # alerts must go on: a run that makes no sense is one of many
                self._metrics.count("faults_total")
                self._log.fault("alerts", error)
            if is_last:
                return

    def _look(self) -> None:
        now = time.monotonic()
        while self._queue and time.monotonic() - now < _WORK_S:
            committed = self._queue.popleft()
            self._taken += sum(len(batch) for batch in committed.batches)
            self._take(committed, now)
        for name, run in list(self._runs.items()):
            if now - run.came_at >= _FRESH_S:
                if now - run.asked_at < (_ASK_LOST_S if run.state == "lost" else _ASK_S):
                    continue
                self._ask(name, run, now)
            self._send(run, run.rules.look(run.facts(now)), now)
            self._emit(run.episodes.expire(now))

    def _ask(self, name: str, run: RunAlerts, now: float) -> None:
        """A run that nothing comes from may be lost, or deleted."""
        run.asked_at = now
        if run.description is None or run.description.state == "running":
            state = self._state(name)
            if state is None:
                del self._runs[name]
            else:
                run.state, run.cause = state

    def _take(self, committed: Committed, now: float) -> None:
        run = self._runs.get(committed.run)
        if run is None:
            try:
                run = RunAlerts(committed.run, self._known.pop(committed.run, {}), now)
            except (ValueError, LookupError, TypeError):
                run = RunAlerts(committed.run, {}, now)
            self._runs[committed.run] = run
            if len(self._runs) > MAX_RUNS:
                name, oldest = self._runs.popitem(last=False)
                self._known[name] = oldest.saved()
        self._runs.move_to_end(committed.run)
        run.came_at = run.asked_at = now
        self._emit(run.take(committed, self._process.rules))
        findings = [finding for batch in committed.batches for finding in run.feed(batch)]
        self._send(run, findings, now)

    def _send(self, run: RunAlerts, findings: list[Finding], now: float) -> None:
        self._emit([event for each in findings if (event := run.episodes.take(each, now)) is not None])

    def _emit(self, events: list[Event]) -> None:
        for event in events:
            self._number += 1
            self._events.append((self._number, event))
            self._process.send(self._number, event)
        del self._events[: -saved.MAX_EVENTS]
        if events:
            self._metrics.count("alerts_total", len(events))
            self._saved_at = 0.0

    def _save(self, *, is_forced: bool) -> None:
        now = time.monotonic()
        if now - self._saved_at < _SAVE_S and not is_forced:
            return
        self._saved_at = now
        while len(self._known) > MAX_RUNS:
            del self._known[next(iter(self._known))]
        runs = self._known | {name: run.saved() for name, run in self._runs.items()}
        report = self._process.report
        content = json.dumps([self._number, runs, report])
        if content == self._written:
            return
        if saved.write(self._saved_path, self._number, self._events, delivery=report, runs=runs):
            self._written = content
        else:
            self._log.write(
                "alerts", "the state of alerts cannot be written: after a restart some may come again"
            )

"""`NodeAlerts`: alerts of one run on one node: rules, episodes, delivery, and what must outlive an observer.

Runs in an observer, a process with one thread. Opens nothing outside tmpfs: the file of targets is read by children.

Invariants:

- `feed`, `take_notices` and `look` never wait;
- what `look` found is on tmpfs before it is sent, so that the next observer sends no begin twice, but for an event that
  was under way when its observer was killed.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from logclient.errors import BadArgument
from logclient.shm.alert_rules import ALWAYS, checked
from logclient.shm.columns import Columns
from logclient.shm.shm_dir import ShmDir

from . import saved
from .delivery import Delivery
from .episodes import DETECTED, Episodes
from .event import Event, Finding, RunName
from .facts import Facts, UserAlert
from .rules import Rules
from .user_alerts import UserAlerts

_SAVE_EVERY_S = 1.0  # where nothing but counts changed
_CLOSE_POLL_S = 0.02


def prepare() -> None:
    """Load what a delivery over HTTPS needs from the interpreter's disk; where a file of targets is, before forks."""
    import tomllib  # noqa: F401

    from . import webhook

    webhook.prepare()


class NodeAlerts:
    """One per observer."""

    def __init__(
        self, shm_dir: ShmDir, path: str | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`path`: of the file of targets, `logclient.config.alerts_file()`."""
        facts = shm_dir.facts
        texts = {name: str(facts.get(name) or "") for name in ("run_id", "name", "project", "node")}
        self.run = RunName(texts["run_id"], texts["name"], texts["project"], texts["node"])
        self.trouble = ""  # with the rules that `init` wrote
        self._clock = clock
        self._path = shm_dir.file(saved.NAME)
        self._given = [*checked(ALWAYS), *self._rules_of(facts)]
        self._file_rules: tuple[dict[str, Any], ...] = ()
        self._rules = Rules(self._given)
        self._episodes = Episodes(self.run)
        self._alerts = UserAlerts()
        self._delivery = Delivery(path, clock=clock)
        self._number = 0
        self._events: list[tuple[int, Event]] = []
        self._findings: list[Finding] = []
        self._new_alerts: list[UserAlert] = []
        self._judged: dict[str, int] = {}  # by stream: up to that seq an earlier observer had
        self._seqs: dict[str, int] = {}  # and this one has
        self._has_changed = False
        self._written: tuple[Any, ...] = ()
        self._settled: dict[str, int] = {}  # target: number of the last event that it has or never gets
        self._written_at = -_SAVE_EVERY_S
        self._go_on()

    def _rules_of(self, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        try:
            return checked(facts.get("alerts") or ())
        except BadArgument as error:
            self.trouble = str(error)
            return []

    def _go_on(self) -> None:
        """Go on from what an earlier observer left."""
        before = saved.read(self._path)
        if before is None:
            return
        try:
            self._episodes.restore(before.part("episodes"), self._clock())
            self._rules.conditions.restore(before.part("conditions"))
            self._alerts = UserAlerts(
                {str(key): int(number) for key, number in before.part("alerts").items()}
            )
            self._delivery.restore(before.part("delivery"), before.events)
        except (ValueError, LookupError, TypeError):
            self.trouble = f"{self._path} makes no sense"  # whoever wrote that: go on without it
        self._number, self._events = before.number, before.events
        self._judged = {str(stream): seq for stream, seq in before.part("seqs").items() if type(seq) is int}
        self._seqs = dict(self._judged)

    # ---- for the observer ---------------------------------------------------------------------------------

    @property
    def wants_values(self) -> bool:
        """Does any rule look at values? Else no record need be read."""
        return self._rules.has_keys

    @property
    def knows_rules(self) -> bool:
        """Are the rules of the file known, or known not to be? Values that come before would be judged by others."""
        return self._delivery.file.state != ""

    @property
    def wants_work(self) -> bool:
        """Does a rule look at the times of ranks in sections?"""
        return self._rules.conditions.is_by_sections

    def wants(self, key: str) -> bool:
        """Does any rule look at this key?"""
        return self._rules.wants(key)

    def feed(
        self, stream: str, key: str, steps: Sequence[int], values: Sequence[Any], rank: int | None = None
    ) -> None:
        """Take the next values of a key in a stream, in the order in which they were logged."""
        self._findings += self._rules.feed(stream, key, steps, values, rank)

    def feed_columns(self, stream: str, columns: Columns) -> None:
        """Take the next records of a stream; only values that a rule looks at are decoded.

        An observer that goes on from another one's takes from the beginning again what is still there: detectors learn
        from it, and nothing is sent for what the other one has judged.
        """
        known = bisect_right(columns.seq, self._judged.get(stream, 0))
        if known:
            for finding in self._rules.feed_columns(stream, columns.part(0, known)):
                self._episodes.confirm(finding)
            columns = columns.part(known, len(columns))
        if len(columns):
            self._findings += self._rules.feed_columns(stream, columns)
            self._seqs[stream] = max(columns.seq[-1], self._seqs.get(stream, 0))

    def take_notices(self, process: str, notices: Any, rank: int | None = None) -> None:
        """Take the data of the document `notices` of a process, which has its alerts; `rank`: of the process."""
        self._new_alerts += self._alerts.new(process, notices, rank)

    def look(self, facts: Facts) -> list[Event]:
        """Judge what is known now and go on with delivery; return the new events."""
        now = self._clock()
        if self._new_alerts:
            facts = replace(facts, alerts=[*facts.alerts, *self._new_alerts])
            self._new_alerts = []
        if facts.streams is not None:
            self._seqs = {stream: seq for stream, seq in self._seqs.items() if stream in facts.streams}
        findings, self._findings = [*self._findings, *self._rules.look(facts)], []
        events = [event for finding in findings if (event := self._episodes.take(finding, now)) is not None]
        events += self._episodes.expire(now)
        self._has_changed |= bool(findings)
        return self._send(events)

    @property
    def due_in_s(self) -> float:
        """Seconds until `look` is wanted for delivery alone."""
        return self._delivery.due_in_s

    def leave(self, text: str) -> None:
        """Let go of tmpfs; `text` ends what goes on, and without it the next observer goes on with that.

        What is queued counts as settled there, since `deliver` still sends it.
        """
        if text:
            self._send(self._episodes.end_all(text))
        self._save(is_forced=True, is_last=True)
        self._path = ""

    def deliver(self, timeout_s: float) -> bool:
        """Deliver what is queued, at most `timeout_s`; True where all was."""
        deadline = time.monotonic() + timeout_s
        while not self._delivery.is_idle and time.monotonic() < deadline:
            time.sleep(_CLOSE_POLL_S)
            self._deliver()
        is_done = self._delivery.is_idle
        self._delivery.close()
        self._save(is_forced=True)
        return is_done

    def close(self, timeout_s: float, text: str = "the run is over on this node") -> bool:
        """End what goes on, and deliver what is queued, at most `timeout_s`; True where all was."""
        self._send(self._episodes.end_all(text))
        return self.deliver(timeout_s)

    # ---- inside -------------------------------------------------------------------------------------------

    def _send(self, events: list[Event]) -> list[Event]:
        for event in events:
            self._number += 1
            self._events.append((self._number, event))
            self._delivery.offer(self._number, event)
        del self._events[: -saved.MAX_EVENTS]
        self._has_changed |= bool(events)
        self._save(is_forced=False)
        self._deliver()
        return events

    def _deliver(self) -> None:
        self._delivery.look()
        rules = self._delivery.file.targets.rules
        if rules != self._file_rules:
            self._take_rules(rules)
        self._save(is_forced=False)

    def _take_rules(self, rules: tuple[dict[str, Any], ...]) -> None:
        """The file has other rules: detectors start anew, and what they had found ends."""
        self._file_rules = rules
        conditions = self._rules.conditions.saved()
        has_series = bool(self._rules.skipped) or self._rules.has_series
        self._rules = Rules([*self._given, *rules])
        self._rules.conditions.restore(conditions)
        if has_series:
            ended = self._episodes.end_all("the rules of the file have changed", DETECTED)
            self._send(ended)

    def _save(self, *, is_forced: bool, is_last: bool = False) -> None:
        if not self._path:
            return
        report = self._delivery.report()
        if is_last:
            for each in report["targets"].values():
                each["upto"], each["waiting"] = self._number, 0
        settled = {name: each["upto"] for name, each in report["targets"].items()}
        counts = (report, self._rules.skipped)
        now = self._clock()
        is_due = counts != self._written and now - self._written_at >= _SAVE_EVERY_S
        if not (
            self._has_changed or settled != self._settled or is_due or (is_forced and counts != self._written)
        ):
            return
        is_written = saved.write(
            self._path,
            self._number,
            self._events,
            run=asdict(self.run),
            episodes=self._episodes.saved(),
            conditions=self._rules.conditions.saved(),
            alerts=self._alerts.saved(),
            seqs=self._seqs,
            delivery=report,
            skipped=self._rules.skipped,
            trouble=self.trouble,
        )
        if is_written:
            self._written, self._written_at, self._has_changed = counts, now, False
            self._settled = settled

"""Rules over facts: stalled, gone, state, alerts of programs, disk, budget, dropped records, straggler.

Called once per look. Memory grows with the ranks of a run only. What must outlive an observer is in `saved`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..detect.straggler import Straggler, StragglerDetector
from .event import BEGIN, END, LEVELS, ONCE, Finding
from .facts import Facts

GONE_AFTER_S = 3.0  # ranks of one job end within that, one after the other
QUIET_S = 60.0  # without another dropped record, until the episode ends
ROOMY_BYTES = 64 << 30  # free on a disk: no run fills that unseen
_BACK = 1.5  # a disk is no longer nearly full where that much more is free than the rule asks for
_EASED = 0.9  # of the share at which a budget is nearly used


class Conditions:
    """The rules over facts of one run."""

    def __init__(self, rules: Iterable[dict[str, Any]]) -> None:
        self._rules = {rule["when"]: rule for rule in rules}
        self._open: set[tuple[str, str]] = set()  # (kind, subject)
        self._state = ""
        self._dropped: int | None = None
        self._dropped_at = 0.0
        self._ended: dict[int, float] = {}  # rank: when its end was first seen
        self._work: dict[int, tuple[int, float]] = {}
        self._stragglers = StragglerDetector()
        self.is_by_sections = "straggler" in self._rules and not self._rules["straggler"]["key"]

    def saved(self) -> dict[str, Any]:
        """Return what the next observer must know."""
        return {"state": self._state, "dropped": self._dropped, "open": sorted(map(list, self._open))}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `saved` returned in an earlier observer."""
        state, dropped = saved.get("state"), saved.get("dropped")
        self._state = state if isinstance(state, str) else ""
        self._dropped = dropped if isinstance(dropped, int) else None
        self._open = {
            (str(kind), str(subject)) for kind, subject in saved.get("open", ()) if kind in self._rules
        }

    def look(self, facts: Facts) -> list[Finding]:
        """Return what began, ended or happened since the last look."""
        checks = {
            "alert": self._alerts,
            "state": self._state_changes,
            "stalled": self._stalls,
            "gone": self._gone,
            "disk": self._disk,
            "budget": self._budgets,
            "dropped_records": self._drops,
        }
        found = [finding for kind, check in checks.items() if kind in self._rules for finding in check(facts)]
        if self.is_by_sections:
            found += self._straggling(facts)
        return found

    def _change(self, kind: str, subject: str, is_on: bool, text: str, **more: Any) -> Iterator[Finding]:
        """Begin or end an episode, where this changes it."""
        episode = kind, subject
        if is_on != (episode in self._open):
            (self._open.add if is_on else self._open.discard)(episode)
            yield Finding(kind, BEGIN if is_on else END, text, subject, **more)

    # ---- one kind each ------------------------------------------------------------------------------------

    def _alerts(self, facts: Facts) -> Iterator[Finding]:
        for alert in facts.alerts:
            text = f"{alert.title}: {alert.text}" if alert.text else alert.title
            if alert.missing:
                text += f" ({alert.missing:,} alerts before it were too many to be kept)"
            level = alert.level if alert.level in LEVELS else "info"
            subject = f"{alert.process} {alert.number}"
            yield Finding("alert", ONCE, text, subject, rank=alert.rank, level=level)

    def _state_changes(self, facts: Facts) -> Iterator[Finding]:
        before, now = self._state, facts.state
        if not now or now == before:
            return
        self._state = now
        if before or now != "running":
            cause = f": {facts.cause}" if facts.cause else ""
            was = f" (it was {before})" if before else ""
            level = "info" if now in ("running", "finished") else "error"
            yield Finding("state", ONCE, f"the run is {now}{cause}{was}", f"{before} {now}", level=level)

    def _stalls(self, facts: Facts) -> Iterator[Finding]:
        if facts.stalled is not None:
            text = facts.stalled or "the run moves again"
            yield from self._change("stalled", "", bool(facts.stalled), text, rank=facts.stalled_rank)

    def _gone(self, facts: Facts) -> Iterator[Finding]:
        living = [rank for rank, state in facts.ranks.items() if state.is_alive]
        for rank, state in facts.ranks.items():
            subject = f"rank {rank}"
            if state.is_alive or not living:
                self._ended.pop(rank, None)
                text = f"rank {rank} is back" if state.is_alive else "none of its peers lives any more"
                yield from self._change("gone", subject, False, text, rank=rank)
                continue
            since = self._ended.setdefault(rank, facts.now)
            if not state.is_clean and facts.now - since >= GONE_AFTER_S:
                how = f" ({state.text})" if state.text else ""
                text = f"rank {rank} has ended{how}, and {len(living):,} of its peers live"
                yield from self._change("gone", subject, True, text, rank=rank)

    def _disk(self, facts: Facts) -> Iterator[Finding]:
        free = facts.disk_free
        if free is None:
            return
        grown = _BACK if ("disk", "") in self._open else 1.0
        is_low = free < min(1.0, grown * self._rules["disk"]["free"])
        if facts.disk_free_bytes is not None:  # of a large disk a small share is much
            is_low &= facts.disk_free_bytes < grown * ROOMY_BYTES
        disk = facts.disk or "the disk of the run folder"
        text = (
            f"{disk} is nearly full: {free:.1%} is free"
            if is_low
            else f"{disk} has room again: {free:.1%} is free"
        )
        yield from self._change("disk", "", is_low, text, value=free)

    def _budgets(self, facts: Facts) -> Iterator[Finding]:
        limit = self._rules["budget"]["used"]
        for name, used in facts.budgets.items():
            is_high = used >= (_EASED * limit if ("budget", name) in self._open else limit)
            text = f"{name}: {used:.0%} is used" + ("" if is_high else ", there is room again")
            yield from self._change("budget", name, is_high, text, value=used)

    def _drops(self, facts: Facts) -> Iterator[Finding]:
        dropped = facts.dropped
        if dropped is None:
            return
        before, self._dropped = self._dropped or 0, dropped
        if dropped > before:
            self._dropped_at = facts.now
            text = f"{dropped - before:,} records were dropped, {dropped:,} in all: `logclient show` says why"
            yield from self._change("dropped_records", "", True, text, value=float(dropped))
        elif facts.now - self._dropped_at >= QUIET_S:
            text = f"no record was dropped for {QUIET_S:.0f} s; {dropped:,} in all"
            yield from self._change("dropped_records", "", False, text, value=float(dropped))

    def _straggling(self, facts: Facts) -> Iterator[Finding]:
        """Seconds per step of each rank since the last look at which all had moved on."""
        work = facts.work
        if work.keys() != self._work.keys() or any(work[rank][0] < self._work[rank][0] for rank in work):
            self._work = dict(work)
            return
        if not work or any(work[rank][0] == self._work[rank][0] for rank in work):
            return
        seconds = {
            rank: (took - self._work[rank][1]) / (step - self._work[rank][0])
            for rank, (step, took) in work.items()
        }
        self._work = dict(work)
        step = min(step for step, _ in work.values())
        for each in self._stragglers.add(step, seconds):
            yield straggler_finding(each, "")


def straggler_finding(found: Straggler, key: str) -> Finding:
    """Return the finding for a rank that fell behind its peers, or caught up. `key`: of the times; empty: sections."""
    slower = f"{100 * found.lag:.1f} % slower than the median rank" + (f" in {key}" if key else "")
    text = f"rank {found.rank} is no longer slower" if found.is_over else f"rank {found.rank} is {slower}"
    return Finding(
        "straggler",
        END if found.is_over else BEGIN,
        text,
        f"rank {found.rank} {key}".rstrip(),
        key=key,
        rank=found.rank,
        step=found.step,
        value=found.lag,
    )

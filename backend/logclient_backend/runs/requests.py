"""Requests to stop or to save a run, as the nodes' documents have them: who asked, when, why, and what became of it.

Pure; for readers. Fields and states are drawn in `agent/drain/stop_requests.py`, which writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .node import listed, table, text, whole

_WHY = {
    "nobody": "no process of the run was open",
    "remote_off": "this run follows no requests of a collector (LOGCLIENT_REMOTE_STOP=off)",
    "stale": "the stop file was there before the run; touch it to ask again",
    "other_nodes": "the run has ranks on other nodes, which would be left in a collective; ask through a collector",
    "nothing": "there was nothing to withdraw",
}
_STATES = {"withdrawn": "withdrawn", "over": "for an earlier attempt", "refused": "refused"}


@dataclass(slots=True)
class Asked:
    """One request; where several nodes took it, as the first of them has it."""

    id: str
    kind: str
    save: bool
    reason: str
    by: str
    via: str
    time_ns: int
    step: int | None  # after which it comes true; None: at once
    state: str  # holds, withdrawn, over, refused, done
    why: str  # a code
    nodes: list[str] = field(default_factory=list)

    @property
    def what(self) -> str:
        """The kind, in words."""
        if self.kind == "clear":
            return "withdrawal"
        return "stop and save" if self.save else self.kind

    @property
    def outcome(self) -> str:
        """Return its outcome in words."""
        why = _WHY.get(self.why, self.why)
        if self.state in _STATES:
            return f"{_STATES[self.state]}{': ' + why if why else ''}"
        when = "at once" if self.step is None else f"after step {self.step}"
        return f"{when}{': ' + why if why else ''}"

    def as_dict(self) -> dict[str, Any]:
        """All of it, for programs, with the sentence about what became of it."""
        names = ("id", "kind", "save", "reason", "by", "via", "time_ns", "step", "state", "why", "nodes")
        return {**{name: getattr(self, name) for name in names}, "outcome": self.outcome}


def asked(nodes: Iterable[tuple[str, Any]]) -> list[Asked]:
    """Merge the `requests` of some nodes, given with their ids; in the order in which they were made."""
    found: dict[str, Asked] = {}
    for node, requests in nodes:
        for each in map(table, listed(requests)):
            made = _asked(each)
            if made.id and made.kind:
                found.setdefault(made.id, made).nodes.append(node)
    return sorted(found.values(), key=lambda each: (each.time_ns, each.id))


def _asked(each: Mapping[str, Any]) -> Asked:
    step = each.get("step")
    return Asked(
        text(each.get("id")),
        text(each.get("kind")),
        each.get("save") is True,
        text(each.get("reason")),
        text(each.get("by")),
        text(each.get("via")),
        whole(each.get("time_ns")),
        step if type(step) is int else None,
        text(each.get("state")),
        text(each.get("why")),
    )

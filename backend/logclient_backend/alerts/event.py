"""`Finding`: what a rule found. `Event`: the same as it is delivered, with the run, an episode and a time for people.

As JSON an event is an object with these fields; those that say nothing are null::

    {"version": 1, "kind": "spike", "phase": "begin" | "end" | "once", "level": "info" | "warn" | "error",
     "run": id, "name": name, "project": project, "node": id, "rank": n, "step": n, "key": key,
     "value": number, or "nan", "inf", "-inf", "text": sentence, "at": "2026-11-30T04:38:38Z",
     "episode": 16 hex digits, "held_back": {kind: n}}

`text` is for people; programs read the other fields.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from logclient.shm.alert_rules import KINDS

BEGIN, END, ONCE = "begin", "end", "once"
PHASES = (BEGIN, END, ONCE)
LEVELS = ("info", "warn", "error")
TEST = "test"  # of `logclient alerts test`
EVENT_KINDS = (*KINDS, TEST)
MAX_TEXT = 1000  # characters
MAX_NAME = 512
_VERSION = 1
_ERRORS = ("stalled", "gone", "nonfinite", "replica")


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition that began or ended, or something that happened once."""

    kind: str
    phase: str
    text: str
    subject: str = ""  # with the run and the kind it names the episode: a key, a rank, a node
    source: str = ""  # who found it: of several in one episode the last one ends it
    key: str = ""
    rank: int | None = None
    step: int | None = None
    value: float | None = None
    level: str = ""  # empty: by kind and phase


@dataclass(frozen=True, slots=True)
class RunName:
    """The run that events are about, and the node that saw them."""

    id: str
    name: str = ""
    project: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """One message."""

    kind: str
    phase: str
    level: str
    run: str
    name: str
    project: str
    node: str
    rank: int | None
    step: int | None
    key: str | None
    value: float | str | None
    text: str
    at: str
    episode: str
    held_back: Mapping[str, int] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the event as JSON has it."""
        return {"version": _VERSION, **asdict(self)}

    def to_json(self) -> bytes:
        return json.dumps(self.document()).encode()

    def line(self) -> str:
        """Return one line for people: what happened to which run, and what was held back before it."""
        run = "/".join(part for part in (self.project, self.name or self.run) if part)
        what = f"{self.kind} {'ends' if self.phase == END else 'begins'}" if self.phase != ONCE else self.kind
        held = ", ".join(f"{count} of kind {kind}" for kind, count in self.held_back.items())
        return f"[{run}] {what}: {self.text}" + (f" (held back before this: {held})" if held else "")


def of_document(found: Mapping[str, Any]) -> Event:
    """Return the event of a JSON object. Raises ValueError, KeyError or TypeError where it is none."""
    made = Event(**{name: found[name] for name in Event.__slots__})
    texts = (made.kind, made.phase, made.level, made.run, made.name, made.project, made.node, made.text)
    if made.phase not in PHASES or not all(isinstance(text, str) for text in (*texts, made.at, made.episode)):
        raise ValueError("no event")
    return made


def event_of(finding: Finding, run: RunName, episode: str, held_back: Mapping[str, int]) -> Event:
    """Return the event for a finding, as of now."""
    value: float | str | None = finding.value
    if finding.value is not None and not math.isfinite(finding.value):
        value = str(finding.value)
    usual = "info" if finding.phase == END else "error" if finding.kind in _ERRORS else "warn"
    return Event(
        kind=finding.kind,
        phase=finding.phase,
        level=finding.level or usual,
        run=run.id[:MAX_NAME],
        name=run.name[:MAX_NAME],
        project=run.project[:MAX_NAME],
        node=run.node[:MAX_NAME],
        rank=finding.rank,
        step=finding.step,
        key=finding.key or None,
        value=value,
        text=finding.text[:MAX_TEXT],
        at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        episode=episode,
        held_back=dict(held_back),
    )

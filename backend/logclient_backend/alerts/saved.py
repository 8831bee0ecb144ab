"""`alerts.json`, which an observer keeps on tmpfs: the last events, open episodes, and how delivery goes. One writer.

`logclient status` shows it, also while it changes; the next observer goes on from it. No URL and no command is in it::

    {"version": 1, "run": {"id", "name", "project", "node"}, "number": n,
     "events": [{"number": n, "event": {...}}, ...], "episodes": {...}, "conditions": {...},
     "alerts": {process: number}, "seqs": {stream: seq}, "delivery": {...}, "skipped": values}
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from logclient.shm import modes
from logclient.shm.regular import read_regular

from .event import Event, of_document

NAME = "alerts.json"
VERSION = 1
MAX_EVENTS = 100
_MAX_BYTES = 4 << 20


@dataclass(slots=True)
class Saved:
    """The content of the file, as far as it makes sense."""

    number: int = 0
    events: list[tuple[int, Event]] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    def part(self, name: str) -> dict[str, Any]:
        found = self.more.get(name)
        return found if isinstance(found, dict) else {}


def read(path: str) -> Saved | None:
    """Return what is in the file; None where there is none, or one of another version."""
    try:
        content = json.loads(read_regular(path, max_bytes=_MAX_BYTES))
        if content["version"] != VERSION:
            return None
        events = [(int(each["number"]), of_document(each["event"])) for each in content["events"]]
        return Saved(int(content["number"]), events, content)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def write(path: str, number: int, events: list[tuple[int, Event]], **more: Any) -> bool:
    """Replace the file; False where tmpfs is full."""
    listed = [{"number": each, "event": event.document()} for each, event in events]
    content = {"version": VERSION, **more, "number": number, "events": listed}
    try:
        modes.publish(path, json.dumps(content).encode())
    except OSError:
        return False
    return True

"""New alerts of programs, from their documents `notices`.

An alert has a number, counted by its process (`logclient/session/alerting.py`). Those of clients that write no number
are new where their time is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .facts import UserAlert

MAX_PROCESSES = 4_096  # whose last number is remembered


class UserAlerts:
    """Remembers what was seen of each process."""

    def __init__(self, seen: Mapping[str, int] | None = None) -> None:
        """`seen`: what `saved` returned in an earlier observer."""
        self._seen = dict(seen or {})

    def saved(self) -> dict[str, int]:
        return dict(self._seen)

    def new(self, process: str, notices: Any, rank: int | None = None) -> list[UserAlert]:
        """Return the alerts of a process that were not there before. `notices`: the document's data, by anybody.

        `rank`: of the process; an alert may have one of its own.
        """
        alerts = notices.get("alerts") if isinstance(notices, dict) else None
        found = []
        last = before = self._seen.get(process, 0)
        for alert in alerts if isinstance(alerts, list) else ():
            if not isinstance(alert, dict):
                continue
            number = alert.get("number", alert.get("time"))
            if not isinstance(number, int) or number <= last:
                continue
            missing = number - last - 1 if "number" in alert else 0
            last = number
            own, title, text = alert.get("rank"), alert.get("title"), alert.get("text")
            found.append(
                UserAlert(
                    process,
                    number,
                    title if isinstance(title, str) else "",
                    text if isinstance(text, str) else "",
                    str(alert.get("level"))[:20],
                    own if isinstance(own, int) else rank,
                    missing,
                )
            )
        if last != before:
            if process not in self._seen and len(self._seen) >= MAX_PROCESSES:
                del self._seen[next(iter(self._seen))]
            self._seen[process] = last
        return found

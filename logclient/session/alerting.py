"""Alerts of a program: messages for people, which are kept with the run and which the agent delivers.

Runs in the training process. An alert travels in the document `notices`, which holds the newest 50; the agent finds new
ones by their numbers. Makes a few system calls on tmpfs, waits for nothing.

Invariant: each alert has a number, also one that is not stored: what is missing between two numbers is their count.
"""

from __future__ import annotations

import time
from itertools import count

from ..encode import about
from ..shm.wake import OBSERVER, wake

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import Session

BURST, EVERY_S = 100, 1.0  # so many at once, then one each second: each writes the document anew


class Alerts(list["dict[str, Any]"]):
    """The newest alerts of a process, as its document `notices` holds them."""

    __slots__ = ("_at", "_left", "_next")

    def __init__(self) -> None:
        super().__init__()
        self._next = count(1).__next__
        self._left, self._at = float(BURST), time.monotonic()

    def take(self) -> tuple[int, bool]:
        """Return the number of one more alert, and whether it may be stored."""
        now = time.monotonic()
        self._left, self._at = min(float(BURST), self._left + (now - self._at) / EVERY_S), now
        is_taken = self._left >= 1
        self._left -= is_taken
        return self._next(), is_taken


def add(session: Session, rank: int | None, title: object, text: object, level: object) -> None:
    """Store an alert; `rank`: None for that of the process."""
    if not session.mark[0]:
        session.after_fork()  # a child's alerts are its own
    alerts = session.alerts
    number, is_taken = alerts.take()
    if not is_taken:
        session.warn_once(
            "alerts",
            f"more than {BURST} alerts in a short time: they are counted, and one a second is stored",
        )
        return
    alert, wrong = about.alert(title, text, level, time.time_ns())
    alert["number"] = number
    if rank is not None:
        alert["rank"] = rank
    alerts.append(alert)
    del alerts[: -about.MAX_ALERTS]
    if wrong:
        session.notices.once("alert", wrong)
    session.write_notices()
    wake(session.shm_dir, OBSERVER)

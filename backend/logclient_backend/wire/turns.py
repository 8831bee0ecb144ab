"""Turns of nodes to speak, where more nodes ship than a collector has conversations.

`take` is called in the reading thread of a conversation and waits for a slot; `leave` gives it back. Whoever waits
asks the conversation that has had its slot longest to end, once that has had its share of time: its client comes again
and waits in turn. While nobody waits, nobody is asked.

Invariants:

- at most `slots` conversations have a slot;
- the holder of one token cannot keep the others out: a slot is taken from the holder that has most of them, and the
  next one goes to the holder that has fewest; of those who wait at most half are of one holder where others wait too;
- a turn is so long that a round takes `ROUND_S`, within bounds.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

ROUND_S = 10.0
MIN_TURN_S, MAX_TURN_S = 0.25, 5.0
_DEMAND_S = 10.0  # for so long a node that found no room to wait counts as one that ships


@dataclass(eq=False, slots=True)
class Ticket:
    """One conversation in the queue, waiting or with a slot."""

    who: str
    end: Callable[[], None]  # asks the conversation to end; never waits
    since: float = 0.0
    is_asked: bool = False


class Turns:
    """The slots of all conversations."""

    def __init__(self, slots: int, waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`waiting`: so many may wait."""
        self._slots = slots
        self._most_waiting = waiting
        self._clock = clock
        self._changed = threading.Condition()
        self._held: dict[Ticket, None] = {}  # longest held first
        self._waiting: dict[Ticket, None] = {}  # in the order of coming
        self._turned_away: list[float] = []  # when

    @property
    def held(self) -> int:
        return len(self._held)

    def take(self, ticket: Ticket, timeout_s: float, is_over: Callable[[], bool]) -> bool:
        """Wait for a slot; False where there was none in time, or too many wait, or `is_over`."""
        deadline = self._clock() + timeout_s
        with self._changed:
            if len(self._held) < self._slots and not self._waiting:
                self._give(ticket)
                return True
            if not self._may_wait(ticket.who):
                self._turned_away = [*self._turned_away[-10_000:], self._clock()]
                return False
            self._waiting[ticket] = None
            try:
                while not is_over():
                    if len(self._held) < self._slots and self._next() is ticket:
                        self._give(ticket)
                        return True
                    self._ask()
                    left = deadline - self._clock()
                    if left <= 0:
                        return False
                    self._changed.wait(min(0.1, left))
                return False
            finally:
                self._waiting.pop(ticket, None)
                self._changed.notify_all()

    def leave(self, ticket: Ticket) -> None:
        """Nothing where it has none."""
        with self._changed:
            self._held.pop(ticket, None)
            self._changed.notify_all()

    def _may_wait(self, who: str) -> bool:
        if len(self._waiting) >= self._most_waiting:
            return False
        own = sum(each.who == who for each in self._waiting)
        return own == len(self._waiting) or own < max(1, self._most_waiting // 2)

    def _give(self, ticket: Ticket) -> None:
        ticket.since = self._clock()
        self._held[ticket] = None

    def _next(self) -> Ticket:
        held = Counter(each.who for each in self._held)
        return min(self._waiting, key=lambda each: held[each.who])  # the first of those that have fewest

    def _ask(self) -> None:
        """One that has had its turn, if not enough are asked already."""
        asked = sum(each.is_asked for each in self._held)
        if asked >= len(self._waiting):
            return
        over = self._clock() - self._turn_s()
        held = Counter(each.who for each in self._held)
        had = [each for each in self._held if not each.is_asked and each.since <= over]
        if had:
            most = max(had, key=lambda each: held[each.who])  # the first of those that have most
            most.is_asked = True
            most.end()

    def _turn_s(self) -> float:
        now = self._clock()
        self._turned_away = [when for when in self._turned_away if now - when < _DEMAND_S]
        demand = len(self._held) + len(self._waiting) + len(self._turned_away)
        return min(MAX_TURN_S, max(MIN_TURN_S, ROUND_S * self._slots / demand))

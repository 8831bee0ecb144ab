"""Turns: whose slot is taken, who is next, and how long a turn is."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from logclient_backend.wire.turns import MAX_TURN_S, MIN_TURN_S, Ticket, Turns
from tests.process.disturbed import wait_until

WAIT_S = 30.0


class Clock:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Nodes:
    """Conversations that end when they are asked to, and come again as others do."""

    def __init__(self, slots: int, waiting: int = 64) -> None:
        self.clock = Clock()
        self.turns = Turns(slots, waiting, self.clock)
        self.asked: list[str] = []
        self.served: list[str] = []
        self.threads: list[threading.Thread] = []

    def ticket(self, who: str, name: str) -> Ticket:
        made = Ticket(who, lambda: (self.asked.append(name), self.turns.leave(made))[0])  # type: ignore[func-returns-value]
        return made

    def take(self, who: str, name: str) -> bool:
        is_taken = self.turns.take(self.ticket(who, name), WAIT_S, lambda: False)
        if is_taken:
            self.served.append(name)
        return is_taken

    def wait_for(self, who: str, name: str) -> None:
        thread = threading.Thread(target=self.take, args=(who, name), daemon=True)
        self.threads.append(thread)
        thread.start()


def test_nobody_is_asked_while_there_is_room() -> None:
    """However long they have been there."""
    nodes = Nodes(3)
    for name in "abc":
        assert nodes.take("one", name)
        nodes.clock.now += 1000.0
    assert nodes.asked == [] and nodes.turns.held == 3


def test_turn_lasts_before_it_is_taken_away() -> None:
    """Then the one that has been there longest is asked, and one only."""
    nodes = Nodes(2)
    assert nodes.take("one", "a") and nodes.take("one", "b")
    nodes.wait_for("one", "c")
    wait_until(lambda: nodes.turns._waiting, WAIT_S, "c waits")
    assert nodes.asked == []
    nodes.clock.now += MAX_TURN_S
    wait_until(lambda: nodes.served == ["a", "b", "c"], WAIT_S, "c has its turn")
    assert nodes.asked == ["a"]


def test_slot_is_taken_from_the_token_that_has_most_and_goes_to_one_that_has_fewest() -> None:
    """So one token with many nodes keeps no other out."""
    nodes = Nodes(3)
    for who, name in (("small", "s"), ("big", "b1"), ("big", "b2")):
        assert nodes.take(who, name)
    nodes.wait_for("big", "b3")
    wait_until(lambda: len(nodes.turns._waiting) == 1, WAIT_S, "b3 waits")
    nodes.wait_for("third", "t")
    wait_until(lambda: len(nodes.turns._waiting) == 2, WAIT_S, "t waits")
    nodes.clock.now += MAX_TURN_S
    wait_until(lambda: "t" in nodes.served, WAIT_S, "t has its turn")
    assert nodes.asked[0] == "b1" and nodes.served[3] == "t"


def test_one_token_cannot_fill_the_waiting_room() -> None:
    """Where others wait, it has half of it; one too many is told at once to come again."""
    nodes = Nodes(1, waiting=4)
    assert nodes.take("a", "held")
    for count, (who, name) in enumerate((("b", "b1"), ("a", "a1"), ("a", "a2")), 1):
        nodes.wait_for(who, name)
        wait_until(partial(_wait, nodes, count), WAIT_S, name)
    assert not nodes.turns.take(nodes.ticket("a", "a3"), WAIT_S, lambda: False)
    nodes.wait_for("c", "c1")
    wait_until(lambda: len(nodes.turns._waiting) == 4, WAIT_S, "c1 waits")
    assert not nodes.turns.take(nodes.ticket("d", "d1"), WAIT_S, lambda: False)


@pytest.mark.parametrize(
    ("slots", "nodes", "turn_s"), [(8, 12, MAX_TURN_S), (8, 64, 1.25), (1, 1000, MIN_TURN_S)]
)
def test_turns_are_shorter_where_more_want_one(slots: int, nodes: int, turn_s: float) -> None:
    """A round takes some ten seconds, so each is heard in time."""
    turns = Turns(slots, 64, Clock())
    for number in range(slots):
        assert turns.take(Ticket(str(number), lambda: None), 1.0, lambda: False)
    turns._turned_away = [turns._clock()] * (nodes - slots)
    assert turns._turn_s() == turn_s


def _wait(nodes: Nodes, count: int) -> bool:
    return len(nodes.turns._waiting) == count

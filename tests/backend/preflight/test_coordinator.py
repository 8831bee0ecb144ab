"""The coordinator over real connections: who may join, who never says a word, and ranks that all end."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from logclient_backend.preflight import coordinator, stages
from logclient_backend.preflight.coordinator import Coordinator
from logclient_backend.preflight.lines import Line, Message
from logclient_backend.preflight.place import Place
from logclient_backend.preflight.rank import Plan

PLACE = Place(0, 3, "torchrun", "127.0.0.1", (), "t", None)


@pytest.fixture
def made() -> Iterator[Coordinator]:
    with coordinator.listen(PLACE) as server:
        found = Coordinator(server, PLACE, Plan((), "gloo", 4.0, 2.0))
        yield found
        for member in found.members.values():
            member.line.close()


@contextlib.contextmanager
def rank(made: Coordinator, number: int, token: str = "t") -> Iterator[Line]:
    """A rank that has sent its first message."""
    port = made._server.getsockname()[1]
    line = Line(socket.create_connection(("127.0.0.1", port), 10))
    try:
        line.send({"hello": number, "token": token, "host": "here", "pid": 1})
        yield line
    finally:
        line.close()


def answer(made: Coordinator, line: Line) -> Message:
    """The first message of the coordinator."""
    found: list[Message] = []
    deadline = time.monotonic() + 30
    while not found and time.monotonic() < deadline:
        made._turn(0.01)
        found = line.receive()
    return found[0]


def test_ranks_join_until_the_checks_begin(made: Coordinator) -> None:
    """One that comes later is refused with the reason, and stays missing: else nobody would name it."""
    with rank(made, 0) as first, rank(made, 1) as second:
        assert answer(made, first) == answer(made, second) == {"welcome": True}
        made.is_open = False
        with rank(made, 2) as late:
            assert "--join-timeout" in answer(made, late)["refused"]
        assert made.missing == [2] and not made.is_complete


def test_strangers_are_refused(made: Coordinator) -> None:
    with rank(made, 0, "another") as other, rank(made, 7) as outside:
        assert "another launch" in answer(made, other)["refused"]
        assert "no rank" in answer(made, outside)["refused"]
        assert made.missing == [0, 1, 2]


def test_connection_without_a_word_holds_nobody_up(
    made: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is dropped at its deadline; a rank that comes after it joins at once."""
    monkeypatch.setattr(coordinator, "_STRANGER_S", 0.2)
    port = made._server.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port), 10) as silent, rank(made, 0) as line:
        assert answer(made, line) == {"welcome": True}
        made.pump(lambda: not made._strangers, 30)
        silent.settimeout(30)
        assert not made._strangers and b"refused" in silent.makefile("rb").read()


def test_ranks_that_all_end_are_named(made: Coordinator) -> None:
    """In the middle of their import of torch, when nobody is left to answer."""
    with rank(made, 0), rank(made, 1), rank(made, 2):
        made.pump(lambda: not made.missing, 30)
    report = stages.run(made)
    assert [(each["code"], each["ranks"]) for each in report["findings"]] == [
        ("gone", (0,)),
        ("gone", (1,)),
        ("gone", (2,)),
    ]


def test_rank_that_never_comes_is_named_at_the_deadline(made: Coordinator) -> None:
    """The others are there, and go before their import of torch: no check is left to wait for."""
    with rank(made, 0), rank(made, 1):
        made.pump(lambda: made.missing == [2], 30)
    report = stages.run(made)
    assert report["findings"][0]["code"] == "missing" and report["findings"][0]["ranks"] == (2,)

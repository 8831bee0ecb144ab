"""Crash points: armed by text, counted, off otherwise."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from logclient_backend import failpoint


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoint.arm("")


def visits(name: str, count: int) -> list[int]:
    """Which of so many visits fail."""
    failed = []
    for visit in range(1, count + 1):
        try:
            failpoint.hit(name)
        except OSError:
            failed.append(visit)
    return failed


@pytest.mark.parametrize(
    ("at", "failed"), [("", [1]), (":3", [3]), (":3+", [3, 4, 5]), (":2!", [2])], ids=["", "N", "N+", "N!"]
)
def test_visit_that_acts_is_counted(at: str, failed: list[int]) -> None:
    """The first, the N-th, the N-th and all later ones."""
    failpoint.arm(f"copy.write=eio{at}")
    assert visits("copy.write", 5) == failed
    assert visits("copy.seal", 5) == []


def test_once_is_once_over_all_processes() -> None:
    """`:N!` acts in the first process that gets so far, and in none after it."""
    failpoint.arm("copy.write=kill:2!,worker.loop=kill:1")

    def end_of_child(name: str) -> int:
        pid = os.fork()
        if pid == 0:
            for _ in range(5):
                failpoint.hit(name)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert [end_of_child("copy.write") for _ in range(3)] == [-signal.SIGKILL, 0, 0]
    assert [end_of_child("worker.loop") for _ in range(2)] == [-signal.SIGKILL, -signal.SIGKILL]


@pytest.mark.parametrize(
    "text", ["copy.write", "copy.write=explode", "no.such.point=kill", "copy.write=kill:x"]
)
def test_text_that_means_nothing_is_refused(text: str) -> None:
    """A typing mistake in a test must not make it pass."""
    with pytest.raises(ValueError):
        failpoint.arm(text)


def test_unarmed_points_cost_nothing_and_do_nothing() -> None:
    """In the field nothing is armed."""
    for name in failpoint.POINTS:
        failpoint.hit(name)

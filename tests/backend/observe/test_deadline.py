"""Questions in a forked child with a deadline: answers, and all the ways in which there is none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from logclient_backend.observe import deadline
from logclient_backend.observe.deadline import NoAnswer, Question, ask
from tools.faults import processes

PATIENCE_S = 60.0


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave() -> None:
    os._exit(3)


def never() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)


def test_answer_comes_back_whole_from_another_process() -> None:
    """Larger than a pipe; asked before it is waited for."""
    assert ask(lambda: {"me": os.getpid()}, timeout_s=PATIENCE_S, of="x")["me"] != os.getpid()
    question = Question(lambda: ["x" * (1 << 20)], timeout_s=PATIENCE_S, of="x")
    assert question.answer() == ["x" * (1 << 20)]


@pytest.mark.parametrize(
    ("function", "timeout_s", "said"),
    [
        (never, 0.5, "the driver gave no answer within 0.5 s"),
        (crash, PATIENCE_S, "the driver gave no answer: the process that asked has failed"),
        (leave, PATIENCE_S, "the driver gave no answer: the process that asked has failed"),
        (lambda: 1 / 0, PATIENCE_S, "has failed"),
        (lambda: object(), PATIENCE_S, "has failed"),
    ],
)
def test_no_answer_has_a_reason_and_leaves_no_process(
    function: Callable[[], Any], timeout_s: float, said: str
) -> None:
    """A child that hangs is killed at its deadline."""
    begun, before = time.monotonic(), processes.children_of(os.getpid())
    question = Question(function, timeout_s=timeout_s, of="the driver")
    (child,) = set(processes.children_of(os.getpid())).difference(before)
    with pytest.raises(NoAnswer, match=said):
        question.answer()
    assert time.monotonic() - begun < 30
    while deadline.left_behind() or processes.is_alive(child):  # killed, and ends when the machine lets it
        assert time.monotonic() - begun < 60
        time.sleep(0.01)


def test_child_keeps_nothing_of_its_parent_open() -> None:
    """A reader of the parent's output sees its end while a child still hangs."""
    source = """
import os, time
from logclient_backend.observe import deadline
question = deadline.Question(lambda: time.sleep(1000), timeout_s=1000, of="x")
print(question.pid, flush=True)
os._exit(0)
"""
    parent = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    out, _ = parent.communicate(timeout=PATIENCE_S)
    child = int(out)
    try:
        assert processes.is_alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_child_of_a_parent_that_was_killed_ends_by_itself() -> None:
    """Soon after its deadline; and a question that is dropped leaves no child."""
    source = """
import os, time
from logclient_backend.observe import deadline
print(deadline.Question(lambda: time.sleep(1000), timeout_s=0.5, of="x").pid, flush=True)
os.kill(os.getpid(), 9)
"""
    parent = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=PATIENCE_S
    )
    processes.wait_until(lambda: not processes.is_alive(int(parent.stdout)), PATIENCE_S)
    question = Question(never, timeout_s=1000, of="x")
    question.drop()
    assert not processes.is_alive(question.pid)

"""What `status()` says of the agent: never that it is gone or hangs while it is only starting."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import logclient
from logclient.shm import layout
from logclient.shm.health import describe_agent
from tests.lanes import opened

S = 10**9
STALL_S = 5.0
SUPERVISOR, WORKER, CALLED = layout.AGENT_SUPERVISOR_BEAT, layout.AGENT_WORKER_BEAT, layout.AGENT_CALLED_NS


@pytest.mark.parametrize(
    ("beats", "state"),
    [
        ({CALLED: -1}, "starting"),
        ({CALLED: -1, SUPERVISOR: 0}, "starting"),  # its supervisor is there, its worker is not
        ({CALLED: -1, SUPERVISOR: -3600, WORKER: -3600}, "starting"),  # the page of one that died long ago
        ({CALLED: -11}, "gone"),  # it never came
        ({CALLED: -11, SUPERVISOR: 0}, "stalled"),
        ({CALLED: -11, SUPERVISOR: -3600, WORKER: -3600}, "gone"),
        ({CALLED: -1, SUPERVISOR: 0, WORKER: 0}, "running"),
        ({CALLED: -3600, SUPERVISOR: -6, WORKER: 0}, "running"),  # another supervisor is on its way
        ({CALLED: -3600, SUPERVISOR: 0, WORKER: -6}, "stalled"),
        ({CALLED: -3600, SUPERVISOR: -6, WORKER: -6}, "gone"),
    ],
)
def test_health_by_the_beats(beats: dict[int, int], state: str) -> None:
    """Seconds ago at which each was stored; `stall_s` is 5."""
    words, now = memoryview(bytearray(layout.STATUS_BYTES)).cast("Q"), 10_000 * S
    for word, ago in beats.items():
        words[word] = now + ago * S
    assert describe_agent(words, now, STALL_S)["state"] == state


def test_agent_that_was_only_called_for_is_starting(run_dir: Path) -> None:
    """Nobody has heard of it yet, in this process or in another."""
    with opened() as (run, _):
        assert run.status()["agent"]["state"] == "starting"
        assert not run.flush(0)


@pytest.fixture
def run(run_dir: Path) -> Iterator[logclient.Run]:
    made = logclient.init("health", quiet=True)
    assert isinstance(made, logclient.Run)
    yield made
    made.finish(60)


def test_from_init_to_finish_it_is_starting_and_then_running(run: logclient.Run) -> None:
    """Also after the end, for whoever asks much later what became of it."""
    states = [run.status()["agent"]["state"]]
    deadline = time.monotonic() + 60
    while states[-1] != "running":
        assert time.monotonic() < deadline
        states.append(run.status()["agent"]["state"])
    assert set(states) <= {"starting", "running"}
    run.log(1, {"a": 1.0})
    assert run.finish(60)
    assert run._session.status_page is not None
    words = memoryview(bytearray(run._session.status_page)).cast("Q")
    for word in (SUPERVISOR, WORKER, CALLED):
        words[word] = max(0, words[word] - 3600 * S)  # as if that were long ago
    run._session.status_page = words
    run._session.outcome.left_ns -= 3600 * S
    assert run.status()["agent"]["state"] == "running"


def test_after_the_end_an_agent_that_never_came_is_gone(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """It is not *running*: `status` shows the agent as it was at the end."""
    monkeypatch.setenv("LOGCLIENT_PYTHON", "/bin/false")
    run: logclient.Run = request.getfixturevalue("run")
    run.log(1, {"a": 1.0})
    assert not run.finish(1)
    assert run.status()["agent"]["state"] == "gone"


def test_agent_that_lives_and_is_silent_is_not_gone(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, run_dir: Path
) -> None:
    """Stopped, or on a machine that is busy beyond measure: its lock is held. Nobody waits for it all the same."""
    monkeypatch.setenv("LOGCLIENT_STALL_S", "1")
    run: logclient.Run = request.getfixturevalue("run")
    run.log(1, {"a": 1.0})
    assert run.flush(60)
    supervisor = run.status()["agent"]["supervisor"]
    assert supervisor > 1
    os.kill(supervisor, signal.SIGSTOP)  # first: it would replace a worker that is stopped
    worker = run.status()["agent"]["worker"]
    assert worker > 1
    os.kill(worker, signal.SIGSTOP)
    try:
        run.log(2, {"a": 1.0})
        assert not run.flush(60), "it asks memory alone"
        assert run.status()["agent"]["state"] == "stalled"
    finally:
        for pid in (worker, supervisor):
            os.kill(pid, signal.SIGCONT)

"""How a run is, for every combination of what a process said, what the agent saw and what lives here."""

from __future__ import annotations

from typing import Any

import pytest

from logclient_backend.runs.node import Document, End, Process
from logclient_backend.runs.state import State, of_process, of_run

NOW = 1_000_000 * 10**9
SECOND = 10**9


def process(said: dict[str, Any] | None, end: End | None, job: str = "") -> Process:
    documents = {"start": Document(1, {"role": "owner"})}
    if said is not None:
        documents["state"] = Document(NOW - 50 * SECOND, said)
    return Process("p", "n", "h", 1, None, NOW - 100 * SECOND, documents, 0, 0, end, job)


def ended(**how: Any) -> End:
    return End(
        NOW - 40 * SECOND,
        how.get("alive", False),
        how.get("exit_code"),
        how.get("signal"),
        dropped="dropped" in how,
    )


FINISH = {"state": "finished", "by": "finish"}
WITH = {"state": "finished", "by": "with"}
EXIT = {"state": "finished", "by": "exit"}
RAISED = {
    "state": "failed",
    "by": "exit",
    "exception": {"type": "ValueError", "text": "boom\nmore", "last_lines": ["a.py:1"]},
}
SYS_EXIT = {"state": "failed", "by": "with", "exit_code": 3, "exception": {"type": "SystemExit", "text": "3"}}
CTRL_C = {"state": "terminated", "signal": 2, "by": "exit"}
LEFT = {"state": "preempted", "by": "finish"}
GAVE_UP = {"state": "failed", "by": "finish"}

# (said, end) -> state and cause, when its lock is held here, is free here, is elsewhere and heard, elsewhere and silent
SAME = "as told"
TABLE: list[tuple[dict[str, Any] | None, End | None, list[tuple[str, str]]]] = [
    (
        None,
        None,
        [
            ("running", ""),
            ("lost", "unknown end: its process is gone, and nobody saw how"),
            ("running", ""),
            ("lost", "nothing is heard from it"),
        ],
    ),
    # what the agent saw; data that comes again (a held lock) corrects it
    (
        None,
        ended(exit_code=0),
        [("running", ""), *[("finished", "ended with exit code 0, without finish()")] * 3],
    ),
    (None, ended(exit_code=3), [("running", ""), *[("failed", "exit code 3")] * 3]),
    (None, ended(signal=9), [("running", ""), *[("killed", "SIGKILL")] * 3]),
    (None, ended(signal=15), [("running", ""), *[("terminated", "SIGTERM")] * 3]),
    (None, ended(signal=11), [("running", ""), *[("terminated", "SIGSEGV")] * 3]),
    (None, ended(signal=35), [("running", ""), *[("terminated", "SIGRTMIN+1")] * 3]),
    (None, ended(signal=63), [("running", ""), *[("terminated", "SIGRTMAX-1")] * 3]),
    (None, ended(signal=250), [("running", ""), *[("terminated", "signal 250")] * 3]),
    (None, ended(), [("running", ""), *[("lost", "unknown end: nobody saw how its process ended")] * 3]),
    (None, ended(alive=True), [("running", ""), *[("finished", "gave up its lanes")] * 3]),
    (None, ended(alive=True, dropped=True), [("running", ""), *[("finished", "handle dropped")] * 3]),
    (None, ended(signal=9, dropped=True), [("running", ""), *[("finished", "handle dropped")] * 3]),
    # what it said counts first
    (FINISH, None, [("finished", "")] * 4),
    (FINISH, ended(alive=True), [("finished", "")] * 4),
    (FINISH, ended(exit_code=0), [("finished", "")] * 4),
    (FINISH, ended(exit_code=3), [("finished", "")] * 4),
    (FINISH, ended(signal=9), [("finished", "")] * 4),
    (WITH, ended(exit_code=3), [("finished", "")] * 4),
    # but a program that only reached its exit hook may fail after it
    (EXIT, None, [("finished", "its exit code was not seen")] * 4),
    (EXIT, ended(), [("finished", "its exit code was not seen")] * 4),
    (EXIT, ended(alive=True), [("finished", "its exit code was not seen")] * 4),
    (EXIT, ended(exit_code=0), [("finished", "")] * 4),
    (EXIT, ended(exit_code=3), [("failed", "exit code 3")] * 4),
    (EXIT, ended(signal=9), [("killed", "SIGKILL")] * 4),
    (EXIT, ended(signal=6), [("terminated", "SIGABRT")] * 4),
    (RAISED, None, [("failed", "ValueError: boom")] * 4),
    (RAISED, ended(exit_code=1), [("failed", "ValueError: boom")] * 4),
    (SYS_EXIT, ended(exit_code=3), [("failed", "exit code 3")] * 4),
    (CTRL_C, None, [("terminated", "SIGINT")] * 4),
    (CTRL_C, ended(exit_code=130), [("terminated", "SIGINT")] * 4),
    # a handler may say more than finished
    (LEFT, ended(exit_code=7), [("preempted", "as it said itself")] * 4),
    (GAVE_UP, ended(exit_code=1), [("failed", "as it said itself")] * 4),
    # what makes no sense counts as not said
    ({"state": "flying"}, ended(signal=9), [("running", ""), *[("killed", "SIGKILL")] * 3]),
    ({"state": "failed", "exception": "text"}, None, [("failed", "an exception")] * 4),
]


@pytest.mark.parametrize(("said", "end", "expected"), TABLE)
def test_every_combination(
    said: dict[str, Any] | None, end: End | None, expected: list[tuple[str, str]]
) -> None:
    """A run is running, finished, failed, preempted, killed, terminated or lost, with its cause."""
    it = process(said, end)
    cases = [(True, NOW), (False, NOW), (None, NOW - 5 * SECOND), (None, NOW - 500 * SECOND)]
    found = [of_process(it, is_open=is_open, heard_ns=heard, now_ns=NOW) for is_open, heard in cases]
    assert [(state.name, state.cause) for state in found] == expected


# (said, end) -> state where the scheduler says that it preempted the job, and where it says that it requeued it
TAKEN_AWAY: list[tuple[dict[str, Any] | None, End | None, str, str]] = [
    (None, None, "preempted", "preempted"),
    (None, ended(), "preempted", "preempted"),
    (None, ended(signal=15), "preempted", "preempted"),
    (None, ended(signal=9), "preempted", "preempted"),
    (CTRL_C, ended(exit_code=130), "preempted", "preempted"),
    (EXIT, ended(exit_code=143), "preempted", "preempted"),
    # a crash, an exception and an end in good order are none of the scheduler's doing
    (None, ended(signal=11), "terminated", "terminated"),
    (None, ended(exit_code=3), "failed", "failed"),
    (RAISED, ended(exit_code=1), "failed", "failed"),
    (EXIT, ended(exit_code=0), "finished", "finished"),
    (FINISH, ended(exit_code=143), "finished", "finished"),
    # but nobody saw with which code this one ended
    (EXIT, None, "preempted", "preempted"),
]


@pytest.mark.parametrize(("said", "end", "preempted", "requeued"), TAKEN_AWAY)
def test_what_a_scheduler_took_away(
    said: dict[str, Any] | None, end: End | None, preempted: str, requeued: str
) -> None:
    """An end that comes from outside is a preemption where the scheduler says so, and only there."""
    for job, expected in (("preempted", preempted), ("requeued", requeued)):
        state = of_process(process(said, end, job), is_open=False, heard_ns=NOW, now_ns=NOW)
        assert state.name == expected, state
    assert (
        of_process(process(said, end, "flying"), is_open=False, heard_ns=NOW, now_ns=NOW).name != "preempted"
    )


def test_failure_keeps_exception_and_exit_code() -> None:
    """Type, last lines and exit code of a failure are there to be shown."""
    state = of_process(process(RAISED, ended(exit_code=1)), is_open=None, heard_ns=0, now_ns=NOW)
    assert state.exit_code == 1
    assert state.exception["type"] == "ValueError"
    assert state.exception["last_lines"] == ["a.py:1"]


def test_clock_of_another_host_may_be_ahead() -> None:
    """A heartbeat from the future is one."""
    assert of_process(process(None, None), is_open=None, heard_ns=NOW + 10**12, now_ns=NOW).name == "running"


@pytest.mark.parametrize(
    ("owners", "expected"),
    [
        (["finished", "running"], "running"),
        (["finished", "failed"], "failed"),
        (["killed", "failed", "lost"], "failed"),
        (["failed", "preempted", "killed"], "preempted"),
        (["finished", "lost"], "lost"),
        (["finished", "finished"], "finished"),
        ([], "lost"),
    ],
)
def test_run_with_several_owners(owners: list[str], expected: str) -> None:
    """The run of several owners is as bad as the worst, and running as long as one is."""
    assert of_run([State(name) for name in owners]).name == expected

"""What SLURM's answers mean, and which ends are worth a question. The answers were seen with 22.05."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from logclient.launching import launcher_variables as launchers
from logclient_backend.agent.drain.slurm import (
    NOTHING,
    PREEMPTED,
    REQUEUED,
    Job,
    Scheduler,
    is_cut_short,
    job_of,
    verdict,
)
from logclient_backend.agent.host.process_handle import Cause
from tools.faults.processes import wait_until

ANSWER = (
    "JobId=990100 JobName=a JobState=PREEMPTED UserId=root(0) JobState={state} Reason=None Dependency=(null) "
    "Requeue=1 Restarts={restarts} BatchFlag=1 ExitCode=0:0 StartTime=2026-11-28T04:00:46 EndTime=Unknown {preempt} "
    "Partition=low Command=/home/x Restarts=9 PreemptTime=2026-01-01T00:00:00 WorkDir=/home/x JobState=PREEMPTED"
)
MARKED = "PreemptEligibleTime=2026-11-28T04:00:46 PreemptTime=2026-11-28T04:01:09"
UNMARKED = "PreemptEligibleTime=2026-11-28T04:00:46 PreemptTime=None"


@pytest.mark.parametrize(
    ("state", "restarts", "preempt", "expected"),
    [
        ("RUNNING", 1, UNMARKED, NOTHING),
        ("CANCELLED", 1, UNMARKED, NOTHING),
        ("TIMEOUT", 1, UNMARKED, NOTHING),
        ("COMPLETING", 1, "", NOTHING),
        ("RUNNING", 1, MARKED, PREEMPTED),
        ("COMPLETING", 1, MARKED, PREEMPTED),
        ("PREEMPTED", 1, MARKED, PREEMPTED),
        ("COMPLETING", 2, "", REQUEUED),
        ("PENDING", 2, "", REQUEUED),
        ("RUNNING", 2, UNMARKED, REQUEUED),
        ("REQUEUE_HOLD", 1, UNMARKED, REQUEUED),
    ],
)
def test_what_an_answer_means(state: str, restarts: int, preempt: str, expected: str) -> None:
    """Preempted and requeued jobs are told from cancelled ones; of a job that had been requeued once already."""
    line = ANSWER.format(state=state, restarts=restarts, preempt=preempt)
    assert verdict(line, Job("990100", 1)) == expected


@pytest.mark.parametrize(
    "line", ["", "slurm_load_jobs error: Invalid job id specified", "Restarts=many JobState="]
)
def test_answer_that_makes_no_sense_is_no_verdict(line: str) -> None:
    """Nothing is concluded from it."""
    assert verdict(line, Job("1", 0)) == NOTHING


def test_job_travels_from_the_variables_to_the_question() -> None:
    """What the trainer writes of its job is what the agent asks about; a task of an array by its own name."""

    def asked(**variables: str) -> Job | None:
        return job_of({"start": {"data": {"job": launchers.job(variables)}}})

    assert asked() is None
    assert asked(SLURM_JOB_ID="12") == Job("12", 0)
    assert asked(SLURM_JOB_ID="12", SLURM_RESTART_COUNT="3") == Job("12", 3)
    assert asked(SLURM_JOB_ID="12", SLURM_ARRAY_JOB_ID="10", SLURM_ARRAY_TASK_ID="2") == Job("10_2", 0)
    assert asked(SLURM_JOB_ID="12; rm -rf /") is None
    for told in (None, 3, {"scheduler": "slurm", "name": "--help"}, {"scheduler": "slurm", "name": None}):
        assert job_of({"start": {"data": {"job": told}}}) is None


@pytest.mark.parametrize(
    ("said", "cause", "alive", "expected"),
    [
        (None, None, False, True),
        (None, Cause(None, 15), False, True),
        (None, Cause(143, None), False, True),
        (None, Cause(1, None), False, False),
        (None, None, True, False),
        ({"state": "terminated", "by": "exit"}, None, True, True),
        ({"state": "finished", "by": "exit"}, None, True, False),
        ({"state": "finished", "by": "exit"}, None, False, True),
        ({"state": "finished", "by": "exit"}, Cause(0, None), False, False),
        ({"state": "finished", "by": "finish"}, Cause(None, 9), False, False),
        ({"state": "preempted", "by": "finish"}, Cause(7, None), False, False),
        ({"state": "failed", "by": "exit"}, Cause(1, None), False, False),
    ],
)
def test_which_ends_are_worth_a_question(
    said: dict[str, Any] | None, cause: Cause | None, alive: bool, expected: bool
) -> None:
    """SLURM is asked only where its answer could change what the run is called."""
    assert is_cut_short({"state": {"data": said}} if said else {}, cause, alive=alive) is expected


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("program", "expected", "trouble"),
    [
        ('echo "JobId=7 UserId=x JobState=RUNNING Restarts=1 Command=x"', REQUEUED, ""),
        ('echo "JobId=7 UserId=x JobState=CANCELLED Restarts=0 Command=x"', NOTHING, ""),
        ("echo Invalid job id specified >&2; exit 1", NOTHING, "ended with 1 (Invalid job id specified)"),
        ("yes x | head -c 1000000", NOTHING, ""),
        (None, NOTHING, "is not on PATH"),
    ],
)
def test_question_is_put_by_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, expected: str, trouble: str
) -> None:
    """A real process answers, fails, says too much or is not there: nobody waits, and the log says what was wrong."""
    if program is not None:
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if program is not None else str(tmp_path))
    said: list[str] = []
    scheduler = Scheduler(said.append)
    since = time.monotonic()
    answers = []

    def answer() -> bool:
        answers.append(scheduler.verdict(Job("7", 0), since))
        return answers[-1] is not None

    wait_until(answer, 30)
    assert answers[0] is None  # it was not waited for
    assert answers[-1] == expected
    assert [line.partition("scontrol ")[2] for line in said] == ([trouble] if trouble else [])
    assert scheduler.verdict(Job("7", 0), since) == expected  # and is not put again

"""Did the scheduler take the job away from its processes: preempt it, or queue it again? Asked of SLURM.

Runs in the worker's main thread, which never waits: `scontrol` runs in a child that may hang (its program may lie on a
frozen disk, its server may not answer), and is killed at a deadline.

What SLURM 22.05 shows of a job (`scontrol show job`), at the first signal and before its processes are gone:

=======================  ==========================================================================
preempted, with grace    ``PreemptTime`` is set while it still runs
preempted and cancelled  the same; ``JobState=PREEMPTED`` afterwards
preempted and requeued,  ``Restarts`` is one more than ``SLURM_RESTART_COUNT`` said, from the first
or `scontrol requeue`    signal on, or from the end of the grace
cancelled, timed out     none of these
=======================  ==========================================================================

Invariants:

- one question at a time about a job; an answer is one for those who ended before it was asked;
- no answer is no verdict: the state is then what the agent saw, and `agent.log` says why.

Where SLURM tracks processes by cgroup it kills the agent with the step, mostly before an answer comes (and sends it no
SIGTERM before that): then a later agent asks, of `logclient recover` or of this user's next run on the node, or the
next attempt tells (`runs/view.py`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from ..host.process_handle import Cause

PREEMPTED, REQUEUED, NOTHING = "preempted", "requeued", ""

_ANSWER_S = 5.0
_MAX_BYTES = 1 << 16
_REQUEUED_STATES = ("REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")


class Job(NamedTuple):
    """A job, as the start document of a process describes it."""

    name: str  # what `scontrol` knows it by
    restarts: int


def job_of(documents: dict[str, Any]) -> Job | None:
    """The job that a process belongs to; None for none that we could ask about."""
    start = (documents.get("start") or {}).get("data")
    job = start.get("job") if isinstance(start, dict) else None
    if not isinstance(job, dict) or job.get("scheduler") != "slurm":
        return None
    name, restarts = job.get("name"), job.get("restarts")
    if not isinstance(name, str) or not name.replace("_", "").isdecimal():
        return None
    return Job(name, restarts if type(restarts) is int else 0)


def is_cut_short(documents: dict[str, Any], cause: Cause | None, *, alive: bool) -> bool:
    """May this end have been a scheduler's doing? What a program said of itself, or an exit code, may deny it."""
    state = (documents.get("state") or {}).get("data")
    content = state if isinstance(state, dict) else {}
    if content.get("state") == "terminated":
        return True
    if alive or content.get("by") in ("finish", "with") or content.get("state") == "failed":
        return False
    return cause is None or cause.signal is not None or (cause.exit_code or 0) >= 128


def verdict(line: str, job: Job) -> str:
    """Return the verdict that one line of `scontrol show job -o` contains."""
    facts: dict[str, str] = {}
    # before and behind stand names that the user chose
    for word in line.partition(" UserId=")[2].partition(" Command=")[0].split():
        name, is_fact, value = word.partition("=")
        if is_fact:
            facts[name] = value
    restarts = facts.get("Restarts", "")
    if restarts.isdecimal() and int(restarts) > job.restarts:
        return REQUEUED
    if facts.get("JobState") == "PREEMPTED" or facts.get("PreemptTime", "None")[:1].isdecimal():
        return PREEMPTED
    return REQUEUED if facts.get("JobState") in _REQUEUED_STATES else NOTHING


class Question:
    """One child that asks about one job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.asked = time.monotonic()
        self.answer: str | None = None  # None: not yet
        self.trouble = ""
        self._output = b""
        self._pipe, write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _ask(job, write)
        os.close(write)
        os.set_blocking(self._pipe, False)

    def look(self) -> bool:
        """Is the child gone?"""
        if self._pipe >= 0:
            self._read()
        try:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            ended, status = self._pid, 0
        if not ended and self.answer is None and time.monotonic() - self.asked > _ANSWER_S:
            os.kill(self._pid, signal.SIGKILL)
            self._give_up(f"did not answer within {_ANSWER_S:g} s")
        if ended and self.answer is None and self._pipe < 0:
            self._conclude(os.waitstatus_to_exitcode(status))
        return bool(ended)

    def _read(self) -> None:
        try:
            while data := os.read(self._pipe, _MAX_BYTES):
                self._output = (self._output + data)[:_MAX_BYTES]
        except BlockingIOError:
            return
        self._close()

    def _conclude(self, code: int) -> None:
        output = self._output.decode("utf-8", "replace").strip()
        if code == 0:
            self.answer = verdict(output, self.job)
        else:
            self._give_up("is not on PATH" if code == 127 else f"ended with {code} ({output[:200]})")

    def _give_up(self, why: str) -> None:
        self.answer, self.trouble = NOTHING, why
        self._close()

    def _close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


def _ask(job: Job, write: int) -> NoReturn:
    """In the child: become `scontrol`. Looks for it on PATH, which may hang."""
    try:
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.execvp("scontrol", ["scontrol", "show", "job", "-o", job.name])
    finally:
        os._exit(127)


class Scheduler:
    """Questions of one worker to the scheduler."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._questions: dict[Job, Question] = {}
        self._left_behind: list[Question] = []

    def verdict(self, job: Job, since: float) -> str | None:
        """Return the scheduler's verdict about the job, asked at `since` or later; None where there is none yet."""
        self._left_behind = [each for each in self._left_behind if not each.look()]
        question = self._questions.get(job)
        if question is None or (question.answer == NOTHING and question.asked < since):
            try:
                self._questions[job] = Question(job)
            except OSError:
                return NOTHING  # no process or descriptor to be had
            return None
        if question.answer is not None:
            return question.answer
        if not question.look() and question.answer is not None:
            self._left_behind.append(question)
        if question.trouble:
            self._log(
                f"SLURM was not asked whether job {job.name} was preempted: scontrol {question.trouble}"
            )
        return None

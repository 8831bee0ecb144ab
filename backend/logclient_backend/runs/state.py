"""State of a run: running, finished, failed, preempted, killed, terminated, replaced or lost, and why we think so.

Pure functions of documents, of what the agent saw, and of what lives on this host.

============  ==========================================================================================
running       its process has the run open (told by its lock on this host, by the agent's heartbeat elsewhere)
finished      it said so, or ended with exit code 0, or dropped its last handle of the run
failed        an exception, or another exit code
preempted     it was cut short from outside, and its scheduler says that it took the job away; or it said so
killed        SIGKILL
terminated    another signal, Ctrl-C among them
replaced      its process became another program (`exec`) and had not said how the run ended
lost          nothing is heard and no cause is known: for SILENT_S (a run at rest: longer, `Node.rest_s`), by one clock
              (`Node.clock_ns`)
============  ==========================================================================================

Invariants: nothing here is remembered, so a state is right again as soon as data comes; what a process said of
itself counts before what was seen from outside, except that a program which only reached its exit hook and then
ended with an exit code or signal failed after all.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any

from ..signals import signal_name
from .node import Process, table, text, whole

SILENT_S = (
    45.0  # the agent's heartbeat is 10 s (at rest slower); network file systems show it up to 30 s later
)

# of several owners of one attempt, the state that is told
_WORST_FIRST = ("running", "preempted", "failed", "killed", "terminated", "lost", "replaced", "finished")

# what somebody else sends; a crash is none of a scheduler's doing
_FROM_OUTSIDE = frozenset(
    {
        *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM),
        *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGXCPU),
    }
)
_BY_SIGNAL = 128  # exit codes above tell of a signal, as in a shell
_JOB_WORDS = {"preempted": "preempted its job", "requeued": "queued its job again"}


@dataclass(frozen=True, slots=True)
class State:
    """State of a run or process, its cause, and since when (ns since 1970; 0: unknown)."""

    name: str
    cause: str = ""
    since_ns: int = 0
    exit_code: int | None = None
    signal: int | None = None
    exception: dict[str, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.name != "running"


def of_process(
    process: Process, *, is_open: bool | None, heard_ns: int, now_ns: int, rest_s: float = 0.0
) -> State:
    """`is_open`: has the process the run open; None where this host cannot know. `heard_ns`: its agent's heartbeat.

    `rest_s`: by how much that may be slower than usual.
    """
    silent_ns = now_ns - heard_ns - int(rest_s * 1e9)
    found = _as_seen(process, is_open=is_open, heard_ns=heard_ns, silent_ns=silent_ns)
    return taken_away(process, found, process.job) if process.job else found


def taken_away(process: Process, state: State, how: str) -> State:
    """Return the end as preempted, where the scheduler preempted or requeued (`how`) the job and that may be why.

    A program that reached its exit hook is not finished for that: not where nobody saw its exit code.
    """
    number = state.signal
    if number is None and state.name == "failed" and (state.exit_code or 0) > _BY_SIGNAL:
        number = (state.exit_code or 0) - _BY_SIGNAL
    is_unknown = state.name == "lost"
    if state.name == "finished" and process.data("state").get("by") == "exit":
        is_unknown = process.end is None or process.end.exit_code is None
    if how not in _JOB_WORDS or not (number in _FROM_OUTSIDE or is_unknown):
        return state
    by = f" ({signal_name(number)})" if number is not None else ""
    cause = f"the scheduler {_JOB_WORDS[how]}{by}"
    return State("preempted", cause, state.since_ns, exit_code=state.exit_code, signal=state.signal)


def _as_seen(process: Process, *, is_open: bool | None, heard_ns: int, silent_ns: int) -> State:
    said = process.data("state")
    if said.get("state") in ("finished", "failed", "preempted", "terminated"):
        return _said(process, said)
    if is_open:
        return State("running", since_ns=process.created_ns)
    if process.end is not None:
        return _seen(process)
    if is_open is False:
        return State("lost", "unknown end: its process is gone, and nobody saw how", heard_ns)
    if silent_ns <= SILENT_S * 1e9:
        return State("running", since_ns=process.created_ns)
    return State("lost", "nothing is heard from it", heard_ns)


def of_run(states: list[State]) -> State:
    """The state of a run from those of the owners of its newest attempt."""
    if not states:
        return State("lost", "nothing tells how it ended")
    return min(states, key=lambda state: (_WORST_FIRST.index(state.name), -state.since_ns))


def _said(process: Process, said: dict[str, Any]) -> State:
    name, when = str(said["state"]), process.documents["state"].time
    end = process.end
    is_exit = name == "finished" and said.get("by") == "exit"
    if is_exit and end is not None and not end.alive and (end.signal is not None or end.exit_code):
        return _seen(process)
    if is_exit and (end is None or end.exit_code is None):
        return State(name, "its exit code was not seen", when)
    exception = table(said.get("exception"))
    code = said.get("exit_code")
    if type(code) is not int:
        code = end.exit_code if end is not None and name != "finished" else None
    number = said.get("signal") if type(said.get("signal")) is int else None
    if name == "preempted" or (name == "failed" and said.get("by") == "finish"):
        return State(name, "as it said itself", when, exit_code=code)
    if name == "failed":
        kind, message = text(exception.get("type")), text(exception.get("text"))
        if kind == "SystemExit":
            return State(name, f"exit code {whole(code)}", when, exit_code=whole(code), exception=exception)
        first = message.strip().splitlines()[:1]
        cause = f"{kind or 'an exception'}{': ' if first else ''}{''.join(first)}"
        return State(name, cause, when, exit_code=code, exception=exception)
    if name == "terminated":
        return State(name, signal_name(whole(number)), when, exit_code=code, signal=number)
    return State(name, "", when, exit_code=code)


def _seen(process: Process) -> State:
    """From the end that the agent saw alone."""
    end = process.end
    assert end is not None
    if end.dropped:
        return State("finished", "handle dropped", end.time)
    if end.signal is not None:
        name = "killed" if end.signal == signal.SIGKILL else "terminated"
        return State(name, signal_name(end.signal), end.time, signal=end.signal)
    if end.exit_code is not None:
        if end.exit_code == 0:
            return State("finished", "ended with exit code 0, without finish()", end.time, exit_code=0)
        return State("failed", f"exit code {end.exit_code}", end.time, exit_code=end.exit_code)
    if end.replaced:
        return State("replaced", "its process went on as another program", end.time)
    if end.alive:
        return State("finished", "gave up its lanes", end.time)
    return State("lost", "unknown end: nobody saw how its process ended", end.time)

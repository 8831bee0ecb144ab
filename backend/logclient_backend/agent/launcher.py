"""First process of an agent: asks about the run folder, leaves a supervisor behind, then exits.

Started by `logclient.spawn`, which waits for its end. Afterwards the supervisor is nobody's child: not in the user's
`os.wait()`, not in a launcher's process tree, in a session of its own.

Invariants:

- it ends within its time, also when the run folder's disk, or the one with standard error, does not answer: what may
  hang there is done in throw-away children, which are left behind;
- where the run must not start, there is no supervisor.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from logclient import layout, reap
from logclient import meeting as meetings

from . import exits
from .status import StatusPage
from .terminal import DESCRIPTOR, Terminal

FOLDER_WAIT_S = 1.5
_LEFT_S = 0.3  # of the time of `init`, for what comes after the look at the folder
_MOST_FDS = 1 << 16
# meant for the trainer, whose process group they may reach
_NOT_FOR_US = (
    *(signal.SIGINT, signal.SIGHUP, signal.SIGTERM),
    *(signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2),
)


def main(arguments: list[str]) -> int:
    """`agent MEETING` and what `Options` names; see `logclient.spawn`."""
    options = _parse(arguments)
    if options is None:
        return 2
    # what the trainer's libraries left inheritable is not ours to hold open
    os.closerange(DESCRIPTOR + options.tell, _MOST_FDS)
    _take_name()
    exits.watch_from_now_on(int(options.trainer or 0))  # it may end before a worker looks at it
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # may be ignored; the others are seen to in the supervisor
    os.chdir("/")
    os.umask(0o077)
    meeting = meetings.read(options.meeting)
    if meeting is None:
        return 3
    found: dict[str, Any] = {}
    if options.answer:
        found = _ask_about_folder(meeting, options)
        if found.get("state") in ("exists", "missing", "refused") or (options.strict and not found):
            return 0  # `init` raises
    _announce(meeting)
    if os.fork() == 0:
        _become_supervisor(meeting, DESCRIPTOR if options.tell else -1)
    if options.tell:
        Terminal(meeting, DESCRIPTOR).say(meeting.where_it_goes(found))
    return 0


def _announce(meeting: meetings.Meeting) -> None:
    """The page may hold the last beat of a dead agent: whoever waits for one must not take it for ours."""
    try:
        page = StatusPage(meeting.file("agent.status"))
    except OSError:
        return
    page.words[layout.AGENT_GAVE_UP] = 0
    page.beat(layout.AGENT_SUPERVISOR_BEAT)


def _take_name() -> None:
    """Inherited by all that is forked from here: what `ps` shows, and a trainer that gets orphans knows us by."""
    try:
        with open("/proc/self/comm", "wb") as file:
            file.write(reap.NAME)
    except OSError:
        pass


class Options(NamedTuple):
    """What the command line says."""

    meeting: str
    trainer: str = ""  # PID of who starts us
    answer: str = ""  # file in the meeting place for what the run folder is like; empty: nobody asks
    until: str = ""  # monotonic time at which `init` waits no longer
    resume: str = "allow"
    strict: bool = False
    tell: bool = False  # say it on standard error, which is at DESCRIPTOR


def _parse(arguments: list[str]) -> Options | None:
    given: dict[str, Any] = {}
    for word in arguments[1:]:
        name, _, value = word.removeprefix("--").partition("=")
        if name not in Options._fields[1:]:
            return None
        given[name] = value or True
    return Options(arguments[0], **given) if arguments else None


def _become_supervisor(meeting: meetings.Meeting, terminal: int) -> None:
    code = 1
    try:
        os.setsid()
        for number in _NOT_FOR_US:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(
            signal.SIG_SETMASK, ()
        )  # `logclient.orphan` starts us with all of them blocked
        from .supervisor import Supervisor

        code = Supervisor(meeting, terminal).run()
    finally:
        os._exit(code)


def _ask_about_folder(meeting: meetings.Meeting, options: Options) -> dict[str, Any]:
    """The answer; empty where the folder gives none in time."""

    def ask() -> None:
        from .folder import Wish, write_answer

        write_answer(meeting, Wish(options.resume, options.strict), options.answer)

    left = float(options.until) - time.monotonic() if options.until else FOLDER_WAIT_S
    if not _in_child(ask, min(FOLDER_WAIT_S, left - _LEFT_S)):
        return {}
    try:
        with open(meeting.file(options.answer), "rb") as file:
            found = json.loads(file.read())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _in_child(work: Callable[[], object], wait_s: float) -> bool:
    """Do what may hang in a child; False where it was not done in time, and was left behind."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.002)
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

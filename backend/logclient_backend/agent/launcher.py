"""First process of an agent: leaves the trainer's family and asks about the run folder, then exits.

Started by `logclient.spawn` and reaped there. Afterwards the supervisor is nobody's child: not in the user's
`os.wait()`, not in a launcher's process tree, in a session of its own.

Invariant: it ends within its time, also when the run folder's disk does not answer.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from logclient import meeting as meetings

FOLDER_WAIT_S = 1.5
_MOST_FDS = 1 << 16


def main(arguments: list[str]) -> int:
    """`agent MEETING [--check-folder]`."""
    if not arguments:
        return 2
    os.closerange(3, _MOST_FDS)  # what the trainer's libraries left inheritable is not ours to hold open
    os.chdir("/")
    os.umask(0o077)
    meeting = meetings.read(arguments[0])
    if meeting is None:
        return 3
    if os.fork() == 0:
        _become_supervisor(meeting)
    if "--check-folder" in arguments:
        _ask_about_folder(meeting)
    return 0


def _become_supervisor(meeting: meetings.Meeting) -> None:
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)  # meant for the trainer, whose process group they may reach
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        from .supervisor import Supervisor

        code = Supervisor(meeting).run()
    finally:
        os._exit(code)


def _ask_about_folder(meeting: meetings.Meeting) -> None:
    """In a child that may hang; the launcher leaves it behind then."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            from .folder import write_answer

            write_answer(meeting)
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + FOLDER_WAIT_S
    while time.monotonic() < deadline:
        done, _ = os.waitpid(child, os.WNOHANG)
        if done:
            return
        time.sleep(0.002)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

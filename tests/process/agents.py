"""What the tests of the agent share: its processes by PID, and the check that nothing is lost, twice or disordered."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from pathlib import Path

from logclient.shm import layout
from tests.listing import contents, listed
from tools.faults import processes

from .disturbed import Stored, Trainer, stored, wait_until

SUPERVISOR, WORKER = layout.AGENT_SUPERVISOR, layout.AGENT_WORKER


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal it, if it is still there."""
    assert pid > 0, "not a whole process group"
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def is_gone(pid: int) -> bool:
    return not processes.is_alive(pid)


def successor(trainer: Trainer, which: int, before: int, deadline_s: float = 20) -> int:
    """PID of the process that took the place of `before`."""

    def found() -> int:
        pid = trainer.word(which)
        return pid if pid != before and not is_gone(pid) else 0

    return int(wait_until(found, deadline_s, f"another process takes the place of {before}"))


def both_killed(trainer: Trainer) -> None:
    """Supervisor and worker die at once."""
    supervisor, worker = trainer.agent_pid(SUPERVISOR), trainer.agent_pid(WORKER)
    kill(supervisor, signal.SIGSTOP)  # it must not fork another in between
    wait_until(lambda: processes.state_of(supervisor) in "TZ", 10, "the supervisor is stopped")
    kill(worker)
    kill(supervisor)
    wait_until(lambda: is_gone(supervisor) and is_gone(worker), 10, "both are gone")


def checked(run_dir: Path, accepted: int, *, lost: int | None = 0, order: bool = True) -> Stored:
    """What is stored: with what is known to be gone exactly what was accepted, once, in order, and the right values."""
    found = stored(run_dir)
    assert found.wrong == 0, f"{found.wrong} records have other values than were logged"
    for seqs in found.seqs.values():
        assert all(a < b for a, b in pairwise(seqs)), "a record is stored twice, or out of order"
    for steps in found.steps.values():
        assert not order or all(a < b for a, b in pairwise(steps)), "the order of a lane is not kept"
    assert found.records + found.forgotten + found.damaged == accepted, (
        f"accepted {accepted:,}, stored {found.records:,}, forgotten {found.forgotten:,}, damaged {found.damaged:,}"
    )
    if lost is not None:
        assert found.forgotten + found.damaged == lost, (
            f"forgotten {found.forgotten:,}, damaged {found.damaged:,}"
        )
    return found


def nothing_left(deadline_s: float = 10) -> None:
    """No file of ours stays in this test's shared memory."""
    shm_root = Path(os.environ["LOGCLIENT_SHM_DIR"])
    wait_until(lambda: not listed(shm_root), deadline_s, "shared memory is clean")


def log_of(run_dir: Path) -> str:
    """What the agents wrote into their logs."""
    return b"".join(content for _, content in contents(run_dir, "*/*/agent.log*")).decode()

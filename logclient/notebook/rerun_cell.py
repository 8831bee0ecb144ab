"""Notebooks and interactive shells, where a person runs the same lines again and again.

Runs in the training process, in `init` and in the exit hook. There is no hook per cell, so nothing of ours can break
one: a cell that calls `init` again is noticed in `init`.
"""

from __future__ import annotations

import os

from ..session import closing
from ..session.ending import INTERRUPTED_S
from ..spawn import agent as spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..session.session import Session

REPLACED = (
    "the run is finished, since init() was called again for this project and name; "
    "runs with different names stay open side by side"
)


def finish_earlier(sessions: Iterable[Session], project: str, name: str | None) -> None:
    """A cell that calls `init` is run again: its run before this one gets no more records, so it ends now."""
    for session in tuple(sessions):
        shm_dir = session.shm_dir
        given = None if shm_dir.name == shm_dir.run_id else shm_dir.name
        is_ours = session.is_owner and session.pid == os.getpid() and not session.closed
        if is_ours and shm_dir.project == project and given == (name or None):
            if not spawn.agent_lives(shm_dir):
                spawn.start_agent(shm_dir, session.settings.start_timeout_s, check_folder=False)
            # the agent goes on with what is not on disk by then
            closing.end(
                session,
                {"state": "finished", "by": "init"},
                min(session.settings.finish_timeout_s, INTERRUPTED_S),
            )
            session.closed = REPLACED

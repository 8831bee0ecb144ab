"""Notebooks and interactive shells, where a person runs the same lines again and again.

Runs in the training process, in `init` and in the exit hook. There is no hook per cell, so nothing of ours can break
one: a cell that calls `init` again is noticed in `init`.
"""

from __future__ import annotations

import os

from ..session.ending import INTERRUPTED_S
from ..spawn import agent as spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..run import Run

REPLACED = (
    "the run is finished, since init() was called again for this project and name; "
    "runs with different names stay open side by side"
)


def finish_earlier(runs: Iterable[Run], project: str, name: str | None) -> None:
    """A cell that calls `init` is run again: its run before this one gets no more records, so it ends now."""
    from . import card  # noqa: F401 - so that `finish` can keep the last values without reading a file then

    for run in tuple(runs):
        place = run._place
        given = None if place.name == place.run_id else place.name
        is_ours = run._is_owner and run._pid == os.getpid() and not run._closed
        if is_ours and place.project == project and given == (name or None):
            if not spawn.agent_lives(place):
                spawn.start_agent(place, run._settings.start_timeout_s, check_folder=False)
            # the agent goes on with what is not on disk by then
            run._end({"state": "finished", "by": "init"}, min(run._settings.finish_timeout_s, INTERRUPTED_S))
            run._closed = REPLACED

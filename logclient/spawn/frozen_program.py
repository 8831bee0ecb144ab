"""The second entry of a frozen program: its agent runs in the program's own file.

Runs in the training process, in `logclient.freeze_support`, and in the process that was started to be the agent.

Invariant: the agent is entered only by its first argument and the word in the environment, both of which `agent.py`
gives.
"""

from __future__ import annotations

import sys

from .. import config
from . import interpreter


def enter() -> None:
    """Be the agent, and do not return, if this process was started for that."""
    if not interpreter.is_frozen():
        return
    interpreter.note_entry()
    if config.is_agent() and sys.argv[1:2] == [interpreter.ENTRY]:
        # found there by the tools that freeze programs, so that they take the agent in
        from logclient_backend.agent.supervise.launcher import main

        sys.exit(main(sys.argv[3:]))

"""Closes a run in this process: closes its lanes, waits for what is accepted, lets go of everything.

Runs in the training process: in `finish`, `with`, the exit hook, and `init` in a notebook.

Invariants:

- the lanes are closed before anything is judged: free ones are taken out of their lists, those in use come back to a
  list that nobody takes from, and a writer that has not come back in time is fenced (`Lanes.detach`), so that its
  record is refused. What is accepted then is final, and `finish` judges exactly that;
- one call ends the run; another one, of a thread or of a handler that interrupts it, waits for the same records;
- a run counts as durable only after that was seen.
"""

from __future__ import annotations

import time

from ..shm import layout
from ..shm.counters import lane_counts
from ..shm.wake import wake
from . import dropped, waiting
from .ending import patience_s
from .final_line import write_end
from .status import device_of, media_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import Session

_CLOSE_S = 1.0  # for calls of log() that are under way
_LEAVE_S = 2.0  # for what the agent writes behind the last record
_CONSOLE_S = 1.0  # for what was captured of the output, behind all records
_NAP_S = 0.002
_SERVER_SHARE = 0.3  # of the time left, kept for a line that a process writes into a file


def end(session: Session, state: dict[str, Any], timeout_s: float | None) -> bool:
    """End the run in this process, its owner for all; True where everything that was accepted is on disk by then."""
    dropped.let_go_durable()
    outcome = session.outcome
    if not outcome.claim():
        return (outcome.is_durable and session.lanes is None) or _wait_again(session, timeout_s)
    session.closed, outcome.state = session.closed or "the run is finished", str(state.get("state", ""))
    if not session.mark[0]:  # a forked child that never logged
        session.leave_parent()
        session.mark[0] = 1
        outcome.is_durable = True
        return True
    begun = time.monotonic()
    captured = session.console
    if captured is not None:
        captured.end()
    timeout_s = patience_s(state, session.settings.finish_timeout_s) if timeout_s is None else timeout_s
    deadline = begun + timeout_s
    try:
        close_lanes(session, min(deadline, begun + _CLOSE_S))
        if session.is_owner:
            session.write("state", state)
        left = deadline - time.monotonic()
        left = max(0.0, left - session.writes_to_file * min(_SERVER_SHARE, _SERVER_SHARE * left))
        waited_until = time.monotonic() + left
        done, trouble = waiting.until_durable(session, left)
        outcome.is_durable = done
        if captured is not None and done:
            captured.wait(min(deadline, time.monotonic() + _CONSOLE_S))
        is_home = done or session.folder.get("state") == "none"  # then there is no disk to wait for
        if is_home and session.lanes is not None and session.status_page is not None:
            waiting.wait_for_server(session.server, session.status_page, session.lanes.words, waited_until)
        if session.is_owner and not session.settings.quiet and (session.rank in (None, 0) or not done):
            write_end(session, done, time.monotonic() - begun, trouble, deadline)
        if done and session.is_owner and state.get("by") in ("finish", "with"):
            _wait_until_left(session, deadline)
    finally:  # Ctrl-C while it waits: the agent goes on with what is there
        let_go(session)
    return done


def _wait_until_left(session: Session, deadline: float) -> None:
    """Wait until the agent has no more to write to the run folder for this run: its owner may remove it then.

    Sealing segments and the last documents are what comes after all records are on disk. It is not waited for while
    others log to the run, or a server takes records, and not at the end of the program, whose exit code is noted.
    """
    lanes = session.lanes
    if lanes is not None:
        lanes.words[layout.STATE] = layout.STATE_FINISHED
        wake(session.shm_dir)
        _see_it_left(lanes.words, session.status_page, deadline)


def _see_it_left(words: memoryview, page: memoryview | None, deadline: float) -> None:
    deadline = min(deadline, time.monotonic() + _LEAVE_S)
    while not words[layout.FOLDER_LEFT] and time.monotonic() < deadline:
        if page is None or page[layout.AGENT_CLOSING]:
            return
        time.sleep(_NAP_S)


def _wait_again(session: Session, timeout_s: float | None) -> bool:
    """Wait beside the call that ends the run, for the same records."""
    if session.lanes is None or not session.mark[0]:
        return session.outcome.is_durable
    patience = session.settings.finish_timeout_s if timeout_s is None else timeout_s
    deadline = time.monotonic() + patience
    close_lanes(session, min(deadline, time.monotonic() + _CLOSE_S))
    lanes = session.lanes
    done = waiting.until_durable(session, max(0.0, deadline - time.monotonic()))[0]
    if done and lanes is not None and lanes.words[layout.STATE] == layout.STATE_FINISHED:
        _see_it_left(lanes.words, session.status_page, deadline)
    return done


def close_lanes(session: Session, deadline: float) -> None:
    """Make what is accepted final: wait a moment for calls that are under way, and refuse what they did not commit."""
    taken = session.lanes
    if taken is None:
        return
    while not taken.close() and time.monotonic() < deadline:
        time.sleep(0.001)
        taken.find_lost()
    taken.detach()


def let_go(session: Session) -> None:
    """Give up all that this process holds of the run; what is known of it by now stays known."""
    outcome = session.outcome
    outcome.left_ns = time.monotonic_ns()
    outcome.device = device_of(session)
    outcome.media = media_of(session)
    if session.console is not None:
        session.console.end()
        session.console.leave()
        session.console = None
    session.stop_recording()
    session.counters.publish()
    if session.lanes is not None:
        session.lanes.detach()
        outcome.counts = lane_counts(session.lanes.words)
        session.lanes.words[layout.STATE] = layout.STATE_FINISHED
        session.lanes.forget()
        wake(session.shm_dir)
    known = None if session.status_page is None else memoryview(bytes(session.status_page)).cast("Q")
    session.release_maps()
    if session.encoder is not None and session.encoder.device is not None:
        session.encoder.device.release()
    if session.encoder is not None and session.encoder.media is not None:
        session.encoder.media.release()
    session.lanes = session.documents = session.encoder = None
    session.status_page = known  # what was heard of the agent last
    session.counters.detach()
    if session.live is not None:
        session.live.release()
        session.live = None
    dropped.forget(session)

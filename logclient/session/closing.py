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
from ..shm.stats import lane_counts, no_device
from ..shm.wake import wake
from . import dropped, waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..run import Run
    from ..typed import DeviceStatus

_CLOSE_S = 1.0  # for calls of log() that are under way
_LEAVE_S = 2.0  # for what the agent writes behind the last record
_NAP_S = 0.002
_SERVER_SHARE = 0.3  # of the time left, kept for the line that the agent writes into a file


class Outcome:
    """The outcome of a run in this process, and its last counts once its memory is let go."""

    __slots__ = ("_claims", "counts", "device", "is_durable", "left_ns", "state", "values")

    def __init__(self) -> None:
        self._claims: dict[str, object] = {}
        self.is_durable = False
        self.left_ns = 0  # time.monotonic_ns at which this process let go of the run
        self.state = ""  # how the run ended, as its state document has it
        self.counts = dict.fromkeys(("accepted", "forgotten", "damaged", "stored", "acked"), 0)
        self.device: DeviceStatus = no_device()
        self.values: dict[str, tuple[int, int, Any]] = {}  # last value of each key, for a notebook

    def claim(self) -> bool:
        """Take the right to end the run; True for one call only, of any thread or handler."""
        me = object()
        return self._claims.setdefault("end", me) is me


def end(run: Run, state: dict[str, Any], timeout_s: float | None) -> bool:
    """End the run in this process, its owner for all; True where everything that was accepted is on disk by then."""
    dropped.let_go_durable()
    outcome = run._outcome
    if not outcome.claim():
        return (outcome.is_durable and run._lanes is None) or _wait_again(run, timeout_s)
    run._closed, outcome.state = run._closed or "the run is finished", str(state.get("state", ""))
    if not run._mark[0]:  # a forked child that never logged
        run._leave_parent()
        run._mark[0] = 1
        outcome.is_durable = True
        return True
    from .ending import patience_s, say_goodbye, wait_for_server

    begun = time.monotonic()
    timeout_s = patience_s(state, run._settings.finish_timeout_s) if timeout_s is None else timeout_s
    deadline = begun + timeout_s
    try:
        close_lanes(run, min(deadline, begun + _CLOSE_S))
        if run._is_owner:
            run._write("state", state)
        left = deadline - time.monotonic()
        left = max(0.0, left - run._has_teller * min(_SERVER_SHARE, _SERVER_SHARE * left))
        waited_until = time.monotonic() + left
        done, trouble = waiting.until_durable(run, left)
        outcome.is_durable = done
        is_home = done or run._folder.get("state") == "none"  # then there is no disk to wait for
        if is_home and run._lanes is not None and run._status is not None:
            wait_for_server(run._server, run._status, run._lanes.words, waited_until)
        if run._is_owner and not run._settings.quiet and (run._rank in (None, 0) or not done):
            say_goodbye(run, done, time.monotonic() - begun, trouble, deadline)
        if done and run._is_owner and state.get("by") in ("finish", "with"):
            _wait_until_left(run, deadline)
    finally:  # Ctrl-C while it waits: the agent goes on with what is there
        let_go(run)
    return done


def _wait_until_left(run: Run, deadline: float) -> None:
    """Wait until the agent has no more to write to the run folder for this run: its owner may remove it then.

    Sealing segments and the last documents are what comes after all records are on disk. It is not waited for while
    others log to the run, or a server takes records, and not at the end of the program, whose exit code is noted.
    """
    lanes = run._lanes
    if lanes is not None:
        lanes.words[layout.STATE] = layout.STATE_FINISHED
        wake(run._place)
        _see_it_left(lanes.words, run._status, deadline)


def _see_it_left(words: memoryview, page: memoryview | None, deadline: float) -> None:
    deadline = min(deadline, time.monotonic() + _LEAVE_S)
    while not words[layout.FOLDER_LEFT] and time.monotonic() < deadline:
        if page is None or page[layout.AGENT_CLOSING]:
            return
        time.sleep(_NAP_S)


def _wait_again(run: Run, timeout_s: float | None) -> bool:
    """Wait beside the call that ends the run, for the same records."""
    if run._lanes is None or not run._mark[0]:
        return run._outcome.is_durable
    patience = run._settings.finish_timeout_s if timeout_s is None else timeout_s
    deadline = time.monotonic() + patience
    close_lanes(run, min(deadline, time.monotonic() + _CLOSE_S))
    lanes = run._lanes
    done = waiting.until_durable(run, max(0.0, deadline - time.monotonic()))[0]
    if done and lanes is not None and lanes.words[layout.STATE] == layout.STATE_FINISHED:
        _see_it_left(lanes.words, run._status, deadline)
    return done


def close_lanes(run: Run, deadline: float) -> None:
    """Make what is accepted final: wait a moment for calls that are under way, and refuse what they did not commit."""
    taken = run._lanes
    if taken is None:
        return
    while not taken.close() and time.monotonic() < deadline:
        time.sleep(0.001)
        taken.find_lost()
    taken.detach()


def let_go(run: Run) -> None:
    """Give up all that this process holds of the run; what is known of it by now stays known."""
    outcome = run._outcome
    outcome.left_ns = time.monotonic_ns()
    outcome.values = run._known_values()
    outcome.device = run._describe_device()
    run._first, run._known = [], {}
    run._counters.publish()
    if run._lanes is not None:
        run._lanes.detach()
        outcome.counts = lane_counts(run._lanes.words)
        run._lanes.words[layout.STATE] = layout.STATE_FINISHED
        run._lanes.forget()
        wake(run._place)
    known = None if run._status is None else memoryview(bytes(run._status)).cast("Q")
    run._release_maps()
    if run._encoder is not None and run._encoder.device is not None:
        run._encoder.device.release()
    run._lanes = run._documents = run._encoder = None
    run._status = known  # what was heard of the agent last
    run._counters.detach()
    if run._live is not None:
        run._live.release()
        run._live = None
    dropped.forget(run)

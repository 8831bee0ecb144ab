"""Requests to stop or to save: takes them, chooses the step at which they come true on all ranks, and voids old ones.

Runs in the worker's main thread; touches tmpfs only. Files and words are drawn in `logclient/shm/stop_requests.py` and
`layout.py`.

Invariants:

- the step is so far ahead that every rank sees the words before it gets there: by `_AHEAD_S` of the fastest rank's
  steps, and by two steps at least. After it is computed the ranks are looked at again; where they have moved on by half
  of that, it is computed anew;
- a request whose step a collector chose keeps it: nodes must not choose each its own;
- a withdrawal, too, has a step from which on it holds on all ranks;
- a request is for the attempt in which it was made: processes that come later see it only once it is confirmed, and the
  first owner of another attempt voids it;
- each request is taken once, by its id, and stands in the node's documents with who asked, when and why.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from logclient.shm import lane_file, layout, stop_requests
from logclient.shm.record import PREFIX
from logclient.shm.stop_requests import CLEAR, LOWEST, SAVE, SERVER, STOP, STOP_FILE

from ...runs import stop_step as steps
from ...runs.elsewhere import has_other_nodes
from ..host.shm_dir_handle import ShmDirHandle
from .node_document import Ledger
from .producer import Producer
from .producers import Roster

# states: a request holds until it is withdrawn or its attempt is over; a withdrawal is done
HOLDS, WITHDRAWN, OVER, REFUSED, DONE = "holds", "withdrawn", "over", "refused", "done"
# why a request was refused
NOBODY, REMOTE_OFF, STALE, OTHER_NODES, NOTHING = "nobody", "remote_off", "stale", "other_nodes", "nothing"

_MAX_NOTED = 50
_AHEAD_S = 0.5  # for the words to be seen
_TRIES = 6
_LOOK_S = 0.01  # at the records of one process


class StopRequests:
    """The requests of a run on this node."""

    def __init__(
        self,
        handle: ShmDirHandle,
        words: memoryview,
        ledger: Ledger,
        roster: Roster,
        log: Callable[[str], None],
        *,
        follows_remote: bool,
    ) -> None:
        """`words`: of the status page; `follows_remote`: requests that come from a collector."""
        self._handle = handle
        self._words = words
        self._ledger = ledger
        self._roster = roster
        self._log = log
        self._follows_remote = follows_remote
        self._is_undecided = False  # a process has come that has not told yet what it is

    @property
    def is_due(self) -> bool:
        """Is there a request to take, or a newcomer that one may concern?"""
        return bool(self._handle.requests) or self._is_undecided

    def look(self) -> None:
        """Take what is asked, and see to newcomers."""
        names, self._handle.requests = self._handle.requests, []
        found = [stop_requests.take(self._handle.file(name)) for name in names]
        self._confirm()
        for request in sorted(filter(None, found), key=lambda request: int(request["time_ns"])):
            self._take(request)

    # ---- one request -------------------------------------------------------------------------------------

    def _take(self, request: dict[str, Any]) -> None:
        if any(known["id"] == request["id"] for known in self._ledger.requests):
            return  # a collector or a stop file tells again
        taken = {**request, "taken_ns": time.time_ns(), "step": None, "state": HOLDS, "why": ""}
        why = self._why_not(request)
        if why:
            taken["state"], taken["why"] = REFUSED, why
        elif request["kind"] == CLEAR:
            self._withdraw(request, taken)
        else:
            self._grant(request, taken)
        self._note(taken)
        self._log(_sentence(taken))

    def _why_not(self, request: dict[str, Any]) -> str:
        """Return why it is refused; empty where it is not."""
        if request["via"] == SERVER and not self._follows_remote:
            return REMOTE_OFF
        if request.get("stale"):
            return STALE
        if not any(map(_is_open, self._roster.producers.values())):
            return NOBODY
        if request["via"] == STOP_FILE and has_other_nodes(map(_start, self._roster.producers.values())):
            return OTHER_NODES
        return ""

    def _grant(self, request: dict[str, Any], taken: dict[str, Any]) -> None:
        words = self._words
        stops, saves = request["kind"] == STOP, request["kind"] == SAVE or request["save"]
        # one that holds and is still ahead stays as it is: a later step would divide ranks that are just getting there
        stop_at, save_at = self._pending(layout.STOP_AT), self._pending(layout.SAVE_AT)
        sets_stop, sets_save = stops and not stop_at, saves and not save_at

        def store(step: int | None) -> None:
            word = stop_requests.word_of(step)
            words[layout.REQUESTS_CHECKED_NS] = max(
                producer.created_mono_ns for producer in self._roster.producers.values()
            )
            if sets_save:
                words[layout.SAVE_AT] = words[layout.SAVE_UNTIL] = 0
                words[layout.SAVE_NUMBER] += 1
                words[layout.SAVE_AT] = word
            if sets_stop:
                words[layout.STOP_AT] = words[layout.STOP_UNTIL] = 0
                words[layout.STOP_AT] = word

        if not (sets_stop or sets_save):
            taken["step"] = stop_requests.step_of(stop_at or save_at)
        elif "step" in request:
            taken["step"] = request["step"]
            store(request["step"])
        else:
            taken["step"] = self._ahead(store)
        newest = self._newest()
        if newest is not None and taken["step"] is not None and newest >= taken["step"] - 1:
            self._log(
                f"a rank had logged step {newest} when a request for step {taken['step']} became visible"
            )

    def _pending(self, at: int) -> int:
        """Return the word of a request that holds and lies ahead; 0: there is none."""
        word, until = self._words[at], self._words[at + 1]
        if not word or until:
            return 0
        if at == layout.STOP_AT:
            return word  # it stays true
        newest = self._newest()
        return word if newest is not None and stop_requests.word_of(newest) < word else 0

    def _withdraw(self, request: dict[str, Any], taken: dict[str, Any]) -> None:
        words = self._words
        holding = [each for each in self._ledger.requests if each["state"] == HOLDS]
        if not holding or not (words[layout.STOP_AT] or words[layout.SAVE_AT]):
            taken["state"], taken["why"] = REFUSED, NOTHING
            return

        def store(step: int | None) -> None:
            for at in (layout.STOP_AT, layout.SAVE_AT):
                if step is None:
                    words[at] = 0
                elif words[at]:
                    words[at + 1] = stop_requests.word_of(step)

        taken["step"], taken["state"] = self._stored(request, store), DONE
        for each in holding:
            self._note({**each, "state": WITHDRAWN})

    def _note(self, request: dict[str, Any]) -> None:
        """Note a request, or what became of it, in the node's documents."""
        noted = {each["id"]: each for each in self._ledger.requests} | {request["id"]: request}
        self._ledger.requests = list(noted.values())[-_MAX_NOTED:]

    # ---- the step ----------------------------------------------------------------------------------------

    def _stored(self, request: dict[str, Any], store: Callable[[int | None], None]) -> int | None:
        """Store the step that a collector chose, else one of our own, and return it; None: at once."""
        if "step" not in request:
            return self._ahead(store)
        step: int | None = request["step"]
        store(step)
        return step

    def _ahead(self, store: Callable[[int | None], None]) -> int | None:
        """Store a step that no rank has reached by then, and return it; None (at once) where no steps are logged."""
        factor = 1
        while True:
            newest, ahead = self._survey()
            step = None if newest is None else min(newest + factor * ahead, -LOWEST - 1)
            again = self._newest()
            if (newest is None) == (again is None):
                moved = 0 if newest is None or again is None else again - newest
                if 2 * moved < factor * ahead or factor >= 1 << _TRIES:
                    store(step)
                    return step
            factor *= 2

    def _newest(self) -> int | None:
        """Return the newest step of any rank; None where none is logged."""
        found = []
        for producer in filter(_is_open, self._roster.producers.values()):
            deadline = time.monotonic() + _LOOK_S
            step = stop_requests.newest_step(producer.mem, producer.words, None, deadline)
            if step is not None:
                found.append(step)
        return max(found, default=None)

    def _survey(self) -> tuple[int | None, int]:
        """Return the newest step of any rank, and by how many steps a request has to be ahead of it."""
        now_ns = time.time_ns()
        ahead = [steps.MIN_AHEAD]
        for producer in filter(_is_open, self._roster.producers.values()):
            points = _recent(producer)
            if points:
                ahead.append(steps.pace(points).ahead(now_ns, _AHEAD_S))
        return self._newest(), max(ahead)

    # ---- attempts ----------------------------------------------------------------------------------------

    def _confirm(self) -> None:
        """Let processes that have come since see the requests, if they are of the same attempt; else void these."""
        words, producers = self._words, self._roster.producers.values()
        self._is_undecided = False
        if not (words[layout.STOP_AT] or words[layout.SAVE_AT]):
            return
        checked = words[layout.REQUESTS_CHECKED_NS]
        newcomers = [each for each in producers if each.created_mono_ns > checked and not each.has_left]
        if not newcomers:
            return
        for each in self._roster.each(which=lambda each: each in newcomers):
            each.read_documents()
        if not all(map(_start, newcomers)):
            self._is_undecided = True
            return
        before = [each for each in producers if each.created_mono_ns <= checked and _is_owner(each)]
        if any(map(_is_owner, newcomers)) and not any(map(_is_open, before)):
            self._void()
        else:
            words[layout.REQUESTS_CHECKED_NS] = max(each.created_mono_ns for each in newcomers)

    def _void(self) -> None:
        words = self._words
        for at in (layout.STOP_AT, layout.STOP_UNTIL, layout.SAVE_AT, layout.SAVE_UNTIL):
            words[at] = 0
        for each in self._ledger.requests:
            if each["state"] == HOLDS:
                self._note({**each, "state": OVER})
        self._log(
            "a new attempt has begun: requests to stop or to save that were made before do not hold for it"
        )


def _is_open(producer: Producer) -> bool:
    """May its process still act?"""
    return not producer.has_left and producer.kept.is_alive()


def _start(producer: Producer) -> dict[str, Any]:
    """Return the start document of a producer; empty where it has written none."""
    start = (producer.documents.get("start") or {}).get("data")
    return start if isinstance(start, dict) else {}


def _is_owner(producer: Producer) -> bool:
    return _start(producer).get("role") == "owner"


def _recent(producer: Producer) -> list[tuple[int, int]]:
    """Return (time, step) of the records that brought a new highest step, the newest first, about a second back."""
    newest: list[tuple[int, int]] = []
    for header in lane_file.headers(producer.words):
        if not header[layout.SEQ]:
            continue
        found: list[tuple[int, int]] = []
        seen: set[int] = set()
        for frame in lane_file.newest_frames(producer.mem, header, time.monotonic() + _LOOK_S):
            _, _, _, step, when_ns, _ = PREFIX.unpack_from(frame)
            found.append((when_ns, step))
            seen.add(step)
            if len(seen) > steps.GAPS and found[0][0] - when_ns > steps.WINDOW_NS:
                break
        newest = max(newest, steps.rising(reversed(found)))
    return newest


def _sentence(request: dict[str, Any]) -> str:
    """Return the line about a request for the agent's log."""
    by = f" by {request['by']}" if request["by"] else ""
    reason = f" ({request['reason']})" if request["reason"] else ""
    asked = f"{request['kind']} asked{by} through {request['via']}{reason}"
    if request["state"] == REFUSED:
        return f"{asked}: refused ({request['why']})"
    when = "at once" if request["step"] is None else f"after step {request['step']}"
    return f"{asked}: {when}"

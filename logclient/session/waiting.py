"""Waiting until what a process logged is on disk, or at the server; an agent is started where none lives.

Runs in the training process, in `flush`, `finish` and the exit hook.

Invariants:

- every wait ends by its deadline, and at once where nobody can be waited for;
- while the agent's page shows a fresh beat only memory is read; else the election lock on tmpfs is asked, and where
  nobody holds it an agent is started. Several started at once are harmless: the election keeps one;
- all times are monotonic: a wall clock that steps changes no wait.

Does not: end runs (`closing.py`), choose the interpreter of an agent (`spawn/`).
"""

from __future__ import annotations

import os
import time

from ..encode import values
from ..encode.about import short
from ..guest import foreign
from ..guest.descriptors import is_none_left
from ..shm import lane_file, layout
from ..shm.counters import lane_counts, missing_there
from ..shm.health import describe_agent
from ..shm.ring import read_counts
from ..shm.wake import MEDIA, wake
from ..spawn import agent as spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .session import Session

_MAX_S = 86_400.0  # every wait has a deadline: an infinite one is a day
_NAP_S = 0.005
_LOOK_S = 0.25  # between two looks whether an agent lives
_FRESH_NS = 500_000_000  # a beat younger than this needs no look
_CALLED_NS = (
    2_000_000_000  # an agent that was called for less than this ago is on its way: it beats only once it runs
)
_CONNECTING_S = 1.0  # to a server of which nothing bad is known: a program that ran for a moment only
_MOVING_S = 2.0  # since the last ack of a server
_GRACE_S = 1.0  # after a start, before the next look; doubled with each start


def seconds(given: object) -> float | None:
    """Return a user's timeout as a number of seconds from 0 to a day; None where it is no number."""
    kind = type(given)
    if kind is not float and kind is not int:
        try:
            code, given = values.convert(given)
        except values.LeftOut:
            return None
        if code not in "qidr":
            return None
    try:
        number = float(given)  # type: ignore[arg-type]
    except OverflowError:
        return _MAX_S if given > 0 else 0.0  # type: ignore[operator]
    return None if number != number else min(max(number, 0.0), _MAX_S)


def patience_s(session: Session, what: str, timeout_s: object) -> float:
    """Return the seconds that a user gave to `flush` or `finish`; the default, said once, where that is no number."""
    settings = session.settings
    usual: float = settings.finish_timeout_s if what == "finish" else settings.flush_timeout_s
    number = usual if timeout_s is None else seconds(timeout_s)
    if number is None:
        session.warn_once(
            what, f"{what}(timeout_s={short(timeout_s)}) is no number of seconds; took {usual:g}"
        )
        return usual
    return number


def until_durable(session: Session, timeout_s: float) -> tuple[bool, str]:
    """Wait until everything that this process logged so far is on disk.

    Returns whether it is, and where nobody works on it, why.
    """
    taken = session.lanes
    if taken is None or not session.mark[0]:
        return True, ""  # nothing was logged by this process
    words = taken.words
    wanted = [(lane, lane[layout.SEQ]) for lane in lane_file.headers(words)]
    media = None if session.encoder is None else session.encoder.media
    if media is not None and media.file is not None:
        wanted.append(media.file.progress())
        wake(session.shm_dir, MEDIA)
    documents = words[layout.DOCUMENTS_WRITTEN]
    words[layout.FLUSH_ASKED] += 1
    wake(session.shm_dir)
    deadline = time.monotonic() + timeout_s
    service = Service(session, deadline)
    while True:
        session.settle_device_values()
        is_behind = any(read_counts(lane)[0] < seq for lane, seq in wanted)
        if not is_behind and words[layout.DOCUMENTS_DURABLE] >= documents:
            return True, ""
        if session.folder.get("state") == "none" or not service.is_there() or time.monotonic() >= deadline:
            return False, service.trouble
        time.sleep(_NAP_S)


def is_durable(session: Session) -> bool:
    """Is everything on disk that this process logged?"""
    if session.lanes is None:
        return True
    words = session.lanes.words
    is_behind = any(read_counts(lane)[0] < lane[layout.SEQ] for lane in lane_file.headers(words))
    return not is_behind and words[layout.DOCUMENTS_DURABLE] >= words[layout.DOCUMENTS_WRITTEN]


def wait_for_server(wanted: str, status: memoryview, lanes: memoryview, deadline: float) -> None:
    """Wait until the server has all records of this process, while it takes some and not after the deadline."""
    begun = moved = time.monotonic()
    acked = -1
    while True:
        counts, now = lane_counts(lanes), time.monotonic()
        if counts["acked"] != acked:
            acked, moved = counts["acked"], now
        state = layout.SHIP_STATES[min(status[layout.AGENT_SHIP_STATE], len(layout.SHIP_STATES) - 1)]
        if state in ("shipping", "idle"):
            until = max(moved + _MOVING_S, begun + _CONNECTING_S)
        elif state in ("starting", "connecting") or (state in ("off", "looking") and wanted):
            until = begun + _CONNECTING_S
        else:
            return
        if not missing_there(counts) or now >= min(until, deadline):
            return
        time.sleep(_NAP_S)


class Service:
    """The agent that a waiting call relies on: seen to live, or started."""

    __slots__ = ("_deadline", "_grace_s", "_look_at", "_session", "trouble")

    def __init__(self, session: Session, deadline: float) -> None:
        self._session = session
        self._deadline = deadline
        self._look_at = 0.0
        self._grace_s = _GRACE_S
        self.trouble = ""  # why nobody can be waited for

    def is_there(self) -> bool:
        """Is anybody there to wait for? Starts an agent where none lives."""
        now = time.monotonic()
        if now < self._look_at or self._is_fresh():
            return True
        self._look_at = now + _LOOK_S
        session = self._session
        try:
            return self._is_served() or self._start(now)
        except Exception as error:
            if not foreign.is_own(error):
                raise
            self.trouble = f"no agent can be started: {type(error).__name__}: {error}"
            return False
        finally:
            if session.status_page is None:
                session.status_page = spawn.map_status(session.shm_dir)

    def _is_fresh(self) -> bool:
        """Does the page show a beat, or a call, of just now?"""
        page = self._session.status_page
        if page is None or page[layout.AGENT_GAVE_UP]:
            return False
        now_ns, called = time.monotonic_ns(), page[layout.AGENT_CALLED_NS]
        last = max(page[layout.AGENT_WORKER_BEAT], page[layout.AGENT_SUPERVISOR_BEAT])
        is_coming = last < called and now_ns - called < _CALLED_NS
        return bool(is_coming or now_ns - last < _FRESH_NS)

    def _is_served(self) -> bool:
        session = self._session
        shm_dir, page = session.shm_dir, session.status_page
        health = describe_agent(page, time.monotonic_ns(), session.settings.stall_s)["state"]
        is_silent = page is not None and health in ("gone", "gave up")
        if not os.path.exists(shm_dir.file("run.json")):  # an agent that lives serves what it has open
            self.trouble = "its shared memory was removed" if is_silent else ""
            return not is_silent
        # without a descriptor the lock cannot be asked and counts as held, and the page shows no beat
        return not is_none_left() and spawn.agent_lives(shm_dir) and not self._hangs(is_silent)

    def _hangs(self, is_silent: bool) -> bool:
        self.trouble = "its agent does not answer" if is_silent else ""
        return is_silent

    def _start(self, now: float) -> bool:
        """Start an agent where none lives; False where that is of no use."""
        if self.trouble:
            return False
        session = self._session
        left = max(0.0, min(session.settings.start_timeout_s, self._deadline - now))
        if session.status_page is not None:
            session.status_page[layout.AGENT_CALLED_NS] = time.monotonic_ns()
        is_known = bool(session.shm_dir.folder_answer().get("state"))
        trouble = spawn.start_agent(session.shm_dir, left, check_folder=not is_known)
        if trouble and time.monotonic() - now < left:
            self.trouble = trouble
            return False
        self._look_at = time.monotonic() + self._grace_s
        self._grace_s *= 2
        return True

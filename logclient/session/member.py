"""`Member`: this process's part in a run: its lanes, its live lock, its documents; and what a fork changes.

Runs in the training process, in `init` and in whatever thread or handler of a forked child logs first.

Invariants:

- a forked child touches nothing of its parent's: it lets go of it, and makes lanes of its own with its first record;
- making them is done by one thread, with all signals blocked; others wait for it, and not for long;
- the attributes of `Run` stay below 30: beyond that CPython looks each of them up in a larger dict, in `log` too.

Does not: encode or commit records (`run.py`), decide which run it is (`start.py`).
"""

from __future__ import annotations

import os
import time
from _signal import (  # type: ignore[import-not-found]  # `signal` is 2 ms of import
    SIG_BLOCK,
    SIG_SETMASK,
    pthread_sigmask,
    valid_signals,
)
from _thread import get_ident
from itertools import count

from ..config import environment
from ..encode import lanes
from ..encode.device import Device
from ..encode.shapes import Encoder
from ..guest import foreign
from ..guest.descriptors import AboveStandard, Mapped
from ..launching import launchers
from ..shm import layout, meeting, refusals
from ..shm.documents import DocumentWriter, TooLarge
from ..shm.owner import ForkMark, LiveLock
from ..shm.proc import file_limit
from ..shm.ring import Forked
from ..shm.stats import Counters, Notices
from ..shm.wake import wake
from ..spawn import agent as spawn
from . import handles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..config import Config
    from ..shm.ring import RingWriter


class Member:
    """The part of one process in a run; `Run` adds the methods for its user."""

    def __init__(self, place: meeting.Meeting, config: Config, *, is_owner: bool, rank: int | None) -> None:
        self._mark = ForkMark().page
        self._place = place
        self._settings = config
        self._rank = rank
        self._notices = Notices(config.quiet)
        self._forking: dict[int, object] = {}  # process -> the call that makes its lanes
        self._trouble = ""  # why this process has no lanes
        self._folder: dict[str, Any] = {}  # what `init` heard about the run folder
        self._has_teller = False  # the agent writes lines for us where standard error is a file
        self._counters = Counters()
        self._closed = ""  # why log() refuses, once it does
        self._about: dict[str, Any] = {}
        self._alerts: list[dict[str, Any]] = []
        with AboveStandard():
            self._attach(is_owner=is_owner, forked=False)

    def _attach(self, *, is_owner: bool, forked: bool) -> None:
        """Lanes, lock and documents of this process incarnation."""
        self._pid = os.getpid()
        self._is_owner = is_owner
        self._first: list[RingWriter] = []
        self._known: dict[tuple[object, ...], Any] = {}
        self._next_order: Callable[[], int] = count(1).__next__
        self._lanes: lanes.Lanes | None = None
        self._live: LiveLock | None = None
        self._documents: DocumentWriter | None = None
        self._status: memoryview | None = None
        self._encoder: Encoder | None = None
        settings, mark = self._settings, self._mark
        made = None
        try:
            made = lanes.make(
                self._place, settings.lanes_bytes, settings.lanes, self._rank, mark, forked=forked
            )
            self._live = LiveLock(made.path[: -len("lanes")] + "live")
            made.show()
        except BaseException as error:
            if made is not None:
                made.withdraw()
            if not isinstance(error, OSError):
                raise
            if isinstance(error, FileNotFoundError) and not os.path.exists(self._place.path):
                what = "is over, or somebody removed its shared memory"
                self._trouble = f"{self._place.shown} {what}: {self._place.path} is not there"
            else:
                self._trouble = f"no shared memory in {self._place.path}: {error}"
            self._notices.once("lanes", f"{self._trouble}; nothing is logged")
            self._counters.count_in(refusals.take_slot(self._place), mark)
            return
        if len(made.mem) < settings.lanes_bytes // 4096 * 4096 and not forked:
            what = f"{len(made.mem):,} bytes instead of {settings.lanes_bytes:,}"
            cause = "shared memory is short"
            if file_limit() < settings.lanes_bytes:
                cause = f"files may have {file_limit():,} bytes at most (ulimit -f)"
            self._notices.once("lanes", f"{cause}: this process gets {what}; bursts may be forgotten")
        place, lose = self._place, self._counters.left_out.add
        device = Device(made, lambda: place.budget_bytes // 2 - place.taken_bytes(".device"), lose, mark)
        self._encoder = Encoder(made.mem, self._rank, mark, device)
        self._known = self._encoder.known
        self._documents = DocumentWriter(made.mem, made.path, mark)
        self._status = spawn.map_status(self._place)
        self._lanes = made
        self._first = made.first
        self._mark[0] = 1
        self._counters.attach(made.words, mark)
        wake(place)

    def _after_fork(self) -> str:
        """The first log() of a forked child: lanes of its own, and an agent if none lives. Answers what is in the way.

        One thread does it and others wait for it; a signal handler that interrupts the one does not.
        """
        me = (get_ident(), object())
        holder = None
        process = os.getpid()
        # else a handler that raises each ms would never let it finish
        mask = pthread_sigmask(SIG_BLOCK, valid_signals())
        try:
            holder = self._forking.setdefault(process, me)
            if holder is me:
                if self._mark[0]:
                    return ""
                self._leave_parent()
                if not self._closed:
                    self._rank = launchers.rank_of_child(environment(), self._settings.rank, self._rank)
                    with AboveStandard():
                        self._attach(is_owner=False, forked=True)
                    handles.note(self)  # type: ignore[arg-type]
                self._mark[0] = 1
                self._introduce({})
        except Exception as error:
            if not foreign.is_own(error):
                raise
            self._trouble = f"this forked child cannot log: {type(error).__name__}: {error}"
            self._notices.once("fork", self._trouble)
            self._mark[0] = 1
        finally:
            if process in self._forking and self._forking[process] is me:
                del self._forking[process]
            pthread_sigmask(SIG_SETMASK, mask)
        if holder is not me:
            return self._wait_for_fork(holder)
        if self._lanes is not None:
            from ..spawn import calling  # `init` has loaded it

            calling.call_if_needed(self._place, self._status, self._settings.stall_s)
        return ""

    def _take_rank(self, rank: int) -> None:
        """Be of another rank from now on: what is logged, and what the start document says of this process."""
        self._rank = rank
        if self._encoder is not None and self._lanes is not None:
            self._encoder = self._encoder.of_rank(rank)
            self._known = self._encoder.known
            self._lanes.words[layout.FILE_RANK] = rank + 1
            if not self._is_owner:  # an owner's start document says more than we know here
                self._introduce({})

    def _wait_for_fork(self, holder: object) -> str:
        deadline = time.monotonic() + 1.0
        while not self._mark[0]:
            if holder[0] == get_ident() or time.monotonic() >= deadline:  # type: ignore[index]
                return "this forked child is only just making its lanes"
            time.sleep(0.001)
        return ""

    def _leave_parent(self) -> None:
        """In a forked child: let go of what belongs to the parent, touching none of its memory."""
        handles.forget(self)  # type: ignore[arg-type]
        self._counters.detach()
        self._counters = Counters()
        if self._encoder is not None:
            self._encoder.detach()
            self._encoder = None
        if self._documents is not None:
            self._documents.detach()
            self._documents = None
        if self._lanes is not None:
            self._lanes.detach()
        if self._live is not None:
            self._live.forget()
            self._live = None
        self._release_maps()
        self._lanes = self._status = None
        self._first = []

    def _release_maps(self) -> None:
        """Nobody touches them from now on, or the interpreter is about to end: see `descriptors.Mapped`."""
        if self._lanes is not None:
            self._lanes.map.let_go()
        if self._status is not None and isinstance(
            self._status.obj, Mapped
        ):  # else a copy: the run is finished
            self._status.obj.let_go()

    # ---- documents --------------------------------------------------------------------------------------

    def _introduce(self, start: dict[str, Any], **about: Any) -> None:
        """The documents every process writes first."""
        role = "owner" if self._is_owner else "member"
        start = {
            "role": role,
            "pid": self._pid,
            "rank": self._rank,
            "run_id": str(self._place.run_id),
            "project": str(self._place.project),
        } | start
        self._write("start", start)
        if about:
            self._about.update(about)
            self._write("about", self._about)

    def _write(self, kind: str, data: Any) -> bool:
        """Store a document; False where it is too large. `data` is the live object: see `DocumentWriter.write`."""
        try:
            if not self._mark[0]:
                self._after_fork()
            documents = self._documents
            if documents is not None:
                documents.write(kind, data)
        except TooLarge as error:
            self._notices.once(f"size of {kind}", f"a change of {kind} is not stored: {error}")
            return False
        except Exception as error:
            if not foreign.is_own(error):
                raise
            if type(error) is Forked:  # inside a signal handler
                return self._write(kind, data)
            self._notices.once(
                f"document {kind}", f"{kind} cannot be stored: {type(error).__name__}: {error}"
            )
        return True

    def _write_notices(self) -> None:
        self._write("notices", {"alerts": self._alerts, "notices": self._notices.lines})

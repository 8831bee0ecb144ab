"""`Session`: this process's part in a run: its lanes, its live lock, its documents; and what a fork changes.

Runs in the training process, in `init` and in whatever thread or handler of a forked child logs first.

Invariants:

- a forked child touches nothing of its parent's: it lets go of it, and makes lanes of its own with its first record;
- making them is done by one thread, with all signals blocked; others wait for it, and not for long;
- what `log` needs lies in a `Recorder` per rank, which is filled anew wherever lanes or encoder change.

Does not: encode or commit records (`run.py`, `recorder.py`), decide which run it is (`start.py`).
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
from ..encode.media import Media
from ..encode.shapes import Encoder
from ..errors import BadArgument
from ..guest import foreign
from ..guest.descriptors import AboveStandard, Mapped
from ..launching import launcher_variables as launchers
from ..shm import layout, refusals
from ..shm.counters import Counters
from ..shm.documents import DocumentWriter, TooLarge
from ..shm.health import no_device, no_media
from ..shm.notices import Notices
from ..shm.owner import ForkMark, LiveLock
from ..shm.proc import file_limit
from ..shm.ring import Forked
from ..shm.shm_dir import ShmDir
from ..shm.wake import wake
from ..spawn import agent as spawn
from . import handles, media_memory, ptracer, tracing
from .alerting import Alerts
from .recorder import Recorder
from .sections import Sections

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..config import Config
    from ..typed import DeviceStatus, MediaStatus
    from .capture import Capture


class Outcome:
    """The outcome of a run in this process, and its last counts once its memory is released."""

    __slots__ = ("_claims", "counts", "device", "is_durable", "left_ns", "media", "state")

    def __init__(self) -> None:
        self._claims: dict[str, object] = {}
        self.is_durable = False
        self.left_ns = 0  # time.monotonic_ns at which this process let go of the run
        self.state = ""  # how the run ended, as its state document has it
        self.counts = dict.fromkeys(("accepted", "forgotten", "damaged", "stored", "acked"), 0)
        self.device: DeviceStatus = no_device()
        self.media: MediaStatus = no_media()

    def claim(self) -> bool:
        """Take the right to end the run; True for one call only, of any thread or handler."""
        # the token of `shm/ring.py`, never given back
        me = object()
        return self._claims.setdefault("end", me) is me


class Session:
    """The part of one process in a run. The user holds a `Run`, which holds this."""

    __slots__ = (
        "_forking",
        "_next_order",
        "about",
        "alerts",
        "closed",
        "console",
        "counters",
        "documents",
        "encoder",
        "folder",
        "is_owner",
        "lanes",
        "live",
        "mark",
        "notices",
        "outcome",
        "page",
        "pid",
        "rank",
        "recorders",
        "sections",
        "settings",
        "shm_dir",
        "status_page",
        "trouble",
        "writes_to_file",
    )

    def __init__(self, shm_dir: ShmDir, config: Config, *, is_owner: bool, rank: int | None) -> None:
        self.mark = ForkMark().page
        self.shm_dir = shm_dir
        self.settings = config
        self.rank = rank
        self.notices = Notices(config.quiet)
        # process -> token (see `shm/ring.py`) of the call that makes its lanes
        self._forking: dict[int, object] = {}
        self.trouble = ""  # why this process has no lanes
        self.folder: dict[str, Any] = {}  # the launcher's answer about the run folder
        self.page = ""  # address of the collector's page, as it was known at `init`
        self.writes_to_file = (
            False  # the lines of `init` and `finish` go into the file that is standard error
        )
        self.counters = Counters()
        self.closed = ""  # why log() refuses, once it does
        self.outcome = Outcome()
        self.about: dict[str, Any] = {}
        self.alerts = Alerts()
        self.console: Capture | None = None
        self.recorders: dict[int | None, Recorder] = {}
        self.sections = Sections(self)
        with AboveStandard():
            self._attach(is_owner=is_owner, forked=False)

    def recorder(self, rank: int | None = None) -> Recorder:
        """Return what `log` needs to store records of this rank; None: the rank of the process."""
        found = self.recorders.get(rank)
        if found is None:
            found = self.recorders.setdefault(rank, Recorder(self, rank))
            # once it is listed: a fork before this fills it as well
            found.fill(self.lanes, self.encoder, self._next_order)
        return found

    def _fill_all(self) -> None:
        for recorder in tuple(self.recorders.values()):
            recorder.fill(self.lanes, self.encoder, self._next_order)

    def _attach(self, *, is_owner: bool, forked: bool) -> None:
        """Lanes, lock and documents of this process incarnation."""
        self.pid = os.getpid()
        self.is_owner = is_owner
        self.lanes: lanes.Lanes | None = None
        self.live: LiveLock | None = None
        self.documents: DocumentWriter | None = None
        self.status_page: memoryview | None = None
        self.encoder: Encoder | None = None
        self._next_order: Callable[[], int] = count(1).__next__
        settings, mark = self.settings, self.mark
        made = None
        try:
            made = lanes.make(
                self.shm_dir, settings.lanes_bytes, settings.lanes, self.rank, mark, forked=forked
            )
            self.live = LiveLock(made.path[: -len("lanes")] + "live")
            made.show()
        except BaseException as error:
            if made is not None:
                made.withdraw()
            if not isinstance(error, OSError):
                raise
            if isinstance(error, FileNotFoundError) and not os.path.exists(self.shm_dir.path):
                what = "is over, or somebody removed its shared memory"
                self.trouble = f"{self.shm_dir.shown} {what}: {self.shm_dir.path} is not there"
            else:
                self.trouble = f"no shared memory in {self.shm_dir.path}: {error}"
            self.notices.once("lanes", f"{self.trouble}; nothing is logged")
            self.counters.count_in(refusals.take_slot(self.shm_dir), mark)
            return
        if len(made.mem) < settings.lanes_bytes // 4096 * 4096 and not forked:
            what = f"{len(made.mem):,} bytes instead of {settings.lanes_bytes:,}"
            cause = "shared memory is short"
            if file_limit() < settings.lanes_bytes:
                cause = f"files may have {file_limit():,} bytes at most (ulimit -f)"
            self.notices.once("lanes", f"{cause}: this process gets {what}; bursts may be forgotten")
        shm_dir, lose = self.shm_dir, self.counters.left_out.add
        device = Device(made, lambda: shm_dir.budget_bytes // 2 - shm_dir.taken_bytes(".device"), lose, mark)
        media = Media(lambda: media_memory.make(self, made), mark)
        self.encoder = Encoder(made.mem, self.rank, mark, device, media)
        self.documents = DocumentWriter(made.mem, made.path, mark)
        self.status_page = spawn.map_status(self.shm_dir)
        self.lanes = made
        self._fill_all()
        self.mark[0] = 1
        self.counters.attach(made.words, mark)
        self.sections.attach(made.words)
        wake(shm_dir)

    def after_fork(self) -> str:
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
                if self.mark[0]:
                    return ""
                run = handles.user_of(self)
                self.leave_parent()
                if not self.closed:
                    self.rank = launchers.rank_of_child(environment(), self.settings.rank, self.rank)
                    with AboveStandard():
                        self._attach(is_owner=False, forked=True)
                    if run is not None:
                        handles.note(run, self)
                self.mark[0] = 1
                self.introduce({})
                ptracer.permit(self)
                tracing.go_on(self)
        except Exception as error:
            if not foreign.is_own(error):
                raise
            self.trouble = f"this forked child cannot log: {type(error).__name__}: {error}"
            self.notices.once("fork", self.trouble)
            self.mark[0] = 1
        finally:
            if process in self._forking and self._forking[process] is me:
                del self._forking[process]
            pthread_sigmask(SIG_SETMASK, mask)
        if holder is not me:
            return self._wait_for_fork(holder)
        if self.lanes is not None:
            from ..spawn import agent_for_fork as calling  # `init` has loaded it

            calling.call_if_needed(self.shm_dir, self.status_page, self.settings.stall_s)
        return ""

    def take_rank(self, rank: int) -> None:
        """Be of another rank from now on: what is logged, and what the start document says of this process."""
        self.rank = rank
        if self.encoder is not None and self.lanes is not None:
            self.encoder = self.encoder.of_rank(rank)
            self._fill_all()
            self.lanes.words[layout.FILE_RANK] = rank + 1
            if self.console is not None:
                self.console.take_rank(rank)
            if not self.is_owner:  # an owner's start document says more than we know here
                self.introduce({})

    def _wait_for_fork(self, holder: object) -> str:
        deadline = time.monotonic() + 1.0
        while not self.mark[0]:
            if holder[0] == get_ident() or time.monotonic() >= deadline:  # type: ignore[index]
                return "this forked child is only just making its lanes"
            time.sleep(0.001)
        return ""

    def leave_parent(self) -> None:
        """In a forked child: let go of what belongs to the parent, touching none of its memory."""
        handles.forget(self)
        tracing.leave(self)
        self.counters.detach()
        self.counters = Counters()
        self.alerts = Alerts()
        if self.encoder is not None:
            self.encoder.detach()
            self.encoder = None
        if self.console is not None:
            self.console.leave()
            self.console = None
        if self.documents is not None:
            self.documents.detach()
            self.documents = None
        if self.lanes is not None:
            self.lanes.detach()
        if self.live is not None:
            self.live.forget()
            self.live = None
        self.release_maps()
        self.lanes = self.status_page = None
        self._fill_all()
        self.sections.detach()

    def release_maps(self) -> None:
        """Nobody touches them from now on, or the interpreter is about to end: see `descriptors.Mapped`."""
        if self.lanes is not None:
            self.lanes.map.let_go()
        media = None if self.encoder is None else self.encoder.media
        if media is not None and media.file is not None:
            media.file.map.let_go()
        if self.status_page is not None and isinstance(
            self.status_page.obj, Mapped
        ):  # else a copy: the run is finished
            self.status_page.obj.let_go()

    def stop_recording(self) -> None:
        """Let `log` find no lane in this process from now on."""
        for recorder in tuple(self.recorders.values()):
            recorder.fill(None, None, self._next_order)
        self.sections.let_go()
        tracing.end(self)
        self.recorders.clear()  # they refer to the session: its memory shall go with its last reference

    # ---- documents --------------------------------------------------------------------------------------

    def introduce(self, start: dict[str, Any], **about: Any) -> None:
        """The documents every process writes first."""
        role = "owner" if self.is_owner else "member"
        start = {
            "role": role,
            "pid": self.pid,
            "rank": self.rank,
            "run_id": str(self.shm_dir.run_id),
            "project": str(self.shm_dir.project),
        } | start
        self.write("start", start)
        if about:
            self.about.update(about)
            self.write("about", self.about)

    def write(self, kind: str, data: Any) -> bool:
        """Store a document; False where it is too large. `data` is the live object: see `DocumentWriter.write`."""
        try:
            if not self.mark[0]:
                self.after_fork()
            documents = self.documents
            if documents is not None:
                documents.write(kind, data)
        except TooLarge as error:
            self.notices.once(f"size of {kind}", f"a change of {kind} is not stored: {error}")
            return False
        except Exception as error:
            if not foreign.is_own(error):
                raise
            if type(error) is Forked:  # inside a signal handler
                return self.write(kind, data)
            self.notices.once(f"document {kind}", f"{kind} cannot be stored: {type(error).__name__}: {error}")
        return True

    def write_notices(self) -> None:
        self.write("notices", {"alerts": self.alerts, "notices": self.notices.lines})

    def warn_once(self, cause: str, line: str) -> None:
        """Keep a line for the user with the run and write it to standard error, once per cause."""
        if self.notices.once(cause, line):
            self.write_notices()

    def refuse(self, cause: str, why: str) -> None:
        """Count a record that is refused, and warn of it, once per cause. Raises BadArgument in strict mode."""
        self.counters.refused.add()
        if self.settings.strict and not self.closed:
            raise BadArgument(why)
        try:
            self.warn_once(f"refused {cause}", f"a record was refused and counted: {why}")
        except RecursionError:  # it is counted; the next one warns
            return

    def settle_device_values(self) -> None:
        """Finish device values that need a later call than the one that logged them."""
        try:
            if self.mark[0] and self.encoder is not None and self.encoder.device is not None:
                self.encoder.device.settle()
        except Exception as error:
            if not foreign.is_own(error):
                raise

    # ---- names ------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The run's id."""
        return str(self.shm_dir.run_id)

    @property
    def name(self) -> str:
        """The run's name; its user may have changed it."""
        return str(self.about.get("name", self.shm_dir.name))

    @property
    def dir(self) -> str:
        """The folder in which the agent keeps the runs."""
        answer = self.folder or self.shm_dir.folder_answer()
        return str(answer.get("dir") or self.shm_dir.dir)

    @property
    def server(self) -> str:
        """The address given to `init`; the agent may know another one, from the configuration file."""
        return str(self.shm_dir.facts.get("server") or "")

"""`Run`: what the user holds. The hot path is `Run.log`; everything else is delegated.

Runs in the training process, in whatever thread or handler calls it.

Invariants:

- `log` makes no system call but the clock, takes no lock and never waits; it swallows and counts its own failures
  and passes on the user's (a signal handler that raises inside our frames);
- a forked child that logs gets lanes of its own; its exit never ends the run;
- every wait of `flush` and `finish` has a deadline and only sleeps and reads memory.

Does not: start runs (`start.py`), touch the run folder (the agent does).
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

from . import foreign, lanes, layout, meeting, spawn
from .descriptors import AboveStandard
from .documents import DocumentWriter
from .errors import BadArgument
from .facts import Facts
from .owner import ForkMark, LiveLock
from .ring import Forked, read_counts
from .shapes import Encoder, TooLargeRecord
from .stats import Counters, Notices, describe_agent, lane_counts
from .values import LeftOut, convert

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Any

    from .config import Config
    from .ring import RingWriter
    from .values import Points

_INT64 = 1 << 63
_NAP_S = 0.005
_ALERT_LEVELS = ("info", "warn", "error")
_MOST_ALERTS = 50


class Run:
    """One run as this process sees it. Made by `logclient.init`."""

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
        self._alerts: list[dict[str, Any]] = []
        self._about: dict[str, Any] = {}
        with AboveStandard():
            self._attach(is_owner=is_owner, forked=False)
        self._config = Facts(lambda data: self._write("config", data), self._notices.once, {})
        self._summary = Facts(lambda data: self._write("summary", data), self._notices.once, {})

    # ---- the hot path: log -> ring.offer ------------------------------------------------------------

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Copy the metrics into a lane and return; a full lane forgets its oldest records and counts them.

        `step` is any int of 64 bits, in any order; `metrics` maps keys to numbers, short texts or such dicts.
        Never raises (strict mode aside) and never waits.
        """
        try:
            lane = self._first.pop()
        except IndexError as error:
            if not lanes.is_empty(error):
                raise  # the user's
            lane = self._take_other()  # type: ignore[assignment]
            if lane is None:
                return
        try:
            shape = self._known.get(tuple(metrics))
            if shape is None or step.__class__ is not int:
                self._log_other(lane, step, metrics)
            else:
                lane.offer(shape, self._next_order(), step, metrics.values())
        except BaseException as error:
            if not self._log_again(lane, error, step, metrics):
                raise  # the user's
        finally:
            lane.home.append(lane)
            lane = None  # type: ignore[assignment]  # a traceback that is kept keeps this frame: see Lanes.find_lost

    # ---- beside the hot path ------------------------------------------------------------------------

    def _take_other(self) -> RingWriter | None:
        """Another lane where lane 0 is in use; None, counted, where there is none."""
        try:
            why = ""
            if not self._mark[0]:
                why = self._after_fork()
            why = why or self._closed or self._trouble
            if not why and (taken := self._lanes) is not None:
                lane = taken.take_other()
                if lane is not None:
                    return lane
                why = "no free lane: more threads and handlers log at once than LOGCLIENT_LANES"
        except Exception as error:
            if not foreign.is_own(error):
                lane = None
                foreign.forget_frames(error)
                raise
            why = self._closed or f"a failure of logclient itself: {type(error).__name__}: {error}"
        self._refuse("closed" if self._closed else "no lane", why or "the run is finished")
        return None

    def _log_other(self, lane: RingWriter, step: object, metrics: Mapping[Any, Any]) -> None:
        """A record the fast path does not know: other types, a new key set, a step that is no plain int."""
        if type(metrics) is not dict:
            try:
                metrics = foreign.call(dict, metrics)
            except foreign.Failed:
                return self._refuse(
                    "metrics", f"metrics must be a dict of key to value, not {_short(metrics)}"
                )
        number = step if step.__class__ is int else self._step(step)
        if number is None or not -_INT64 <= number < _INT64:
            return self._refuse("step", f"step {_short(step)} is no integer of 64 bits")
        left_out = self._encoder.offer(lane, self._next_order, number, metrics)  # type: ignore[union-attr]
        if left_out is not None:
            self._leave_out(left_out)

    def _log_again(
        self, lane: RingWriter, error: BaseException, step: int, metrics: Mapping[str, Any]
    ) -> bool:
        """`log` was interrupted: log what it could not. False: the exception is the user's, to be raised again."""
        try:
            is_users = not self._sort_out(lane, error, step, metrics, again=False)
        except BaseException as late:  # the user's, too
            lane = error = None  # type: ignore[assignment]
            foreign.forget_frames(late)
            raise
        if is_users:
            foreign.forget_frames(error)
        return not is_users

    def _sort_out(
        self, lane: RingWriter, error: BaseException, step: int, metrics: Mapping[str, Any], again: bool
    ) -> bool:
        if type(error) is Forked:
            why = self._after_fork()
            if why:
                self._refuse("fork", why)
            else:
                self.log(step, metrics)
            return True
        committed = lane.resync()
        if not foreign.is_own(error):
            return False
        if committed:
            return True
        if type(error) is TooLargeRecord:
            self._refuse("size", f"record too large: {error}")
            return True
        if again:
            self._refuse("failure", f"a failure of logclient itself: {type(error).__name__}: {error}")
            return True
        try:
            self._log_other(lane, step, metrics)
        except BaseException as second:
            if not self._sort_out(lane, second, step, metrics, again=True):
                raise
        return True

    def _step(self, step: object) -> int | None:
        try:
            code, number = convert(step)
        except LeftOut:
            return None
        if code in "qbi":
            return int(number)
        if code in "dr" and number == number and abs(number) < _INT64:
            whole = int(number)
            if whole != number:
                cut = f"step {_short(step)} is no integer; the part behind the point is cut"
                if self._notices.once("step", cut):
                    self._write_notices()
            return whole
        return None

    def _refuse(self, cause: str, why: str) -> None:
        self._counters.refused.add()
        if self._settings.strict and not self._closed:
            raise BadArgument(why)
        if self._notices.once(f"refused {cause}", f"a record was refused and counted: {why}"):
            self._write_notices()

    def _leave_out(self, points: Points) -> None:
        self._counters.left_out.add(points.left_out)
        new = False
        for key, reason in points.reasons:
            new |= self._notices.once(f"value {key}", f"{_short(key)} is left out and counted: {reason}")
        if new:
            self._write_notices()
        if self._settings.strict:
            key, reason = points.reasons[0]
            raise BadArgument(f"{_short(key)} is left out: {reason}")

    # ---- processes ----------------------------------------------------------------------------------

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
            self._trouble = f"no shared memory in {self._place.path}: {error}"
            self._notices.once("lanes", f"{self._trouble}; nothing is logged")
            return
        if len(made.mem) < settings.lanes_bytes // 4096 * 4096 and not forked:
            what = f"{len(made.mem):,} bytes instead of {settings.lanes_bytes:,}"
            self._notices.once(
                "lanes", f"shared memory is short: this process gets {what}; bursts may be forgotten"
            )
        self._encoder = Encoder(made.mem, self._rank, mark)
        self._known = self._encoder.known
        self._documents = DocumentWriter(made.mem, made.path, mark)
        self._status = spawn.map_status(self._place)
        self._lanes = made
        self._first = made.first
        self._mark[0] = 1
        self._counters.attach(made.words, mark)

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
                    with AboveStandard():
                        self._attach(is_owner=False, forked=True)
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
        if self._lanes is not None and not spawn.agent_lives(self._place):
            spawn.start_agent(self._place, self._settings.start_timeout_s, check_folder=False)
        return ""

    def _wait_for_fork(self, holder: object) -> str:
        deadline = time.monotonic() + 1.0
        while not self._mark[0]:
            if holder[0] == get_ident() or time.monotonic() >= deadline:  # type: ignore[index]
                return "this forked child is only just making its lanes"
            time.sleep(0.001)
        return ""

    def _leave_parent(self) -> None:
        """In a forked child: let go of what belongs to the parent, touching none of its memory."""
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
        if self._status is not None:
            self._status.obj.let_go()  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[Any, ...]:
        from .start import attach

        return attach, (self._place.path,)

    # ---- what the user attaches to the run ------------------------------------------------------------

    @property
    def id(self) -> str:
        return str(self._place.run_id)

    @property
    def project(self) -> str:
        return str(self._place.project)

    @property
    def name(self) -> str:
        return str(self._about.get("name", self._place.name))

    @property
    def dir(self) -> str:
        """The folder in which the agent keeps the runs."""
        answer = self._folder or self._place.folder_answer()
        return str(answer.get("dir") or self._place.dir)

    @property
    def config(self) -> Facts:
        """Settings of the experiment; changes are stored."""
        return self._config

    @property
    def summary(self) -> Facts:
        """Results of the run; changes are stored."""
        return self._summary

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(self._about.get("tags", ()))

    @tags.setter
    def tags(self, tags: Any) -> None:
        self._about["tags"] = [tags] if isinstance(tags, str) else [str(tag) for tag in tags]
        self._write("about", self._about)

    def alert(self, title: str, text: str = "", level: str = "info") -> None:
        """Store a message for whoever looks at the run; `level` is info, warn or error. The last 50 are kept."""
        if level not in _ALERT_LEVELS:
            self._notices.once(
                "alert", f"alert level {level!r} is none of {', '.join(_ALERT_LEVELS)}; took info"
            )
            level = "info"
        alert = {"time": time.time_ns(), "title": str(title)[:200], "text": str(text)[:2000], "level": level}
        self._alerts.append(alert)
        del self._alerts[:-_MOST_ALERTS]
        self._write_notices()

    def _introduce(self, start: dict[str, Any], **about: Any) -> None:
        """The documents every process writes first."""
        role = "owner" if self._is_owner else "member"
        start = {
            "role": role,
            "pid": self._pid,
            "rank": self._rank,
            "run_id": self.id,
            "project": self.project,
        } | start
        self._write("start", start)
        if about:
            self._about.update(about)
            self._write("about", self._about)

    def _write(self, kind: str, data: Any) -> None:
        """`data` is the live object: see `DocumentWriter.write`."""
        try:
            if not self._mark[0]:
                self._after_fork()
            documents = self._documents
            if documents is not None:
                documents.write(kind, data)
        except Exception as error:
            if not foreign.is_own(error):
                raise
            if type(error) is Forked:  # inside a signal handler
                return self._write(kind, data)
            self._notices.once(
                f"document {kind}", f"{kind} cannot be stored: {type(error).__name__}: {error}"
            )

    def _write_notices(self) -> None:
        self._write("notices", {"alerts": self._alerts, "notices": self._notices.lines})

    # ---- counting, waiting, ending --------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Counts of this process and health of the agent.

        `accepted`, `forgotten`, `damaged`, `durable` (stored past an fsync) and `acked` count records over this
        process's lanes, `refused` records that got no place, `left_out` single points; `agent` is a dict.
        """
        taken = self._lanes if self._mark[0] else None
        counts = dict(self._last_counts) if taken is None else lane_counts(taken.words)
        durable = counts.pop("stored", 0)
        counts["durable"] = durable
        return {
            **counts,
            "refused": self._counters.refused.value,
            "left_out": self._counters.left_out.value,
            "agent": describe_agent(self._status, time.monotonic_ns(), self._settings.stall_s),
            "notices": list(self._notices.lines),
        }

    _last_counts: dict[str, int] = dict.fromkeys(("accepted", "forgotten", "damaged", "stored", "acked"), 0)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything logged so far is on disk, at most `timeout_s`; True if it is."""
        taken = self._lanes
        if taken is None or not self._mark[0]:
            return True  # nothing was logged by this process
        words = taken.words
        wanted = [(lane, lane[layout.SEQ]) for lane in _lane_headers(words)]
        documents = words[layout.DOCUMENTS_WRITTEN]
        words[layout.FLUSH_ASKED] += 1
        deadline = time.monotonic() + (self._settings.flush_timeout_s if timeout_s is None else timeout_s)
        while True:
            behind = any(read_counts(lane)[0] < seq for lane, seq in wanted)
            if not behind and words[layout.DOCUMENTS_DURABLE] >= documents:
                return True
            if time.monotonic() >= deadline or self._agent_is_gone() or self._folder.get("state") == "none":
                return False
            time.sleep(_NAP_S)

    def _agent_is_gone(self) -> bool:
        """Nobody is there to wait for: silent for longer than a restart takes."""
        state = describe_agent(self._status, time.monotonic_ns(), self._settings.stall_s)["state"]
        if state == "starting":
            return bool(time.time_ns() - self._place.created_ns > 2 * self._settings.stall_s * 1e9)
        return state in ("gone", "gave up")

    def finish(self, timeout_s: float | None = None) -> bool:
        """End the run (in its owner), wait until it is on disk, at most `timeout_s`; True if it is.

        In any other process of the run: give up this process's lanes. Afterwards `log` counts and drops.
        """
        return self._end({"state": "finished", "by": "finish"}, timeout_s)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            from .ending import state_of

            self._end({**state_of(error), "by": "with"}, None)
        except KeyboardInterrupt:
            if not isinstance(error, KeyboardInterrupt):
                raise  # else it is pressed again, and the first one goes on

    def _end(self, state: dict[str, Any], timeout_s: float | None) -> bool:
        if self._closed:
            return self._is_durable
        self._closed = "the run is finished"
        if not self._mark[0]:  # a forked child that never logged
            self._leave_parent()
            self._mark[0] = 1
            return True
        from .ending import patience_s, say_goodbye

        timeout_s = patience_s(state, self._settings.finish_timeout_s) if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        try:
            self._close_lanes(min(deadline, time.monotonic() + 1.0))
            if self._is_owner:
                self._write("state", state)
            left = deadline - time.monotonic()
            self._is_durable = done = self.flush(max(0.0, left - self._has_teller * min(0.3, 0.3 * left)))
            if self._is_owner and not self._settings.quiet:
                say_goodbye(self, done, timeout_s, deadline)
        finally:  # Ctrl-C while it waits: the agent goes on with what is there
            self._let_go()
        return done

    _is_durable = True  # what `finish` answered

    def _close_lanes(self, deadline: float) -> None:
        """Take every lane out of circulation; one that somebody still writes to is waited for a moment."""
        taken = self._lanes
        while taken is not None and not taken.close() and time.monotonic() < deadline:
            time.sleep(0.001)
            taken.find_lost()

    def _let_go(self) -> None:
        from .start import forget

        self._first, self._known = [], {}
        self._counters.publish()
        if self._lanes is not None:
            self._lanes.detach()  # a thread that is still inside log() is refused
            self._last_counts = lane_counts(self._lanes.words)
            self._lanes.words[layout.STATE] = layout.STATE_FINISHED
        known = None if self._status is None else memoryview(bytes(self._status)).cast("Q")
        self._release_maps()
        self._lanes = self._documents = self._encoder = None
        self._status = known  # what was heard of the agent last
        self._counters.detach()
        if self._live is not None:
            self._live.release()
            self._live = None
        forget(self)


def _lane_headers(words: memoryview) -> list[memoryview]:
    starts = [layout.LANE_HEADERS + i * layout.LANE_HEADER_WORDS for i in range(words[layout.FILE_LANES])]
    return [words[at : at + layout.LANE_HEADER_WORDS] for at in starts]


def _short(value: object) -> str:
    """A few characters that show the value; only the type where its text would be foreign code, or a hidden wait."""
    if value is not None and type(value) not in (str, bytes, int, float, bool):
        return f"of type {type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")
    if type(value) is int and abs(value) >> 256:
        return f"of {value.bit_length()} bits"
    text = repr(value[:80]) if type(value) in (str, bytes) else repr(value)  # type: ignore[index]
    return text if len(text) <= 80 else text[:77] + "..."

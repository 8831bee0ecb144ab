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
import struct
import time
from _thread import RLock  # `threading` is 2 ms of import
from itertools import count

from . import lanes, layout, meeting, spawn
from .documents import DocumentWriter
from .errors import BadArgument
from .facts import Facts
from .owner import ForkMark, LiveLock
from .ring import TooLarge, read_counts
from .shapes import Encoder, TooLargeRecord
from .stats import Counters, Notices, describe_agent, lane_counts, tell
from .values import LeftOut, convert, is_users

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
# what our own code can raise; anything else that surfaces in our frames was injected there by the user
_OWN_KINDS = frozenset(
    (TypeError, ValueError, AttributeError, KeyError, IndexError, OverflowError, RuntimeError, BufferError)
    + (MemoryError, UnicodeEncodeError, OSError, struct.error, TooLarge, TooLargeRecord, LeftOut)
)


class Run:
    """One run as this process sees it. Made by `logclient.init`."""

    def __init__(self, place: meeting.Meeting, config: Config, *, is_owner: bool, rank: int | None) -> None:
        self._mark = ForkMark().page
        self._place = place
        self._settings = config
        self._rank = rank
        self._notices = Notices(config.quiet)
        self._fork_token = [None]
        self._closed = ""  # why log() refuses, once it does
        self._alerts: list[dict[str, Any]] = []
        self._about: dict[str, Any] = {}
        self._attach(is_owner=is_owner, forked=False)
        self._config = Facts(lambda data: self._write("config", data), self._notices.once, {})
        self._summary = Facts(lambda data: self._write("summary", data), self._notices.once, {})

    # ---- the hot path: log -> ring.offer ------------------------------------------------------------

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Copy the metrics into a lane and return; a full lane forgets its oldest records and counts them.

        `step` is any int of 64 bits, in any order; `metrics` maps keys to numbers, short texts or such dicts.
        Never raises (strict mode aside) and never waits.
        """
        if not self._mark[0]:
            self._after_fork()
        try:
            lane = self._first.pop()
        except IndexError as error:
            if error.__traceback__.tb_next is not None:  # type: ignore[union-attr]  # from a signal handler
                raise
            lane = self._take_other()  # type: ignore[assignment]
            if lane is None:
                return
        try:
            shape = self._known.get(tuple(metrics))
            if shape is None or step.__class__ is not int:
                self._log_other(lane, step, metrics)
            else:
                lane.offer(shape, self._next_order(), step, metrics.values())
        except BaseException as error:  # noqa: BLE001 - sorted out there: the user's is raised again
            self._log_again(lane, error, step, metrics)
        finally:
            lane.home.append(lane)

    # ---- beside the hot path ------------------------------------------------------------------------

    def _take_other(self) -> RingWriter | None:
        lane = self._lanes.take_other(_LOG_CODE) if self._lanes is not None and not self._closed else None
        if lane is None:
            why = self._closed or "no free lane: more threads and handlers log at once than LOGCLIENT_LANES"
            self._refuse(why)
        return lane

    def _log_other(self, lane: RingWriter, step: object, metrics: Mapping[Any, Any]) -> None:
        """A record the fast path does not know: other types, a new key set, a step that is no plain int."""
        if type(metrics) is not dict:
            try:
                metrics = dict(metrics)
            except Exception as error:
                if is_users(error):
                    raise
                return self._refuse(f"metrics must be a dict of key to value, not {type(metrics).__name__}")
        number = step if step.__class__ is int else self._step(step)
        if number is None or not -_INT64 <= number < _INT64:  # type: ignore[operator]
            return self._refuse(f"step {_short(step)} is no integer of 64 bits")
        left_out = self._encoder.offer(lane, self._next_order, number, metrics)  # type: ignore[union-attr, arg-type]
        if left_out is not None:
            self._leave_out(left_out)

    def _log_again(self, lane: RingWriter, error: BaseException, step: object, metrics: Mapping[Any, Any]) -> None:
        """The fast path was interrupted: raise the user's exception, or log what it could not."""
        committed = lane.resync()
        if not self._is_own(error, metrics):
            raise error
        if committed:
            return
        if isinstance(error, TooLargeRecord):
            return self._refuse(f"record too large: {error}")
        try:
            self._log_other(lane, step, metrics)
        except BaseException as again:  # noqa: BLE001
            lane.resync()
            if not self._is_own(again, metrics):
                raise
            if isinstance(again, TooLargeRecord):
                return self._refuse(f"record too large: {again}")
            if isinstance(again, BadArgument):
                raise
            self._refuse(f"a failure of logclient itself: {type(again).__name__}: {again}")

    def _is_own(self, error: BaseException, metrics: object) -> bool:
        if type(error) not in _OWN_KINDS:
            return False
        step = error.__traceback__
        while step is not None and step.tb_next is not None:
            step = step.tb_next
        if step is None or str(step.tb_frame.f_globals.get("__name__", "")).startswith("logclient."):
            return True
        return type(metrics) is not dict and not is_users(error)  # a foreign mapping's own code

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
                self._notices.once("step", f"step {_short(step)} is no integer; the part behind the point is cut")
            return whole
        return None

    def _refuse(self, why: str) -> None:
        self._counters.refused.add()
        if self._settings.strict and not self._closed:
            raise BadArgument(why)
        if self._notices.once(f"refused {why[:24]}", f"a record was refused and counted: {why}"):
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
        self._lock = RLock()
        self._first: list[RingWriter] = []
        self._known: dict[tuple[object, ...], Any] = {}
        self._next_order: Callable[[], int] = count(1).__next__
        self._lanes: lanes.Lanes | None = None
        self._live: LiveLock | None = None
        self._documents: DocumentWriter | None = None
        self._status: memoryview | None = None
        self._encoder: Encoder | None = None
        self._counters = Counters(None)
        settings = self._settings
        try:
            made = lanes.make(self._place, settings.lanes_bytes, settings.lanes, self._rank, forked=forked)
            self._live = LiveLock(made.path[: -len("lanes")] + "live")
            made.show()
        except OSError as error:
            self._notices.once("lanes", f"no shared memory in {self._place.path}: {error}; nothing is logged")
            return
        self._counters = Counters(made.words)
        self._encoder = Encoder(made.mem, self._rank)
        self._known = self._encoder.known
        self._documents = DocumentWriter(made.mem, made.path)
        self._lanes = made
        self._status = spawn.map_status(self._place)
        self._first = made.first

    def _after_fork(self) -> None:
        """The first log() of a forked child: lanes of its own, and an agent if none lives."""
        try:
            self._fork_token.pop()
        except IndexError:
            deadline = time.monotonic() + 1.0
            while not self._mark[0] and time.monotonic() < deadline:
                time.sleep(0.001)
            return
        try:
            self._leave_parent()
            if not self._closed:
                self._attach(is_owner=False, forked=True)
                self._introduce({})
                if self._lanes is not None and not spawn.agent_lives(self._place):
                    spawn.start_agent(self._place, self._settings.start_timeout_s, check_folder=False)
        except Exception as error:  # noqa: BLE001 - P2: a child must train on
            if is_users(error):
                raise
            self._notices.once("fork", f"this forked child cannot log: {type(error).__name__}: {error}")
        finally:
            self._mark[0] = 1
            self._fork_token.append(None)

    def _leave_parent(self) -> None:
        """In a forked child: let go of what belongs to the parent, touching none of its memory."""
        if self._lanes is not None:
            self._lanes.detach()
            self._lanes = None
        if self._live is not None:
            self._live.forget()
            self._live = None
        self._documents = None
        self._first = []

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
        return str(self._place.folder_answer().get("dir") or self._place.dir)

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
        self._about["tags"] = [str(tag) for tag in tags]
        self._write("about", self._about)

    def alert(self, title: str, text: str = "", level: str = "info") -> None:
        """Store a message for whoever looks at the run; `level` is info, warn or error. The last 50 are kept."""
        if level not in _ALERT_LEVELS:
            self._notices.once("alert", f"alert level {level!r} is none of {', '.join(_ALERT_LEVELS)}; took info")
            level = "info"
        alert = {"time": time.time_ns(), "title": str(title)[:200], "text": str(text)[:2000], "level": level}
        self._alerts = [*self._alerts, alert][-_MOST_ALERTS:]
        self._write_notices()

    def _introduce(self, start: dict[str, Any], **about: Any) -> None:
        """The documents every process writes first."""
        role = "owner" if self._is_owner else "member"
        start = {"role": role, "pid": self._pid, "rank": self._rank, "run_id": self.id, "project": self.project} | start
        self._write("start", start)
        if about:
            self._about.update(about)
            self._write("about", self._about)

    def _write(self, kind: str, data: Any) -> None:
        if not self._mark[0]:
            self._after_fork()
        if self._documents is None:
            return
        with self._lock:
            try:
                self._documents.write(kind, data)
            except OSError as error:
                self._notices.once("document", f"{kind} is too large for shared memory: {error.strerror}")

    def _write_notices(self) -> None:
        self._write("notices", {"alerts": self._alerts, "notices": list(self._notices.lines)})

    # ---- counting, waiting, ending --------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Counts of this process and health of the agent.

        `accepted`, `forgotten`, `damaged`, `durable` (stored past an fsync) and `acked` count records over this
        process's lanes, `refused` records that got no place, `left_out` single points; `agent` is a dict.
        """
        counts = lane_counts(self._lanes.words) if self._lanes is not None else dict(self._last_counts)
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
        if self._lanes is None or not self._mark[0]:
            return self._lanes is None
        words = self._lanes.words
        wanted = [(lane, lane[layout.SEQ]) for lane in _lane_headers(words)]
        documents = words[layout.DOCUMENTS_WRITTEN]
        words[layout.FLUSH_ASKED] += 1
        deadline = time.monotonic() + (self._settings.flush_timeout_s if timeout_s is None else timeout_s)
        while True:
            behind = any(read_counts(lane)[0] < seq for lane, seq in wanted)
            if not behind and words[layout.DOCUMENTS_DURABLE] >= documents:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_NAP_S)

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
        from .ending import state_of

        self._end({**state_of(error), "by": "with"}, None)

    def _end(self, state: dict[str, Any], timeout_s: float | None) -> bool:
        if not self._mark[0]:
            self._after_fork()
        if self._closed:
            return True
        self._closed = "the run is finished"
        timeout_s = self._settings.finish_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        self._close_lanes(min(deadline, time.monotonic() + 1.0))
        if self._is_owner:
            self._write("state", state)
        done = self.flush(max(0.0, deadline - time.monotonic()))
        self._say_goodbye(done, timeout_s)
        self._let_go()
        return done

    def _close_lanes(self, deadline: float) -> None:
        """Take every lane out of circulation; one that somebody still writes to is waited for a moment."""
        if self._lanes is None:
            return
        missing = len(list(self._lanes))
        while True:
            missing -= len(self._lanes.close())
            if missing <= 0 or time.monotonic() >= deadline:
                return
            time.sleep(0.001)
            self._lanes.find_lost(_LOG_CODE)

    def _say_goodbye(self, done: bool, timeout_s: float) -> None:
        status = self.status()
        if not done:
            waiting = status["accepted"] - status["durable"] - status["forgotten"] - status["damaged"]
            line = (
                f"{waiting:,} records are not on disk after {timeout_s:g} s; the agent goes on with it, and "
                f"`logclient recover` finishes the job if it cannot"
            )
        else:
            line = f"run {self.name} ({self.id}) is in {self.dir}"
        lost = {kind: status[kind] for kind in ("forgotten", "refused", "damaged", "left_out") if status[kind]}
        if lost:
            line += "; " + ", ".join(f"{kind.replace('_', ' ')}: {number:,}" for kind, number in lost.items())
        if not self._settings.quiet and self._is_owner:
            disk_answers = status["agent"].get("disk", "answers") == "answers"
            tell(line, files_too=disk_answers and done)

    def _let_go(self) -> None:
        from .start import forget

        if self._lanes is not None:
            self._last_counts = lane_counts(self._lanes.words)
            self._lanes.words[layout.STATE] = layout.STATE_FINISHED
        self._lanes = self._documents = self._encoder = None
        self._first, self._known = [], {}
        self._counters.detach()
        if self._live is not None:
            self._live.release()
            self._live = None
        forget(self)


_LOG_CODE = Run.log.__code__


def _lane_headers(words: memoryview) -> list[memoryview]:
    starts = [layout.LANE_HEADERS + i * layout.LANE_HEADER_WORDS for i in range(words[layout.FILE_LANES])]
    return [words[at : at + layout.LANE_HEADER_WORDS] for at in starts]


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - foreign __repr__
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."


def detach_in_child(runs: list[Run]) -> None:
    """At-fork hook: a call that the fork interrupted must not go on writing to the parent's lanes."""
    for run in runs:
        if run._lanes is not None:
            run._lanes.detach()


"""`Run`: what the user holds. The hot path is `Run.log`; what a process holds of the run is in `member.py`.

Runs in the training process, in whatever thread or handler calls it.

Invariants:

- `log` makes no system call but the clock, takes no lock and never waits; it swallows and counts its own failures
  and passes on the user's (a signal handler that raises inside our frames);
- a forked child that logs gets lanes of its own (`Member`); its exit never ends the run;
- every wait of `flush` and `finish` has a deadline and only sleeps and reads memory; both wake the agent first,
  by a byte into a named pipe on shared memory (`wake.py`).

Does not: start runs (`start.py`), touch the run folder (the agent does).
"""

from __future__ import annotations

import sys
import time

from . import foreign, lanes, layout, spawn
from .descriptors import Mapped
from .errors import BadArgument
from .facts import Facts
from .member import Member
from .ranked import MOST_RANKS, RankedRun
from .ring import Forked, read_counts
from .shapes import TooLargeRecord
from .stats import describe_agent, describe_server, lane_counts, missing_there
from .values import INT64, LeftOut, convert
from .wake import wake

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any

    from .config import Config
    from .meeting import Meeting
    from .ring import RingWriter
    from .shapes import Encoder
    from .values import Points

_NAP_S = 0.005
_ALERT_LEVELS = ("info", "warn", "error")
_END_STATES = ("finished", "failed", "preempted")
_MOST_ALERTS = 50


class Run(Member):
    """One run as this process sees it. Made by `logclient.init`."""

    def __init__(self, place: Meeting, config: Config, *, is_owner: bool, rank: int | None) -> None:
        super().__init__(place, config, is_owner=is_owner, rank=rank)
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

    def as_rank(self, rank: int) -> RankedRun:
        """This run for callers of another rank than the process has, such as threads with a device each.

        What its `log` is given carries `rank`; all else is the run's own. Raises `BadArgument` for what is no rank.
        """
        if type(rank) is not int or not 0 <= rank < MOST_RANKS:
            raise BadArgument(f"rank {_short(rank)} is no int from 0 on")
        return RankedRun(self, rank)

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

    def _log_other(
        self, lane: RingWriter, step: object, metrics: Mapping[Any, Any], rank: int | None = None
    ) -> None:
        """A record the fast path does not know: other types, a new key set, a step that is no plain int.

        `rank`, here and below: as a `RankedRun` has it, None for the process's own.
        """
        encoder: Encoder = self._encoder if rank is None else self._encoder.of_rank(rank)  # type: ignore[assignment, union-attr]
        if encoder.offer_again(self._next_order, step, metrics):
            return
        if type(metrics) is not dict:
            try:
                metrics = foreign.call(dict, metrics)
            except foreign.Failed:
                return self._refuse(
                    "metrics", f"metrics must be a dict of key to value, not {_short(metrics)}"
                )
        number = step if step.__class__ is int else self._step(step)
        if number is None or not -INT64 <= number < INT64:
            return self._refuse("step", f"step {_short(step)} is no integer of 64 bits")
        left_out = encoder.offer(lane, self._next_order, number, metrics)
        if left_out is not None:
            self._leave_out(left_out)

    def _log_again(
        self,
        lane: RingWriter,
        error: BaseException,
        step: int,
        metrics: Mapping[str, Any],
        rank: int | None = None,
    ) -> bool:
        """`log` was interrupted: log what it could not. False: the exception is the user's, to be raised again."""
        try:
            is_users = not self._sort_out(lane, error, step, metrics, rank, again=False)
            if is_users:
                foreign.forget_frames(error)
        except BaseException as late:  # the user's, too
            lane = error = None  # type: ignore[assignment]
            foreign.forget_frames(late)
            raise
        return not is_users

    def _sort_out(
        self,
        lane: RingWriter,
        error: BaseException,
        step: int,
        metrics: Mapping[str, Any],
        rank: int | None,
        again: bool,
    ) -> bool:
        if type(error) is Forked:
            why = self._after_fork()
            if why:
                self._refuse("fork", why)
            else:
                (self if rank is None else self.as_rank(rank)).log(step, metrics)
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
            self._log_other(lane, step, metrics, rank)
        except BaseException as second:
            if not self._sort_out(lane, second, step, metrics, rank, again=True):
                raise
        return True

    def _step(self, step: object) -> int | None:
        try:
            code, number = convert(step)
        except LeftOut:
            return None
        if code in "qbi":
            return int(number)
        if code in "dr" and number == number and abs(number) < INT64:
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

    def _count_refused(self, amount: int) -> None:
        """So many records were refused before this process had the run."""
        self._counters.refused.add(amount)

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

    def __repr__(self) -> str:
        status = self.status()
        counts = f"accepted {status['accepted']:,}, durable {status['durable']:,}"
        return (
            f"<logclient.Run {self.name!r} ({self.id}): {self._state or self._closed or 'running'}, {counts}>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from . import card

        try:
            return card.of_run(self)
        except Exception as error:
            if not foreign.is_own(error):
                raise
            return card.of_failure(self, error)

    def _known_values(self) -> dict[str, tuple[int, int, Any]]:
        """The last values of this process's lanes; of a finished run, as they were if somebody may have asked."""
        card = sys.modules.get(f"{__package__}.card")  # no import here: its disk may be frozen by now
        taken = self._lanes if self._mark[0] else None
        try:
            return self._last_values if taken is None or card is None else dict(card.last_values(taken))
        except Exception as error:
            if not foreign.is_own(error):
                raise
            return {}

    _last_values: dict[str, tuple[int, int, Any]] = {}  # noqa: RUF012 - replaced, never changed

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
    def _server(self) -> str:
        """The address given to `init`; the agent may know another one, from the configuration file."""
        return str(self._place.facts.get("server") or "")

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

    # ---- counting, waiting, ending --------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Counts of this process, health of the agent, and how shipping goes.

        `accepted`, `forgotten`, `damaged`, `durable` (stored past an fsync) and `acked` (committed at the collector)
        count records over this process's lanes, `refused` records that got no place, `left_out` single points; `agent`,
        `server` and `device` (how device values come, and how many records wait for some) are dicts.
        """
        self._counters.publish()  # an exception of a handler's may have struck in the middle of it
        taken = self._lanes if self._mark[0] else None
        counts = dict(self._last_counts) if taken is None else lane_counts(taken.words)
        durable = counts.pop("stored", 0)
        counts["durable"] = durable
        words, now_ns, stall_s = self._status, time.monotonic_ns(), self._settings.stall_s
        if words is not None and not isinstance(
            words.obj, Mapped
        ):  # finished: as it was when we heard of it last
            now_ns = max(words[layout.AGENT_SUPERVISOR_BEAT], words[layout.AGENT_WORKER_BEAT])
        agent = describe_agent(words, now_ns, stall_s)
        if agent["state"] == "gone" and words is not None and spawn.agent_lives(self._place):
            agent["state"] = "stalled"  # on a machine that is very busy, or stopped
        server = describe_server(words, self._server, missing_there(counts), now_ns, stall_s)
        return {
            **counts,
            "refused": self._counters.refused.value if self._mark[0] else 0,
            "left_out": self._counters.left_out.value if self._mark[0] else 0,
            "agent": agent,
            "server": server,
            "device": self._describe_device(),
            "notices": list(self._notices.lines),
        }

    def _describe_device(self) -> dict[str, Any]:
        self._settle_device_values()
        encoder = self._encoder if self._mark[0] else None
        if encoder is None or encoder.device is None:
            return dict(self._last_device)
        return encoder.device.describe()

    # of a run that is finished here
    _last_counts: dict[str, int] = dict.fromkeys(("accepted", "forgotten", "damaged", "stored", "acked"), 0)
    _last_device: dict[str, Any] = {"way": "", "trouble": "", "in_flight": 0}  # noqa: RUF012 - replaced

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything logged so far is on disk, at most `timeout_s`; True if it is.

        A server is not waited for: what is on disk gets there, by the agent or by `logclient sync`.
        """
        taken = self._lanes
        if taken is None or not self._mark[0]:
            return True  # nothing was logged by this process
        words = taken.words
        wanted = [(lane, lane[layout.SEQ]) for lane in _lane_headers(words)]
        documents = words[layout.DOCUMENTS_WRITTEN]
        words[layout.FLUSH_ASKED] += 1
        wake(self._place)
        deadline = time.monotonic() + (self._settings.flush_timeout_s if timeout_s is None else timeout_s)
        while True:
            self._settle_device_values()
            behind = any(read_counts(lane)[0] < seq for lane, seq in wanted)
            if not behind and words[layout.DOCUMENTS_DURABLE] >= documents:
                return True
            if time.monotonic() >= deadline or self._agent_is_gone() or self._folder.get("state") == "none":
                return False
            time.sleep(_NAP_S)

    def _settle_device_values(self) -> None:
        """Those that need a later call than the one that logged them."""
        try:
            if self._mark[0] and self._encoder is not None and self._encoder.device is not None:
                self._encoder.device.settle()
        except Exception as error:
            if not foreign.is_own(error):
                raise

    def _agent_is_gone(self) -> bool:
        """Nobody is there to wait for: silent for longer than a restart takes. Only reads memory."""
        state = describe_agent(self._status, time.monotonic_ns(), self._settings.stall_s)["state"]
        return state in ("gone", "gave up")

    def finish(self, timeout_s: float | None = None, *, state: str = "finished") -> bool:
        """End the run (in its owner), wait until it is on disk, at most `timeout_s`; True if it is.

        A server is waited for, too, within the same time and only while it takes records; what is missing there
        afterwards is said, and the agent goes on with it. `state` is finished, failed or preempted: a handler of
        SIGTERM knows what we cannot. In any other process of the run: give up this process's lanes. Afterwards `log`
        counts and drops.
        """
        if state not in _END_STATES:
            known = ", ".join(_END_STATES)
            self._notices.once("finish", f"finish(state={_short(state)}) is none of {known}; took finished")
            self._write_notices()
            state = "finished"
        return self._end({"state": state, "by": "finish"}, timeout_s)

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
        self._closed, self._state = "the run is finished", str(state.get("state", ""))
        if not self._mark[0]:  # a forked child that never logged
            self._leave_parent()
            self._mark[0] = 1
            return True
        from .ending import patience_s, say_goodbye, wait_for_server

        timeout_s = patience_s(state, self._settings.finish_timeout_s) if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        try:
            self._close_lanes(min(deadline, time.monotonic() + 1.0))
            if self._is_owner:
                self._write("state", state)
            left = deadline - time.monotonic()
            left = max(0.0, left - self._has_teller * min(0.3, 0.3 * left))
            waited_until = time.monotonic() + left
            self._is_durable = done = self.flush(left)
            is_home = done or self._folder.get("state") == "none"  # then there is no disk to wait for
            if is_home and self._lanes is not None and self._status is not None:
                wait_for_server(self._server, self._status, self._lanes.words, waited_until)
            if self._is_owner and not self._settings.quiet and (self._rank in (None, 0) or not done):
                say_goodbye(self, done, timeout_s, deadline)
        finally:  # Ctrl-C while it waits: the agent goes on with what is there
            self._let_go()
        return done

    _is_durable = True  # what `finish` answered
    _state = ""  # how the run ended

    def _close_lanes(self, deadline: float) -> None:
        """Take every lane out of circulation; one that somebody still writes to is waited for a moment."""
        taken = self._lanes
        while taken is not None and not taken.close() and time.monotonic() < deadline:
            time.sleep(0.001)
            taken.find_lost()

    def _let_go(self) -> None:
        from .start import forget

        self._last_values = self._known_values()
        self._last_device = self._describe_device()
        self._first, self._known = [], {}
        self._counters.publish()
        if self._lanes is not None:
            self._lanes.detach()  # a thread that is still inside log() is refused
            self._last_counts = lane_counts(self._lanes.words)
            self._lanes.words[layout.STATE] = layout.STATE_FINISHED
            wake(self._place)
        known = None if self._status is None else memoryview(bytes(self._status)).cast("Q")
        self._release_maps()
        if self._encoder is not None and self._encoder.device is not None:
            self._encoder.device.release()
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

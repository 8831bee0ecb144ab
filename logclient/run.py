"""`Run`: what the user holds. The hot path is `Run.log`; what a process holds of the run is in `member.py`.

Runs in the training process, in whatever thread or handler calls it.

Invariants:

- `log` makes no system call but the clock, takes no lock and never waits; it swallows and counts its own failures
  and passes on the user's (a signal handler that raises inside our frames);
- a forked child that logs gets lanes of its own (`Member`); its exit never ends the run;
- every wait of `flush` and `finish` has a deadline (`waiting.py`, `closing.py`).

Does not: start runs (`start.py`), touch the run folder (the agent does).
"""

from __future__ import annotations

import sys
import time

from .encode import about, lanes
from .encode.shapes import TooLargeRecord
from .encode.values import INT64, LeftOut, convert
from .errors import BadArgument
from .facts import Facts
from .guest import foreign
from .guest.descriptors import Mapped
from .ranked import MAX_RANKS, RankedRun
from .session.member import Member
from .shm.ring import Forked
from .shm.stats import describe_agent, describe_server, lane_counts, missing_there
from .spawn import agent as spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any, Literal

    from .config import Config
    from .encode.shapes import Encoder
    from .encode.values import Points
    from .shm.meeting import Meeting
    from .shm.ring import RingWriter
    from .typed import DeviceStatus, RunState, Status

_END_STATES = ("finished", "failed", "preempted")


class Run(Member):
    """One run as this process sees it. Made by `logclient.init`."""

    def __init__(self, place: Meeting, config: Config, *, is_owner: bool, rank: int | None) -> None:
        super().__init__(place, config, is_owner=is_owner, rank=rank)
        self._config: dict[str, Any] = {}
        self._summary: dict[str, Any] = {}
        from .session.closing import Outcome  # `init` has loaded it: not at import, which users feel

        self._outcome = Outcome()

    # ---- the hot path: log -> ring.offer ------------------------------------------------------------

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Copy the metrics into a lane and return; a full lane forgets its oldest records and counts them.

        `step` is any int of 64 bits, in any order; `metrics` maps keys to numbers, short texts or such dicts.
        Never raises (strict mode aside) and never waits.
        """
        try:
            lane = self._first.pop()
        except (IndexError, RecursionError) as error:
            try:
                lane = self._take_instead(error)  # type: ignore[assignment]
            except RecursionError:  # at its limit not even a call that counts is possible
                self._counters.refused.uncalled += 1
                return
            if lane is False:  # type: ignore[comparison-overlap]
                raise  # the user's
            if lane is None:
                return
        try:
            shape = self._known.get(tuple(metrics))
            if shape is None or step.__class__ is not int:
                self._log_other(lane, step, metrics)
            else:
                lane.offer(shape, self._next_order(), step, metrics.values())
        except BaseException as error:
            seq = lane.seq
            try:
                is_done = self._log_again(lane, error, step, metrics)
            except RecursionError:  # too near its limit to find out whose exception it was
                is_done = error.__class__ in foreign.OWN_KINDS
                if is_done and lane.seq == seq:
                    self._counters.refused.uncalled += 1
            if not is_done:
                raise  # the user's
        finally:
            lane.home.append(lane)
            lane = None  # type: ignore[assignment]  # a traceback that is kept keeps this frame: see Lanes.find_lost

    def as_rank(self, rank: int) -> RankedRun:
        """This run for callers of another rank than the process has, such as threads with a device each.

        What its `log` is given carries `rank`; all else is the run's own. For what is no rank it is the process's own
        rank, and said so once; in strict mode that is a `BadArgument`.
        """
        if type(rank) is int and 0 <= rank < MAX_RANKS:
            return RankedRun(self, rank)
        wrong = f"as_rank({_short(rank)}) takes an int from 0 on"
        if self._settings.strict:
            raise BadArgument(wrong)
        self._say_once("as_rank", f"{wrong}; took the rank of this process")
        return RankedRun(self, None)

    # ---- beside the hot path ------------------------------------------------------------------------

    def _take_instead(self, error: BaseException) -> RingWriter | Literal[False] | None:
        """Call `_take_other` where popping lane 0 raised this; False: it is the user's, to be raised again."""
        if not isinstance(error, IndexError) or not lanes.is_empty(error):
            return False
        return self._take_other()

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
        if again and type(error) is RecursionError:
            self._refuse("depth", "log() was called too near the interpreter's recursion limit")
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
        try:
            self._say_once(f"refused {cause}", f"a record was refused and counted: {why}")
        except RecursionError:  # it is counted; the next one says so
            return

    def _count_refused(self, amount: int) -> None:
        """So many records were refused before this process had the run."""
        self._counters.refused.add(amount)

    def _leave_out(self, points: Points) -> None:
        left_out = self._counters.left_out
        try:
            left_out.add(points.left_out)
        except RecursionError:
            left_out.uncalled += points.left_out
        try:
            new = False
            for key, reason in points.reasons:
                new |= self._notices.once(f"value {key}", f"{_short(key)} is left out and counted: {reason}")
            if new:
                self._write_notices()
        except RecursionError:  # they are counted; the next ones are named
            return
        if self._settings.strict:
            key, reason = points.reasons[0]
            raise BadArgument(f"{_short(key)} is left out: {reason}")

    def __repr__(self) -> str:
        status = self.status()
        counts = f"accepted {status['accepted']:,}, durable {status['durable']:,}"
        return (
            f"<logclient.Run {self.name!r} ({self.id}): "
            f"{self._outcome.state or self._closed or 'running'}, {counts}>"
        )

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook."""
        from .notebook import card

        try:
            return card.of_run(self)
        except Exception as error:
            if not foreign.is_own(error):
                raise
            return card.of_failure(self, error)

    def _known_values(self) -> dict[str, tuple[int, int, Any]]:
        """The last values of this process's lanes; of a finished run, as they were if somebody may have asked."""
        card = sys.modules.get(
            f"{__package__}.notebook.card"
        )  # no import here: its disk may be frozen by now
        taken = self._lanes if self._mark[0] else None
        try:
            return self._outcome.values if taken is None or card is None else dict(card.last_values(taken))
        except Exception as error:
            if not foreign.is_own(error):
                raise
            return {}

    def __reduce__(self) -> tuple[Any, ...]:
        from .session.start import attach

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
        return self._facts("config", self._config)

    @config.setter
    def config(self, config: Any) -> None:
        self.config.replace(config)

    @property
    def summary(self) -> Facts:
        """Results of the run; changes are stored."""
        return self._facts("summary", self._summary)

    @summary.setter
    def summary(self, summary: Any) -> None:
        self.summary.replace(summary)

    def _facts(self, kind: str, data: dict[str, Any]) -> Facts:
        """A new object each time: it refers to the run, and a cycle would keep that beyond its last handle."""
        return Facts(lambda changed: self._write(kind, changed), self._notices.once, data)

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(self._about.get("tags", ()))

    @tags.setter
    def tags(self, tags: Any) -> None:
        self._about["tags"], wrong = about.tags_of(tags)
        self._write("about", self._about)
        if wrong:
            self._say_once("tags", wrong)

    def alert(self, title: str, text: str = "", level: str = "info") -> None:
        """Store a message for whoever looks at the run; `level` is info, warn or error. The last 50 are kept."""
        alert, wrong = about.alert(title, text, level, time.time_ns())
        self._alerts.append(alert)
        del self._alerts[: -about.MAX_ALERTS]
        if wrong:
            self._notices.once("alert", wrong)
        self._write_notices()

    # ---- counting, waiting, ending --------------------------------------------------------------------

    def status(self) -> Status:
        """Counts of this process, health of the agent, and how shipping goes.

        `accepted`, `forgotten`, `damaged`, `durable` (stored past an fsync) and `acked` (committed at the collector)
        count records over this process's lanes, `refused` records that got no place, `left_out` single points; `agent`,
        `server` and `device` (how device values come, and how many records wait for some) are dicts. All keys are there
        in every state; their types are `logclient.Status` and its parts.
        """
        self._counters.publish()  # an exception of a handler's may have struck in the middle of it
        is_here = bool(self._mark[0])  # else a forked child that has logged nothing yet
        taken = self._lanes if is_here else None
        counts = dict(self._outcome.counts) if taken is None else lane_counts(taken.words)
        words, now_ns, stall_s = self._status, time.monotonic_ns(), self._settings.stall_s
        if words is not None and not isinstance(words.obj, Mapped):
            now_ns = self._outcome.left_ns  # the page is a copy, of when this process let go of the run
        agent = describe_agent(words, now_ns, stall_s)
        if agent["state"] == "gone" and words is not None and spawn.agent_lives(self._place):
            agent["state"] = "stalled"  # on a machine that is very busy, or stopped
        return {
            "state": self._describe_state(),
            "accepted": counts["accepted"],
            "forgotten": counts["forgotten"],
            "damaged": counts["damaged"],
            "durable": counts["stored"],
            "acked": counts["acked"],
            "refused": self._counters.refused.value if is_here else 0,
            "left_out": self._counters.left_out.value if is_here else 0,
            "agent": agent,
            "server": describe_server(words, self._server, missing_there(counts), now_ns, stall_s),
            "device": self._describe_device(),
            "notices": list(self._notices.lines),
        }

    def _describe_state(self) -> RunState:
        if self._closed:
            return "finished"
        if not self._mark[0]:
            return "forked"
        return "open" if self._lanes is not None else "no memory"

    def _describe_device(self) -> DeviceStatus:
        self._settle_device_values()
        encoder = self._encoder if self._mark[0] else None
        if encoder is None or encoder.device is None:
            return {**self._outcome.device}
        return encoder.device.describe()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything logged so far is on disk, at most `timeout_s`; True if it is.

        Where no agent lives, one is started. A server is not waited for: what is on disk gets there, by the agent or by
        `logclient sync`.
        """
        from .session import dropped, waiting

        dropped.let_go_durable()
        return waiting.until_durable(self, self._patience("flush", timeout_s))[0]

    def _patience(self, what: str, timeout_s: object) -> float:
        """The seconds that a user gave to `flush` or `finish`; the default, and said so, where that is no number."""
        from .session import waiting

        usual = self._settings.finish_timeout_s if what == "finish" else self._settings.flush_timeout_s
        number = usual if timeout_s is None else waiting.seconds(timeout_s)
        if number is None:
            self._say_once(
                what, f"{what}(timeout_s={_short(timeout_s)}) is no number of seconds; took {usual:g}"
            )
        return float(usual if number is None else number)

    def _say_once(self, cause: str, line: str) -> None:
        if self._notices.once(cause, line):
            self._write_notices()

    def _settle_device_values(self) -> None:
        """Finish device values that need a later call than the one that logged them."""
        try:
            if self._mark[0] and self._encoder is not None and self._encoder.device is not None:
                self._encoder.device.settle()
        except Exception as error:
            if not foreign.is_own(error):
                raise

    def finish(self, timeout_s: float | None = None, *, state: str = "finished") -> bool:
        """End the run (in its owner), wait until it is on disk, at most `timeout_s`; True if it is.

        A server is waited for, too, within the same time and only while it takes records; what is missing there
        afterwards is said, and the agent goes on with it. `state` is finished, failed or preempted: a handler of
        SIGTERM knows what we cannot. In any other process of the run: give up this process's lanes. Afterwards `log`
        counts and drops. Where no agent lives, one is started. Never raises.
        """
        if type(state) is not str or state not in _END_STATES:
            known = ", ".join(_END_STATES)
            self._say_once("finish state", f"finish(state={_short(state)}) is none of {known}; took finished")
            state = "finished"
        patience = None if timeout_s is None else self._patience("finish", timeout_s)
        return self._end({"state": state, "by": "finish"}, patience)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            from .session.ending import state_of

            self._end({**state_of(error), "by": "with"}, None)
        except KeyboardInterrupt:
            if not isinstance(error, KeyboardInterrupt):
                raise  # else it is pressed again, and the first one goes on

    def _end(self, state: dict[str, Any], timeout_s: float | None) -> bool:
        from .session import closing

        return closing.end(self, state, timeout_s)


def _short(value: object) -> str:
    """A few characters that show the value; only the type where its text would be foreign code, or a hidden wait."""
    if value is not None and type(value) not in (str, bytes, int, float, bool):
        return f"of type {type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")
    if type(value) is int and abs(value) >> 256:
        return f"of {value.bit_length()} bits"
    text = repr(value[:80]) if type(value) in (str, bytes) else repr(value)  # type: ignore[index]
    return text if len(text) <= 80 else text[:77] + "..."

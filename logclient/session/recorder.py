"""`Recorder`: what `log` needs of a session to store records of one rank, and all that it does beside the fast path.

Runs in the training process, in whatever thread or handler calls `log`.

Invariants:

- its lists and tables are the session's, which fills them anew when a fork, `finish` or another rank changes them;
- a schema's id is valid in the lane file of one process incarnation only, so `log` takes the table after the lane: a
  fork between the two makes the lane refuse, never a record that refers to another's schemas;
- a failure of ours is counted and said once; an exception of the user's is told to the caller, which raises it.

Does not: wait, make lanes (`session.py`).
"""

from __future__ import annotations

from ..encode import lanes
from ..encode.about import short
from ..encode.shapes import TooLargeRecord
from ..encode.values import INT64, LeftOut, convert
from ..errors import BadArgument
from ..guest import foreign
from ..shm.ring import Forked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Literal

    from ..encode.shapes import Encoder
    from ..encode.values import Points
    from ..shm.record import Shape
    from ..shm.ring import RingWriter
    from .session import Session

    Log = Callable[[int, Mapping[str, Any]], None]


class Recorder:
    """The lanes, schemas and record counter that `log` uses for one rank."""

    __slots__ = ("first", "known", "next_order", "rank", "saves", "session", "stop_word")

    first: list[RingWriter]  # lane 0, unless somebody writes to it
    known: dict[tuple[object, ...], Shape]  # schemas of records that the fast path takes, by their keys
    next_order: Callable[[], int]

    def __init__(self, session: Session, rank: int | None) -> None:
        """`rank`: None for the rank of the process."""
        self.session = session
        self.rank = rank
        self.first, self.known = [], {}
        self.stop_word = 0  # the request to stop that was found to have come true: see `stopping.py`
        self.saves: dict[int, object] = {}  # requests to save that were taken

    def fill(self, taken: lanes.Lanes | None, encoder: Encoder | None, next_order: Callable[[], int]) -> None:
        """Use these lanes from now on; None: no lanes."""
        if taken is None or encoder is None:
            self.first, self.known = [], {}
        else:
            self.known = (encoder if self.rank is None else encoder.of_rank(self.rank)).known
            self.next_order = next_order
            self.first = taken.first  # last: who takes a lane from it finds the table that belongs to it

    def take_instead(self, error: BaseException) -> RingWriter | Literal[False] | None:
        """Return another lane where popping lane 0 raised this; False: it is the user's, to be raised again."""
        if not isinstance(error, IndexError) or not lanes.is_empty(error):
            return False
        return self._take_other()

    def _take_other(self) -> RingWriter | None:
        """Another lane where lane 0 is in use; None, counted, where there is none."""
        try:
            why = ""
            if not self.session.mark[0]:
                why = self.session.after_fork()
            why = why or self.session.closed or self.session.trouble
            if not why and (taken := self.session.lanes) is not None:
                lane = taken.take_other()
                if lane is not None:
                    return lane
                why = "no free lane: more threads and handlers log at once than LOGCLIENT_LANES"
        except Exception as error:
            if not foreign.is_own(error):
                lane = None
                foreign.forget_frames(error)
                raise
            why = self.session.closed or f"a failure of logclient itself: {type(error).__name__}: {error}"
        self.session.refuse("closed" if self.session.closed else "no lane", why or "the run is finished")
        return None

    def log_other(self, lane: RingWriter, step: object, metrics: Mapping[Any, Any]) -> None:
        """Commit a record the fast path does not know: other types, a new key set, a step that is no plain int."""
        encoder: Encoder = self.session.encoder  # type: ignore[assignment]  # there is one where there is a lane
        if self.rank is not None:
            encoder = encoder.of_rank(self.rank)
        if encoder.offer_again(self.next_order, step, metrics):
            return
        if type(metrics) is not dict:
            try:
                metrics = foreign.call(dict, metrics)
            except foreign.Failed:
                return self.session.refuse(
                    "metrics", f"metrics must be a dict of key to value, not {short(metrics)}"
                )
        number = step if step.__class__ is int else self.step_of(step)
        if number is None or not -INT64 <= number < INT64:
            return self.session.refuse("step", f"step {short(step)} is no integer of 64 bits")
        left_out = encoder.offer(lane, self.next_order, number, metrics)
        if left_out is not None:
            self._leave_out(left_out)

    def log_again(
        self, log: Log, lane: RingWriter, error: BaseException, step: int, metrics: Mapping[str, Any]
    ) -> bool:
        """Log what an interrupted `log` could not; False: the exception is the user's, to be raised again."""
        try:
            is_users = not self._sort_out(log, lane, error, step, metrics, again=False)
            if is_users:
                foreign.forget_frames(error)
        except BaseException as late:  # the user's, too
            lane = error = None  # type: ignore[assignment]
            foreign.forget_frames(late)
            raise
        return not is_users

    def _sort_out(
        self,
        log: Log,
        lane: RingWriter,
        error: BaseException,
        step: int,
        metrics: Mapping[str, Any],
        again: bool,
    ) -> bool:
        if type(error) is Forked:
            why = self.session.after_fork()
            if why:
                self.session.refuse("fork", why)
            else:
                log(step, metrics)
            return True
        committed = lane.resync()
        if not foreign.is_own(error):
            return False
        if committed:
            return True
        if type(error) is TooLargeRecord:
            self.session.refuse("size", f"record too large: {error}")
            return True
        if again and type(error) is RecursionError:
            self.session.refuse("depth", "log() was called too near the interpreter's recursion limit")
            return True
        if again:
            self.session.refuse("failure", f"a failure of logclient itself: {type(error).__name__}: {error}")
            return True
        try:
            self.log_other(lane, step, metrics)
        except BaseException as second:
            if not self._sort_out(log, lane, second, step, metrics, again=True):
                raise
        return True

    def step_of(self, step: object) -> int | None:
        """Return a step that is given as some number; None for what is none."""
        try:
            code, number = convert(step)
        except LeftOut:
            return None
        if code in "qbi":
            return int(number)
        if code in "dr" and number == number and abs(number) < INT64:
            whole = int(number)
            if whole != number:
                cut = f"step {short(step)} is no integer; the part behind the point is cut"
                if self.session.notices.once("step", cut):
                    self.session.write_notices()
            return whole
        return None

    def _leave_out(self, points: Points) -> None:
        left_out = self.session.counters.left_out
        try:
            left_out.add(points.left_out)
        except RecursionError:
            left_out.uncalled += points.left_out
        try:
            new = False
            for key, reason in points.reasons:
                new |= self.session.notices.once(
                    f"value {key}", f"{short(key)} is left out and counted: {reason}"
                )
            if new:
                self.session.write_notices()
        except RecursionError:  # they are counted; the next ones are named
            return
        if self.session.settings.strict:
            key, reason = points.reasons[0]
            raise BadArgument(f"{short(key)} is left out: {reason}")

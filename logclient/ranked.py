"""`RankedRun`: a run whose records carry another rank than the process's own: that of a thread, of a device.

Runs in the training process, in whatever thread calls it. Lanes, counters and notices are the run's.

Invariants:

- a shape's id is worth something in the lane file of one process incarnation only, so the table of shapes is taken
  after the lane: a fork between the two makes the lane refuse, never a record that refers to another's shapes.
"""

from __future__ import annotations

from . import lanes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .null import NullRun
    from .run import Run

MOST_RANKS = 1 << 30


class RankedRun:
    """What `Run.as_rank` gives: `log` of that run, with this rank. Holds nothing else, and may be pickled."""

    __slots__ = ("_run", "rank")

    def __init__(self, run: Run, rank: int) -> None:
        self._run = run
        self.rank = rank

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """As `Run.log`."""
        run = self._run
        try:
            lane = run._first.pop()
        except IndexError as error:
            if not lanes.is_empty(error):
                raise  # the user's
            lane = run._take_other()  # type: ignore[assignment]
            if lane is None:
                return
        try:
            known = run._encoder.of_rank(self.rank).known  # type: ignore[union-attr]
            shape = known.get(tuple(metrics))
            if shape is None or step.__class__ is not int:
                run._log_other(lane, step, metrics, self.rank)
            else:
                lane.offer(shape, run._next_order(), step, metrics.values())
        except BaseException as error:
            if not run._log_again(lane, error, step, metrics, self.rank):
                raise  # the user's
        finally:
            lane.home.append(lane)
            lane = None  # type: ignore[assignment]  # as in `Run.log`

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self._run!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _as_rank, (self._run, self.rank)


def _as_rank(run: Run | NullRun, rank: int) -> RankedRun | NullRun:
    return run.as_rank(rank)

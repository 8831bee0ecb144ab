"""`RankedRun`: a run whose records carry another rank than the process's own: that of a thread, of a device.

Runs in the training process, in whatever thread calls it. Lanes, counters and notices are the run's.

Invariants:

- a shape's id is worth something in the lane file of one process incarnation only, so the table of shapes is taken
  after the lane: a fork between the two makes the lane refuse, never a record that refers to another's shapes.
"""

from __future__ import annotations

from .guest import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .null import NullRun
    from .run import Run

MAX_RANKS = 1 << 30


class RankedRun:
    """A run with another rank: `log` stores that rank with each record. Holds nothing else, and may be pickled."""

    __slots__ = ("_run", "rank")

    def __init__(self, run: Run, rank: int | None) -> None:
        """`rank`: None for the process's own."""
        self._run = run
        self.rank = rank

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log with this rank; see `Run.log`."""
        run = self._run
        try:
            lane = run._first.pop()
        except (IndexError, RecursionError) as error:
            try:
                lane = run._take_instead(error)  # type: ignore[assignment]
            except RecursionError:  # as in `Run.log`
                run._counters.refused.uncalled += 1
                return
            if lane is False:  # type: ignore[comparison-overlap]
                raise  # the user's
            if lane is None:
                return
        try:
            rank = self.rank
            encoder = run._encoder
            known = (encoder if rank is None else encoder.of_rank(rank)).known  # type: ignore[union-attr]
            shape = known.get(tuple(metrics))
            if shape is None or step.__class__ is not int:
                run._log_other(lane, step, metrics, self.rank)
            else:
                lane.offer(shape, run._next_order(), step, metrics.values())
        except BaseException as error:
            seq = lane.seq
            try:
                is_done = run._log_again(lane, error, step, metrics, self.rank)
            except RecursionError:  # as in `Run.log`
                is_done = error.__class__ in foreign.OWN_KINDS
                if is_done and lane.seq == seq:
                    run._counters.refused.uncalled += 1
            if not is_done:
                raise  # the user's
        finally:
            lane.home.append(lane)
            lane = None  # type: ignore[assignment]  # as in `Run.log`

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self._run!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _as_rank, (self._run, self.rank)


def _as_rank(run: Run | NullRun, rank: int | None) -> RankedRun | NullRun:
    return run.as_rank(rank) if rank is not None or not hasattr(run, "_place") else RankedRun(run, None)  # type: ignore[arg-type]

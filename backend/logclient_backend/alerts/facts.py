"""`Facts`: the state of a run at one look. An observer fills it for its node, a collector for a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank: whether its process lives, else how it ended."""

    is_alive: bool
    is_clean: bool = False  # it called `finish`, or ended with exit code 0
    text: str = ""  # how it ended: "signal SIGKILL", "exit code 1"


@dataclass(frozen=True, slots=True)
class UserAlert:
    """One call of `Run.alert`."""

    process: str
    number: int
    title: str
    text: str
    level: str
    rank: int | None
    missing: int = 0  # alerts of this process before it that are not stored any more


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of one look; what is left at its default is not known, and no rule judges it."""

    now: float  # seconds of a clock that nobody sets
    state: str = ""  # of the run: running, finished, failed, ...
    cause: str = ""  # why, for people
    ranks: Mapping[int, RankState] = field(default_factory=dict)
    stalled: str | None = None  # the verdict as a sentence; empty: the run moves
    stalled_rank: int | None = None
    # by rank: its last step, and the seconds that it spent in sections outside collectives up to there
    work: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    disk_free: float | None = None  # share of the run folder's disk
    disk_free_bytes: int | None = None  # of it, too; None: the share alone counts
    disk: str = ""  # which disk, for people
    budgets: Mapping[str, float] = field(default_factory=dict)  # name: share that is used
    dropped: int | None = None  # records forgotten, refused or damaged so far
    alerts: Sequence[UserAlert] = ()  # new ones
    streams: Set[str] | None = None  # those that may still bring records

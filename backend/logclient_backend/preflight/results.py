"""`Results`: all that the stages of a preflight found out. `Finding`: one thing that is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .coordinator import Coordinator, Job
from .place import Place

if TYPE_CHECKING:
    from .rank import Plan


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `where`: host:port, interface, device or path."""

    code: str
    check: str
    ranks: tuple[int, ...]
    where: str
    text: str


@dataclass
class Results:
    """All that the stages have found out."""

    place: Place
    plan: Plan
    folders: list[tuple[int, Job]] = field(default_factory=list)
    devices: dict[int, Job] = field(default_factory=dict)
    pairs: dict[int, Job] = field(default_factory=dict)
    collectives: dict[str, dict[int, Job]] = field(default_factory=dict)
    collective_pairs: dict[str, dict[int, Job]] = field(default_factory=dict)
    measured: dict[int, dict[int, dict[str, Any]]] = field(default_factory=dict)  # by turn and rank
    no_import: set[int] = field(
        default_factory=set
    )  # ranks that still imported torch when the others went on
    late: dict[int, str] = field(
        default_factory=dict
    )  # ranks that missed a deadline: what they did not get to
    behind: dict[str, int] = field(
        default_factory=dict
    )  # by backend: the only rank that failed, or kept the others waiting
    not_tried: dict[str, str] = field(default_factory=dict)
    no_nccl: str = ""
    took_s: float = 0.0  # since the last rank has imported torch

    def note_late(
        self, made: Coordinator, jobs: Mapping[int, Job], word: str, what: str, *, value: object = None
    ) -> None:
        """Note the ranks that live and have neither reported that nor failed."""
        if made.is_ending:
            return  # nobody had the time
        for rank, job in jobs.items():
            if made.members[rank].is_living and not job.error and job.newest(word, value) is None:
                self.late.setdefault(rank, what)

    @property
    def has_broken_pairs(self) -> bool:
        return any(each["error"] for _, each in self.tried())

    def tried(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each rank with each of its connections."""
        for rank, job in self.pairs.items():
            sent = job.newest("pairs")
            for each in sent["pairs"] if sent is not None else ():
                yield rank, each


def names(ranks: Iterable[int]) -> str:
    """Return `rank 5`, or `ranks 0 to 3, 7`."""
    ordered = sorted(set(ranks))
    spans: list[list[int]] = []
    for rank in ordered:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    words = [
        str(low) if low == high else f"{low} to {high}" if high > low + 1 else f"{low}, {high}"
        for low, high in spans
    ]
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {', '.join(words)}"

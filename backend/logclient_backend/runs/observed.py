"""What the observers of a run's nodes have found: does it get on, and when did it not?

Pure. Parsed from the nodes' documents (`agent/drain/node_document.py`) and from `why.json` of a live run, which are not
believed to have the types they should.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

KINDS = ("ok", "quiet", "stalled")
_MAX_STALLS = 20  # of a node
_MAX_TEXT = 2000


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of a run on one node, or on the one that is worst."""

    kind: str
    verdict: str  # empty: it is ok, or not known yet
    text: str
    since_ns: int
    rank: int | None = None
    step: int | None = None
    node: str = ""
    host: str = ""

    @property
    def is_ok(self) -> bool:
        """Does it get on?"""
        return self.kind == KINDS[0]

    @property
    def line(self) -> str:
        """For people: "stalled: user code: rank 3 waits in ..."."""
        return ": ".join(filter(None, (self.kind, self.verdict, self.text)))

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StallSpan:
    """A time in which a run was stalled on one node; `end_ns` 0: nobody saw its end."""

    begin_ns: int
    end_ns: int
    verdict: str
    text: str
    rank: int | None = None
    step: int | None = None
    host: str = ""


def observation_of(
    value: Any, when: Callable[[Any, Any], int], *, node: str = "", host: str = ""
) -> Observation | None:
    """Return the state in that JSON; None where there is none. `when`: a time from both clocks' values."""
    if not isinstance(value, dict) or value.get("kind") not in KINDS:
        return None
    return Observation(
        value["kind"],
        _text(value.get("verdict")),
        _text(value.get("text")),
        when(value.get("since_ns"), value.get("since_mono_ns")),
        _whole(value.get("rank")),
        _whole(value.get("step")),
        node,
        host,
    )


def stalls_of(value: Any, when: Callable[[Any, Any], int], *, host: str = "") -> list[StallSpan]:
    """Return the stalls in that JSON, the oldest first."""
    some = value[-_MAX_STALLS:] if isinstance(value, list) else []
    return [
        StallSpan(
            when(each.get("begin_ns"), each.get("begin_mono_ns")),
            when(each.get("end_ns"), each.get("end_mono_ns")) if each.get("end_ns") is not None else 0,
            _text(each.get("verdict")),
            _text(each.get("text")),
            _whole(each.get("rank")),
            _whole(each.get("step")),
            host,
        )
        for each in some
        if isinstance(each, dict)
    ]


def worst(some: Iterable[Observation]) -> Observation | None:
    """Return the one to be shown for all of them: the worst, of equal ones the oldest."""
    return min(some, key=lambda each: (-KINDS.index(each.kind), each.since_ns), default=None)


def _text(value: Any) -> str:
    return value[:_MAX_TEXT] if isinstance(value, str) else ""


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None

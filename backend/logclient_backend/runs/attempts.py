"""Attempts of a run: which processes belong together, and which attempt came after which.

Pure. An attempt starts with an owner that came when all owners before it were over, or whose launcher counts more
restarts than theirs.

Invariants:

- within a node, times decide that come from its monotonic clock (`node.py`): a wall clock that was set changes nothing;
- between nodes, an owner came after those that lay in the run folder when it came (`agent/drain/other_nodes.py`), and
  they were over by then if their documents said so, or never said anything again;
- where neither of two nodes found the other, the clocks of their hosts decide, and `Attempts.by_time` says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from .node import Node, Process, table, text, whole

if TYPE_CHECKING:
    from .view import RunView

_OVER, _BESIDE = "over", "beside"


@dataclass(slots=True)
class Attempt:
    """One stretch of a run's life: from the start of its owner to the end of the last process that is part of it."""

    number: int  # from 1
    start_ns: int
    end_ns: int  # as far as is known; of a running one: when it was last heard
    processes: list[str] = field(default_factory=list)
    is_running: bool = False


class Attempts:
    """The attempts of a run, oldest first, in `all`."""

    def __init__(self, run: RunView, heard: dict[str, int], now_ns: int) -> None:
        self.all: list[Attempt] = []
        self.by_time: list[
            int
        ] = []  # numbers of attempts that only a host's clock puts behind the one before
        self._run = run
        self._heard = heard
        self._now_ns = now_ns
        self._nodes: dict[str, Node] = {node.id: node for node in run.nodes}
        in_time = sorted(run.processes.values(), key=lambda process: (process.created_ns, process.id))
        owners = [process for process in in_time if process.is_owner] or in_time[:1]
        newest = ("", 0)
        for owner in self._in_order(owners):
            newest = self._take_owner(owner, newest)
        self._take_others(in_time)
        for attempt, after in pairwise(self.all):
            if after.start_ns >= attempt.start_ns:
                attempt.end_ns = min(attempt.end_ns, after.start_ns)

    # ---- owners ---------------------------------------------------------------------------------------------

    def _in_order(self, owners: list[Process]) -> list[Process]:
        """By what they found of each other when they came, else by time, in which they are given."""
        if not any(owner.found for owner in owners):
            return owners
        left, ordered = list(owners), list[Process]()
        while left:
            first = next(
                (
                    each
                    for each in left
                    if not any(self._met(each, other) for other in left if other is not each)
                ),
                left[0],
            )
            left.remove(first)
            ordered.append(first)
        return ordered

    def _met(self, later: Process, earlier: Process) -> str:
        """Return how `later` found the node of `earlier` when it came: over or beside it; empty: they never met."""
        told = later.found.get(earlier.node)
        if told is None or later.node == earlier.node or later.node in earlier.found:
            return ""
        revision, was_over = told
        return _OVER if was_over or self._nodes[earlier.node].revision <= revision else _BESIDE

    def _take_owner(self, owner: Process, newest: tuple[str, int]) -> tuple[str, int]:
        """Put it into the last attempt, or into a new one; the newest launch that is known then."""
        end = self._end_of(owner)
        is_running = not self._run.states[owner.id].is_over
        last = self.all[-1] if self.all else None
        launch = _launch(owner)
        is_next = launch[1] > newest[1]
        is_late, is_sure = self._comes_after(owner, last)
        if last is None or is_next or (is_late and not (launch[0] and launch == newest)):
            if last is not None and not is_next:
                last.is_running = False
                if not is_sure:
                    self.by_time.append(last.number + 1)
            self.all.append(Attempt(len(self.all) + 1, owner.created_ns, end, [owner.id], is_running))
            return launch
        last.start_ns = min(last.start_ns, owner.created_ns)
        last.end_ns = max(last.end_ns, end)
        last.processes.append(owner.id)
        last.is_running |= is_running
        return newest

    def _comes_after(self, owner: Process, last: Attempt | None) -> tuple[bool, bool]:
        """Were all owners of the last attempt over when this one came; and is that sure without two hosts' clocks?"""
        if last is None:
            return True, True
        processes = self._run.processes
        met = {id: self._met(owner, processes[id]) for id in last.processes}
        if _BESIDE in met.values():
            return False, True
        others = [processes[id] for id, how in met.items() if not how]
        if not others:
            return True, True
        if owner.created_ns < last.end_ns and not last.is_running:
            last.end_ns = min(last.end_ns, self._known_alive(last))
        if len(others) < len(met):
            end_ns = max(map(self._end_of, others))
            is_running = any(not self._run.states[other.id].is_over for other in others)
        else:
            end_ns, is_running = last.end_ns, last.is_running
        is_sure = all(other.node == owner.node for other in others)
        return owner.created_ns >= end_ns and not is_running, is_sure

    def _end_of(self, process: Process) -> int:
        """Return when a process ended, or was last heard."""
        state = self._run.states[process.id]
        if not state.is_over and process.node in self._run.found.live:
            return self._now_ns
        if state.is_over and state.name != "lost" and state.since_ns:
            return state.since_ns
        written = max((document.time for document in process.documents.values()), default=0)
        end = process.end.time if process.end is not None else 0
        return max(process.created_ns, written, end or self._heard[process.id])

    def _known_alive(self, attempt: Attempt) -> int:
        """Return the last time at which owners were certainly alive: of one whose exit nobody saw, little is known."""
        known = []
        for id in attempt.processes:
            process = self._run.processes[id]
            if self._run.states[id].name != "lost":
                return attempt.end_ns
            written = max((document.time for document in process.documents.values()), default=0)
            known += [process.created_ns, written, self._run.found.last_record_ns(process)]
        return max(known, default=attempt.end_ns)

    # ---- the other processes -----------------------------------------------------------------------------------

    def _take_others(self, in_time: list[Process]) -> None:
        """Put each into the last attempt that had begun by then, if one of its own node had: into that."""
        taken = {id for attempt in self.all for id in attempt.processes}
        nodes = [{self._run.processes[id].node for id in attempt.processes} for attempt in self.all]
        starts = [attempt.start_ns for attempt in self.all]
        for process in in_time:
            if process.id in taken:
                continue
            begun = [at for at, start in enumerate(starts) if start <= process.created_ns]
            own = [at for at in range(len(starts)) if process.node in nodes[at]]
            candidates = [at for at in own if at in begun] or own[:1] or begun
            self.all[max(candidates, default=0)].processes.append(process.id)


def _launch(process: Process) -> tuple[str, int]:
    """Return the launch that a process was part of (empty: not sure), and how often it had restarted its ranks."""
    launch = table(process.data("start").get("launch"))
    return text(launch.get("id")), whole(launch.get("attempt"))

"""From two looks at each process to one verdict.

A process is *waiting* where both looks find the same stack and its main thread slept between them, or spun outside of
user code; *busy* where the stack is the same and it woke or used CPU; *moving* where the stack changed. Of processes
that wait for their peers in a collective, none is to blame: the verdict is that of the one that is elsewhere, and
where all are in collectives, that of the smallest group.

A process whose last record is younger than the limit that its own rhythm gives (`ranks.py`) is not stuck, whatever
the looks find. Without records (`--pid`) the looks alone decide, and a busy process is one of which nobody can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from . import where
from .groups import normal
from .process import Sample
from .stacks import Frame, Stacks

STOPPED, GONE, FILE_SYSTEM, STRAGGLER = "stopped", "process gone", "file system", "straggler"
QUIET, NOT_STUCK, CANNOT_TELL = "quiet", "not stuck", "cannot tell"
STUCK = (
    *(GONE, STOPPED, FILE_SYSTEM, where.LOGGER, where.DATA_LOADING),
    *(where.ACCELERATOR, where.USER_CODE, where.COLLECTIVE),
)  # the order in which they are looked for: what explains the others first

_IDLE = 0.02  # of a core


@dataclass(slots=True)
class Look:
    """One process at one time."""

    sample: Sample | None
    stacks: Stacks


@dataclass(slots=True)
class Observed:
    """One process: two looks, and what is known of its records."""

    pid: int
    first: Look
    second: Look
    apart_s: float
    rank: int | None = None
    step: int | None = None
    age_s: float | None = None  # since its last record; None: it logs none
    limit_s: float | None = None  # from which on that is long
    end: str = ""  # how it ended, where its agent saw that
    phase: str = ""  # a sentence, where the program declared that its next record may take long
    children: list[Observed] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"process {self.pid}" if self.rank is None else f"rank {self.rank}"

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The main thread's, innermost first; empty where they could not be read."""
        main = self.second.stacks.main
        return main.frames if main is not None else ()

    @property
    def cpu_share(self) -> float:
        """CPU time between the looks, in cores."""
        first, second = self.first.sample, self.second.sample
        if first is None or second is None or self.apart_s <= 0:
            return 0.0
        return max(0.0, second.cpu_s - first.cpu_s) / self.apart_s

    @property
    def is_asleep(self) -> bool:
        """Did its main thread sleep between the looks? A wake a second is allowed: who polls waits, too."""
        first, second = self.first.sample, self.second.sample
        return first is not None and second is not None and second.wakes - first.wakes <= self.apart_s

    @property
    def is_late(self) -> bool:
        """Is its last record older than its rhythm allows, or is that not known?"""
        if self.phase:
            return False
        return self.age_s is None or self.limit_s is None or self.age_s > self.limit_s


@dataclass(frozen=True, slots=True)
class State:
    """One process's own state, and a sentence about it."""

    kind: str
    text: str
    is_sure: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on all of them."""

    kind: str
    text: str
    pids: tuple[int, ...] = ()  # of those that are to blame, or odd

    @property
    def is_stuck(self) -> bool:
        return self.kind in STUCK


def state_of(observed: Observed) -> State:
    """Return the state of one process by itself."""
    first, second = observed.first.sample, observed.second.sample
    if (
        second is None
        or second.state in "ZX"
        or (first is not None and first.start_ticks != second.start_ticks)
    ):
        return State(GONE, observed.end or "has ended")
    if second.state in "Tt":
        by = "by a tracer or debugger" if second.state == "t" else "by a signal (SIGSTOP, Ctrl-Z)"
        return State(STOPPED, f"is stopped {by}")
    if observed.phase:
        return State(NOT_STUCK, observed.phase)
    if first is not None and first.state == second.state == "D":
        channel = f" in {second.wait_channel}" if second.wait_channel else ""
        return State(
            FILE_SYSTEM,
            f"waits for a disk or network file system{channel}, and cannot be interrupted{_at(observed)}",
        )
    if not observed.frames:
        return State(CANNOT_TELL, observed.second.stacks.reason or "has no stack", is_sure=False)
    part = where.part_of(observed.frames)
    if part == where.COMPILING:
        return State(NOT_STUCK, f"compiles{_at(observed)}")
    before = observed.first.stacks.main
    is_same = before is not None and normal(before.frames) == normal(observed.frames)
    # who waits for peers or a device may spin
    if is_same and observed.is_asleep and (observed.cpu_share <= _IDLE or part != where.USER_CODE):
        return State(part, f"waits in {part}{_at(observed)}")
    if is_same:
        kind = CANNOT_TELL if observed.age_s is None else part
        verb = "computes" if observed.cpu_share > _IDLE else "wakes up again and again"
        return State(kind, f"{verb} in the same function{_at(observed)}", is_sure=False)
    return State(NOT_STUCK, f"moves{_at(observed)}")


def judge(all_: Sequence[Observed]) -> Verdict:
    """Return the verdict on the processes of one job."""
    if not all_:
        return Verdict(CANNOT_TELL, "there is no process to look at")
    states = {each.pid: state_of(each) for each in all_}
    waiting = [each for each in all_ if states[each.pid].kind == where.COLLECTIVE]
    others = [each for each in all_ if states[each.pid].kind != where.COLLECTIVE]
    if not any(each.is_late for each in all_):
        declared = [each for each in all_ if each.phase]
        if declared:
            return Verdict(NOT_STUCK, f"{_names(declared)} {declared[0].phase}")
        text = "every rank logged a record a short while ago"
        if 0 < len(others) <= len(waiting):  # who is slow, without being stuck
            return Verdict(NOT_STUCK, f"{text}; {_sentence(others, states, waiting)}", _pids(others))
        return Verdict(NOT_STUCK, text)
    for kind in STUCK:
        blamed = [each for each in others if states[each.pid].kind == kind]
        if blamed:
            return _verdict(kind, blamed, states, waiting)
    if waiting and others:
        moving = [each for each in others if states[each.pid].kind == NOT_STUCK]
        if moving and all(each.phase for each in moving):
            return Verdict(NOT_STUCK, _sentence(moving, states, waiting))
        if moving:
            return Verdict(STRAGGLER, _sentence(moving, states, waiting), _pids(moving))
        return Verdict(CANNOT_TELL, _sentence(others, states, waiting), _pids(others))
    if waiting:
        return _collective(waiting, states)
    if any(states[each.pid].kind == CANNOT_TELL for each in all_):
        unsure = [each for each in all_ if states[each.pid].kind == CANNOT_TELL]
        return Verdict(CANNOT_TELL, _sentence(unsure, states, []), _pids(unsure))
    kind = QUIET if any(each.age_s is not None for each in all_) else NOT_STUCK
    return Verdict(kind, _sentence(list(all_), states, []))


def _verdict(kind: str, blamed: list[Observed], states: dict[int, State], waiting: list[Observed]) -> Verdict:
    text = _sentence(blamed, states, waiting)
    if kind == where.DATA_LOADING:
        for each in blamed:
            for child in each.children:
                state = state_of(child)
                if state.kind in STUCK and state.kind != where.DATA_LOADING:
                    text += f"; its data-loader child {child.pid} {state.text}"
    return Verdict(kind, text, _pids(blamed))


def _collective(waiting: list[Observed], states: dict[int, State]) -> Verdict:
    """All are in collectives: the smallest group is odd, or who is behind in steps; else nobody is."""
    groups: dict[tuple[tuple[str, str], ...], list[Observed]] = {}
    for each in waiting:
        groups.setdefault(normal(each.frames), []).append(each)
    odd: list[Observed] = []
    if len(groups) > 1:
        odd = min(groups.values(), key=len)
    else:
        steps = [each.step for each in waiting if each.step is not None]
        if steps and min(steps) < max(steps):
            odd = [each for each in waiting if each.step == min(steps)]
    if len(groups) == 2 and len({len(group) for group in groups.values()}) == 1:
        one, other = groups.values()  # as many here as there: nobody is odd
        text = f"{_names(one)} wait in one collective{_at(one[0])}, {_names(other)} in another one{_at(other[0])}"
        return Verdict(where.COLLECTIVE, text)
    if not odd or len(odd) == len(waiting):
        return Verdict(
            where.COLLECTIVE, f"{_names(waiting)} wait in the same collective, all of them{_at(waiting[0])}"
        )
    rest = [each for each in waiting if each not in odd]
    return Verdict(where.COLLECTIVE, _sentence(odd, states, rest), _pids(odd))


def _sentence(blamed: list[Observed], states: dict[int, State], waiting: list[Observed]) -> str:
    text = f"{_names(blamed)} {states[blamed[0].pid].text}"
    if blamed[0].age_s is not None:
        step = "" if blamed[0].step is None else f" (step {blamed[0].step})"
        text += f"; last record {blamed[0].age_s:.0f} s ago{step}"
    waits = "waits for its peers" if len(waiting) == 1 else "wait for their peers"
    return f"{text}, while {_names(waiting)} {waits}" if waiting else text


def _names(some: Sequence[Observed], most: int = 4) -> str:
    names = [each.name for each in some[:most]]
    return ", ".join(names) + (f" and {len(some) - most} more" if len(some) > most else "")


def _pids(some: Sequence[Observed]) -> tuple[int, ...]:
    return tuple(each.pid for each in some)


def _at(observed: Observed) -> str:
    frame = where.own_frame(observed.frames)
    return "" if frame is None else f" at {frame.function} ({frame.file}:{frame.line})"

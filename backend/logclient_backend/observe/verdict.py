"""From two looks at each process to one verdict.

A process is *waiting* where both looks find the same stack and its main thread slept between them, or spun outside of
user code; *busy* where the stack is the same and it woke or used CPU; *moving* where the stack changed. Of processes
that wait for their peers in a collective, none is to blame: the verdict is that of the one that is elsewhere, and
where all are in collectives, that of the smallest group. Many waits for peers show no collective, since the stack ends
in C code (`loss.backward()`, `loss.item()`): so where more than half of all stand in one line of user code, they count
as waiting for the others. A collective on GPUs is waited for by a wait for the device: so who waits for a device while
others are elsewhere counts as waiting for those.

A process whose last record is younger than the limit that its own rhythm gives (`ranks.py`) is not stuck, whatever
the looks find. Without records (`--pid`) the looks alone decide, and a busy process is one of which nobody can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..runs.sections import Sections
from . import stragglers, where
from .groups import normal
from .mounts import Awaited
from .process import Blocked, Sample
from .recorded import ThreadCalls
from .stacks import Frame, Stacks, Thread

STOPPED, GONE, FILE_SYSTEM, STRAGGLER = "stopped", "process gone", "file system", "straggler"
QUIET, NOT_STUCK, CANNOT_TELL = "quiet", "not stuck", "cannot tell"
STUCK = (
    *(GONE, STOPPED, FILE_SYSTEM, where.LOGGER, where.DATA_LOADING),
    *(where.ACCELERATOR, where.USER_CODE, where.COLLECTIVE),
)  # the order in which they are looked for: what explains the others first

_IDLE = 0.02  # of a core
_GIL_WAKES = 20  # a second; who waits for the GIL wakes up every 5 ms to ask for it
_IO_WAKES = 20  # a second, of a process that is in state D at both looks: above it, its I/O goes on
Key = tuple[str, int]


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
    node: str = ""  # its host, where the processes of several are looked at
    step: int | None = None
    age_s: float | None = None  # since its last record; None: it logs none
    limit_s: float | None = None  # from which on that is long
    end: str = ""  # how it ended, where its agent saw that
    ended_s: float | None = None  # since then
    is_over: bool = False  # it gave up its lanes by `finish` or its exit hook, and lives on
    phase: str = ""  # a sentence, where the program declared that its next record may take long
    sections: Sections | None = None  # as the second look found them
    work_s: float | None = None  # time in sections outside collectives between the looks
    calls: tuple[ThreadCalls, ...] = ()  # the newest of each thread, where it records them
    ptracer: str = ""  # a sentence, where it allows its stacks to an agent that is gone
    children: list[Observed] = field(default_factory=list)
    shows_age: bool = True  # in sentences; one that is kept for long shows the step alone

    @property
    def name(self) -> str:
        name = f"process {self.pid}" if self.rank is None else f"rank {self.rank}"
        return f"{name} on {self.node}" if self.node else name

    @property
    def key(self) -> Key:
        """Node and PID: a PID alone may be on two nodes."""
        return self.node, self.pid

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
        return self.first.sample is not None and self.second.sample is not None and self.wakes <= self.apart_s

    @property
    def wakes(self) -> int:
        """Number of times that its main thread slept and woke between the looks."""
        first, second = self.first.sample, self.second.sample
        return 0 if first is None or second is None else second.wakes - first.wakes

    @property
    def is_same(self) -> bool:
        """Did both looks find the same stack?"""
        before = self.first.stacks.main
        return before is not None and normal(before.frames) == normal(self.frames)

    @property
    def blocked(self) -> Blocked | None:
        """A thread beside the main thread that was in one wait in state D from one look to the other."""
        first, second = self.first.sample, self.second.sample
        if first is None or second is None:
            return None
        before = {(each.thread, each.wakes) for each in first.blocked}
        return next((each for each in second.blocked if (each.thread, each.wakes) in before), None)

    @property
    def gil_holder(self) -> Thread | None:
        """Another thread, for whose GIL the main thread waits: it held it in the same functions at both looks."""
        first, second = self.first.stacks.holder, self.second.stacks.holder
        if first is None or second is None or not first.id == second.id != self.pid:
            return None
        is_held = self.is_same and normal(first.frames) == normal(second.frames)
        return second if is_held and self.wakes > _GIL_WAKES * self.apart_s else None

    @property
    def is_late(self) -> bool:
        """Is its last record older than its rhythm allows, or is that not known?"""
        if self.phase or self.is_over:
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
    blamed: tuple[Key, ...] = ()  # those that are to blame, or odd

    @property
    def pids(self) -> tuple[int, ...]:
        """The PIDs of those that are to blame, or odd."""
        return tuple(pid for _, pid in self.blamed)

    @property
    def is_stuck(self) -> bool:
        return self.kind in STUCK


def is_gone(observed: Observed) -> bool:
    """Has the process ended, or got another one its PID?"""
    first, second = observed.first.sample, observed.second.sample
    if second is None or second.state in "ZX":
        return True
    return first is not None and first.start_ticks != second.start_ticks


def state_of(observed: Observed) -> State:
    """Return the state of one process by itself."""
    first, second = observed.first.sample, observed.second.sample
    if second is None or is_gone(observed):
        return State(GONE, observed.end or "has ended")
    if second.state in "Tt":
        by = "by a tracer or debugger" if second.state == "t" else "by a signal (SIGSTOP, Ctrl-Z)"
        return State(STOPPED, f"is stopped {by}")
    if observed.phase:
        return State(NOT_STUCK, observed.phase)
    if first is not None and first.state == second.state == "D":
        return _uninterruptible(observed, second)
    if not observed.frames:
        reason = observed.second.stacks.reason or "has no stack"
        return State(CANNOT_TELL, f"{_in_kernel(observed, second)}; no stack: {reason}", is_sure=False)
    part = where.part_of(observed.frames)
    if part == where.COMPILING:
        return State(NOT_STUCK, f"compiles{_at(observed.frames)}")
    if (holder := observed.gil_holder) is not None:
        name = f"{holder.name!r}" if holder.name else str(holder.id)
        text = f"waits for the GIL, which thread {name} holds{_at(holder.frames)}"
        return State(where.part_of(holder.frames), text, is_sure=observed.cpu_share <= _IDLE)
    at = _at(observed.frames)
    # who waits for peers or a device may spin
    if observed.is_same and observed.is_asleep and (observed.cpu_share <= _IDLE or part != where.USER_CODE):
        if part != where.COLLECTIVE and (thread := observed.blocked) is not None:
            channel = f" in {thread.wait_channel}" if thread.wait_channel else ""
            text = (
                f"waits{at} while its thread {thread.thread} waits for a disk or network file system{channel}"
            )
            return State(FILE_SYSTEM, text + _most_likely(thread.awaited))
        holds = observed.second.stacks.holder
        gil = " and holds the GIL" if holds is not None and holds.id == observed.pid else ""
        return State(part, f"waits in {part}{at}{gil}")
    if observed.is_same:
        kind = CANNOT_TELL if observed.age_s is None else part
        verb = "computes" if observed.cpu_share > _IDLE else "wakes up again and again"
        return State(kind, f"{verb} in the same function{at}", is_sure=False)
    return State(NOT_STUCK, f"moves{at}")


def _uninterruptible(observed: Observed, sample: Sample) -> State:
    """Return the state of a process that is in state D at both looks."""
    at, channel = _at(observed.frames), f" in {sample.wait_channel}" if sample.wait_channel else ""
    if observed.wakes > _IO_WAKES * observed.apart_s:
        text = f"moves: it waits for a disk or network file system again and again{at}"
        return State(NOT_STUCK, text + _most_likely(sample.awaited))
    if where.is_driver((*sample.kernel_stack, sample.wait_channel)):
        return State(where.ACCELERATOR, f"waits for a device driver{channel}, and cannot be interrupted{at}")
    text = f"waits for a disk or network file system{channel}, and cannot be interrupted{at}"
    return State(FILE_SYSTEM, text + _most_likely(sample.awaited))


def _most_likely(awaited: Awaited | None) -> str:
    return f", {awaited.text}" if awaited is not None else ""


def _in_kernel(observed: Observed, sample: Sample) -> str:
    """Return what /proc says where there is no stack."""
    if observed.cpu_share > _IDLE:
        return f"uses {observed.cpu_share:.0%} of a core"
    verb = "sleeps" if observed.is_asleep else "wakes up again and again"
    return f"{verb} in {sample.wait_channel}" if sample.wait_channel else verb


def judge(all_: Sequence[Observed]) -> Verdict:
    """Return the verdict on the processes of one job."""
    if not all_:
        return Verdict(CANNOT_TELL, "there is no process to look at")
    states = {each.key: state_of(each) for each in all_}
    waiting = [each for each in all_ if states[each.key].kind == where.COLLECTIVE]
    others = [each for each in all_ if states[each.key].kind != where.COLLECTIVE]
    if not any(each.is_late for each in all_):
        declared = [each for each in all_ if each.phase]
        if declared:
            return Verdict(NOT_STUCK, f"{_names(declared)} {declared[0].phase}")
        slow, why_none = stragglers.find(all_)
        if slow:
            return Verdict(STRAGGLER, f"{_names(slow)} {stragglers.sentence(slow[0], all_)}", _keys(slow))
        text = "every rank logged a record a short while ago" + why_none
        if 0 < len(others) <= len(waiting):  # who is slow, without being stuck
            return Verdict(
                NOT_STUCK, f"{text}; {_sentence(others, states, _wait(waiting, states))}", _keys(others)
            )
        return Verdict(NOT_STUCK, text)
    waiting = waiting_for_others(all_, states)
    others = [each for each in all_ if each not in waiting]
    meanwhile = _wait(waiting, states)
    for kind in STUCK:
        blamed = [each for each in others if states[each.key].kind == kind]
        if blamed:
            blamed = [each for each in blamed if each.is_late] or blamed
            blamed = [each for each in blamed if not each.is_over] or blamed
            return _verdict(kind, blamed, states, meanwhile)
    if waiting and others:
        moving = [each for each in others if states[each.key].kind == NOT_STUCK]
        if moving and all(each.phase for each in moving):
            return Verdict(NOT_STUCK, _sentence(moving, states, meanwhile))
        if moving:
            return Verdict(STRAGGLER, _sentence(moving, states, meanwhile), _keys(moving))
        return Verdict(CANNOT_TELL, _sentence(others, states, meanwhile), _keys(others))
    if waiting:
        return _collective(waiting, states)
    unsure = [each for each in all_ if states[each.key].kind == CANNOT_TELL]
    if unsure:
        odd = _odd_in_kernel(unsure) or unsure
        rest = [each for each in unsure if each not in odd]
        sample = rest[0].second.sample if rest else None
        place = f"in {sample.wait_channel}" if sample is not None and sample.wait_channel else "elsewhere"
        meanwhile = f"{_names(rest)} {'is' if len(rest) == 1 else 'are'} {place}" if rest else ""
        return Verdict(CANNOT_TELL, _sentence(odd, states, meanwhile), _keys(odd))
    kind = QUIET if any(each.age_s is not None for each in all_) else NOT_STUCK
    return Verdict(kind, _sentence(list(all_), states))


def waiting_for_others(all_: Sequence[Observed], states: dict[Key, State]) -> list[Observed]:
    """Return those that wait for others, as far as that can be told: none of them is to blame."""
    kinds = {key: state.kind for key, state in states.items()}
    waiting = [each for each in all_ if kinds[each.key] == where.COLLECTIVE]
    at_device = [each for each in all_ if kinds[each.key] == where.ACCELERATOR and not _is_in_driver(each)]
    if set(kinds.values()) - {where.COLLECTIVE, where.ACCELERATOR, CANNOT_TELL}:
        waiting += at_device
    return waiting or together(all_, states)


def _is_in_driver(observed: Observed) -> bool:
    """Does it wait in the device driver, where no peer lets it wait?"""
    sample = observed.second.sample
    return sample is not None and sample.state == "D"


def together(all_: Sequence[Observed], states: dict[Key, State]) -> list[Observed]:
    """Return those that stand in one line of user code, where they are more than half of all and not all."""
    places: dict[object, list[Observed]] = {}
    for each in all_:
        own = where.own_frame(each.frames)
        if own is not None and states[each.key].kind in (where.USER_CODE, where.ACCELERATOR):
            places.setdefault((normal(each.frames), own.line), []).append(each)
    most = max(places.values(), key=len, default=[])
    return most if len(all_) / 2 < len(most) < len(all_) else []


def _odd_in_kernel(some: Sequence[Observed]) -> list[Observed]:
    """Return the few that wait elsewhere in the kernel than the rest; empty where nobody is odd so."""
    places: dict[object, list[Observed]] = {}
    for each in some:
        sample = each.second.sample
        if sample is not None:
            places.setdefault((sample.state, sample.wait_channel, each.cpu_share > _IDLE), []).append(each)
    odd = min(places.values(), key=len, default=[])
    return odd if len(places) == 2 and 2 * len(odd) < len(some) else []


def _verdict(kind: str, blamed: list[Observed], states: dict[Key, State], meanwhile: str) -> Verdict:
    text = _sentence(blamed, states, meanwhile)
    if kind == where.DATA_LOADING:
        for each in blamed:
            for child in each.children:
                state = state_of(child)
                if state.kind in STUCK and state.kind != where.DATA_LOADING:
                    text += f"; its data-loader child {child.pid} {state.text}"
    return Verdict(kind, text, _keys(blamed))


def _collective(waiting: list[Observed], states: dict[Key, State]) -> Verdict:
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
        (one, here), (other, there) = ((some, _at(some[0].frames)) for some in groups.values())
        text = f"{_names(one)} wait in one collective{here}, {_names(other)} in another one{there}"
        return Verdict(where.COLLECTIVE, text)  # as many here as there: nobody is odd
    if not odd or len(odd) == len(waiting):
        at = _at(waiting[0].frames)
        return Verdict(where.COLLECTIVE, f"{_names(waiting)} wait in the same collective, all of them{at}")
    rest = [each for each in waiting if each not in odd]
    return Verdict(where.COLLECTIVE, _sentence(odd, states, _wait(rest, states)), _keys(odd))


def _sentence(blamed: list[Observed], states: dict[Key, State], meanwhile: str = "") -> str:
    first = blamed[0]
    is_after = first.is_over and states[first.key].kind != GONE
    after = f", after the run ended in it ({first.end or 'finished'})" if is_after else ""
    each = ": each" if len(blamed) > 1 else ""
    text = f"{_names(blamed)}{each} {states[first.key].text}{after}"
    if not first.shows_age:
        text += "" if first.step is None else f"; last step {first.step}"
    elif first.age_s is not None:
        step = "" if first.step is None else f" (step {first.step})"
        text += f"; last record {first.age_s:.0f} s ago{step}"
    return f"{text}, while {meanwhile}" if meanwhile else text


def _wait(waiting: Sequence[Observed], states: dict[Key, State]) -> str:
    """Return what those do that wait for others; empty where nobody does."""
    if not waiting:
        return ""
    kinds = {states[each.key].kind for each in waiting}
    names, is_one = _names(waiting), len(waiting) == 1
    if where.COLLECTIVE in kinds:
        return f"{names} " + ("waits for its peers" if is_one else "wait for their peers")
    if (kinds == {where.ACCELERATOR} and len({normal(each.frames) for each in waiting}) > 1) or is_one:
        return f"{names} " + ("waits" if is_one else "wait") + " for a device, as in a collective"
    return f"{names} are all{_at(waiting[0].frames)}"


def _names(some: Sequence[Observed], most: int = 4) -> str:
    names = [each.name for each in some[:most]]
    return ", ".join(names) + (f" and {len(some) - most} more" if len(some) > most else "")


def _keys(some: Sequence[Observed]) -> tuple[Key, ...]:
    return tuple(each.key for each in some)


def _at(frames: tuple[Frame, ...]) -> str:
    frame = where.own_frame(frames)
    return "" if frame is None else f" at {frame.function} ({frame.file}:{frame.line})"

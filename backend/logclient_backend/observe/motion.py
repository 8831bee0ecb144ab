"""Does a process get on, from one sample to the next? And do those that are late stand still, all of them?

Pure. A process *moves* where the stack of one of its threads has changed, it or one of its descendants used CPU or read
and wrote, a descendant came or went, or its GPU works. It *waits* where its main thread is in a collective at both
samples, or waits for others as `verdict.py` has it: it may spin, and so may its GPU. It is *held* where a person has
it: a debugger, a prompt, standard input. What is left stands *still*, or *polls*: it wakes up more than twice a second,
which a slow download does as well.

Late processes stand still where none of them moves or is held, and one is to blame that is still, or all that the run
has wait for each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from . import verdict, where
from .activity import Activity
from .gpu import Gpus
from .groups import normal
from .stacks import Frame, Stacks
from .verdict import Key, Observed, Verdict

_CPU = 0.02  # of a core, over the process and its descendants
_TICK_S = 0.015  # CPU time is counted in ticks of 10 ms: one alone is noise
_IO_BYTES_S = 64 << 10  # what a thread that samples the host reads is less
_WAKES_S = 2.0
_GPU_POWER = 0.3  # of the limit: a device that only waits for its peers is 100 % busy, and cool
_PROMPTS = re.compile(
    r"/lib/python3\.\d+/(pdb|bdb|cmd|code|_pyrepl/\w+)\.py$"
    r"|/(IPython|ipdb|pudb|prompt_toolkit|ipykernel|debugpy|pydevd\w*|_pydevd\w*)/"
)


class Motion(Enum):
    """The motion of one process between two samples."""

    MOVES = "moves"
    HELD = "held"
    WAITS = "waits"
    POLLS = "polls"
    STILL = "still"


class Standstill(Enum):
    """Do those stand still that are late?"""

    NO = "no"
    HELD = "held"  # no, since a person has one of them
    PERHAPS = "perhaps"  # one that is to blame polls
    YES = "yes"


@dataclass(frozen=True, slots=True)
class Activities:
    """Knowledge of a sample beside looks: of each process at both samples, and of the devices at the second one."""

    first: Mapping[int, Activity]
    second: Mapping[int, Activity]
    gpus: Gpus

    def io_bytes(self, pid: int) -> int:
        """Bytes that it read and wrote between the samples; 0 where that is not known."""
        before, after = self.first.get(pid, Activity()).io_bytes, self.second.get(pid, Activity()).io_bytes
        return 0 if before is None or after is None else max(0, after - before)

    def reads_input(self, pid: int) -> bool:
        """Does it wait for standard input?"""
        return self.second.get(pid, Activity()).reads_input


def standstill(
    processes: Sequence[Observed], found: Verdict, activities: Activities, *, is_whole: bool
) -> Standstill:
    """Do those stand still that are late? `is_whole`: all ranks of the run are among the processes."""
    states = {each.key: verdict.state_of(each) for each in processes}
    spinning = {each.key for each in verdict.waiting_for_others(processes, states)}
    motions: dict[Key, Motion] = {}
    for each in processes:
        if each.is_late or each.key in found.blamed:
            motions[each.key] = motion(each, activities, may_spin=each.key in spinning)
    kinds = set(motions.values())
    if Motion.HELD in kinds:
        return Standstill.HELD
    if (
        Motion.MOVES in kinds
        or not kinds
        or found.kind in (verdict.NOT_STUCK, verdict.STRAGGLER, verdict.QUIET)
    ):
        return Standstill.NO
    if kinds == {Motion.WAITS}:
        return Standstill.YES if is_whole or found.blamed else Standstill.NO
    return Standstill.PERHAPS if Motion.POLLS in kinds else Standstill.YES


def motion(each: Observed, activities: Activities, *, may_spin: bool = False) -> Motion:
    """Return the motion of a process; `may_spin`: its CPU and a GPU that stays cool may wait for others."""
    first, second = each.first.sample, each.second.sample
    if verdict.is_gone(each):
        return Motion.STILL
    if each.phase or first is None or second is None:
        return Motion.MOVES
    family = (each, *each.children)
    if any(_is_held(member, activities) for member in family):
        return Motion.HELD
    if second.state == "T":
        return Motion.STILL
    if first.state == second.state == "D":
        return Motion.STILL if each.wakes == 0 else Motion.MOVES
    part = where.part_of(each.frames)
    if part == where.COMPILING or not _is_same(each):
        return Motion.MOVES
    works = _gpu_works({member.pid for member in family}, activities.gpus)
    if part == where.COLLECTIVE or (may_spin and not works):
        return Motion.WAITS
    seconds = max(each.apart_s, 0.001)
    is_device = part == where.ACCELERATOR
    cpu_s = sum(member.cpu_share for member in family) * seconds
    if any(verdict.is_gone(member) or member.first.sample is None for member in each.children):
        return Motion.MOVES
    if cpu_s > max(_TICK_S, _CPU * seconds) and not is_device:
        return Motion.MOVES
    if sum(activities.io_bytes(member.pid) for member in family) > _IO_BYTES_S * seconds:
        return Motion.MOVES
    if works:
        return Motion.MOVES
    is_polling = each.wakes > max(_WAKES_S * seconds, 2) or (is_device and works is None)
    return Motion.POLLS if is_polling else Motion.STILL


def _is_same(each: Observed) -> bool:
    """Did no thread move? One that was not seen at both samples has. Without stacks: the main thread did not run."""
    before, after = each.first.stacks, each.second.stacks
    if before.main is None or after.main is None:
        first, second = each.first.sample, each.second.sample
        is_asleep = first is not None and second is not None and first.state == second.state == "S"
        return is_asleep and each.wakes == 0 and before.main is after.main
    return _by_thread(before) == _by_thread(after)


def _by_thread(stacks: Stacks) -> dict[int, object]:
    return {thread.id: normal(thread.frames) for thread in stacks.threads}


def _is_held(each: Observed, activities: Activities) -> bool:
    sample = each.second.sample
    if sample is None:
        return False
    return sample.state == "t" or activities.reads_input(each.pid) or is_prompt(each.frames)


def is_prompt(frames: Sequence[Frame]) -> bool:
    """Is the program in a debugger or a prompt, which waits for a person? Innermost frame first."""
    for frame in frames:
        if _PROMPTS.search(frame.file):
            return True
        if not where.is_library(frame.file):
            return False
    return False


def _gpu_works(pids: set[int], gpus: Gpus) -> bool | None:
    """Does the device of these processes compute? None where that is not known."""
    theirs = [device for device in gpus.devices if pids & set(device.pids)]
    if not theirs:
        return None
    for device in theirs:
        is_busy = bool(device.utilisation)
        if device.power_w is not None and device.power_limit_w:
            is_busy = is_busy and device.power_w >= _GPU_POWER * device.power_limit_w
        if is_busy:
            return True
    return False

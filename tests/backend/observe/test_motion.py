"""Does a process move between two samples, wait, or stand still? On looks made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logclient_backend.observe.activity import Activity
from logclient_backend.observe.gpu import Gpu, Gpus
from logclient_backend.observe.motion import Activities, Motion, Standstill, is_prompt, motion, standstill
from logclient_backend.observe.stacks import Frame, Stacks, Thread
from logclient_backend.observe.verdict import Look, Observed, judge

from .test_verdict import BARRIER, COMPILE, LOOP, MAIN, SITE, observed

NOTHING = Activities({}, {}, Gpus())
LIB = "/usr/lib/python3.11"
PDB = (Frame("cmdloop", f"{LIB}/cmd.py", 126), Frame("interaction", f"{LIB}/pdb.py", 400), MAIN)
SYNC = Frame("synchronize", f"{SITE}/torch/cuda/__init__.py", 900)


def motion_of(made: Observed, activities: Activities = NOTHING) -> Motion:
    return motion(made, activities)


def io(before: int, after: int) -> Activities:
    return Activities({103: Activity(before)}, {103: Activity(after)}, Gpus())


def gpus(utilisation: int, power_w: float) -> Activities:
    fields = dict.fromkeys(Gpu.__slots__)
    given = {"index": 0, "name": "", "uuid": "", "pids": (103,), "throttled": ()}
    made = {"utilisation": utilisation, "power_w": power_w, "power_limit_w": 700.0}
    return Activities({}, {}, Gpus((Gpu(**{**fields, **given, **made}),)))  # type: ignore[arg-type]


def woken(made: Observed, wakes: int) -> Observed:
    sample = made.second.sample
    assert sample is not None
    made.second = replace(made.second, sample=replace(sample, wakes=wakes))
    return made


def with_thread(made: Observed, first: Frame, second: Frame) -> Observed:
    """A second thread, which is there at the first look and there at the second."""
    for look, frame in ((made.first, first), (made.second, second)):
        threads = (*look.stacks.threads, Thread(9, "saver", True, False, (frame,)))
        look.stacks = Stacks(made.pid, threads)
    return made


@pytest.mark.parametrize(
    ("made", "activities", "expected"),
    [
        (observed(3, MAIN), NOTHING, Motion.STILL),
        (observed(3, MAIN, cpu_s=0.5), NOTHING, Motion.MOVES),
        (observed(3, MAIN, before=(LOOP, MAIN)), NOTHING, Motion.MOVES),
        (observed(3, MAIN), io(0, 1 << 20), Motion.MOVES),
        (observed(3, MAIN), io(0, 1000), Motion.STILL),
        (woken(observed(3, MAIN), 50), NOTHING, Motion.POLLS),
        (woken(observed(3, MAIN), 1), NOTHING, Motion.STILL),
        (with_thread(observed(3, MAIN), LOOP, MAIN), NOTHING, Motion.MOVES),
        (with_thread(observed(3, MAIN), LOOP, LOOP), NOTHING, Motion.STILL),
        (observed(3, COMPILE, MAIN), NOTHING, Motion.MOVES),
        (observed(3, MAIN, state="T"), NOTHING, Motion.STILL),
        (observed(3, MAIN, state="t"), NOTHING, Motion.HELD),
        (observed(3, MAIN, state="D"), NOTHING, Motion.STILL),
        (woken(observed(3, MAIN, state="D"), 3), NOTHING, Motion.MOVES),
        (observed(3, MAIN, state="Z"), NOTHING, Motion.STILL),
        (observed(3, *PDB), NOTHING, Motion.HELD),
        (observed(3, MAIN), Activities({}, {103: Activity(None, True)}, Gpus()), Motion.HELD),
        (observed(3, BARRIER, MAIN, cpu_s=1.0), gpus(100, 150.0), Motion.WAITS),
        (observed(3, SYNC, MAIN, cpu_s=1.0), gpus(100, 600.0), Motion.MOVES),
        (observed(3, SYNC, MAIN, cpu_s=1.0), gpus(100, 120.0), Motion.STILL),
        (observed(3, SYNC, MAIN, cpu_s=1.0), NOTHING, Motion.POLLS),
        (observed(3, MAIN), gpus(80, 600.0), Motion.MOVES),
        (replace(observed(3, MAIN), phase="is in a declared phase"), NOTHING, Motion.MOVES),
    ],
)
def test_motion_of_a_process(made: Observed, activities: Activities, expected: Motion) -> None:
    """By its stack, its threads, CPU, I/O, GPU, kernel state, and who may have it in hand."""
    assert motion_of(made, activities) is expected


def test_work_of_a_child_is_motion() -> None:
    """A loader worker that computes, a copy that a program started; one that came or went, too."""
    parent, child = observed(3, MAIN), observed(4, LOOP)
    parent.children = [child]
    assert motion_of(parent) is Motion.STILL
    parent.children = [observed(4, LOOP, cpu_s=0.5)]
    assert motion_of(parent) is Motion.MOVES
    parent.children = [replace(child, first=Look(None, Stacks(104)))]
    assert motion_of(parent) is Motion.MOVES
    parent.children = [observed(4, *PDB)]
    assert motion_of(parent) is Motion.HELD


def test_process_whose_stack_cannot_be_read_is_still_if_it_never_ran() -> None:
    """The kernel counts how often its main thread slept and woke."""
    made = observed(3, MAIN)
    for look in (made.first, made.second):
        look.stacks = Stacks(made.pid, reason="ptrace is not permitted")
    assert motion_of(made) is Motion.STILL
    assert motion_of(woken(made, 2)) is Motion.MOVES


@pytest.mark.parametrize(
    ("frames", "is_held"),
    [
        (PDB, True),
        ((Frame("_do_wait_suspend", f"{SITE}/debugpy/_vendored/pydevd/pydevd.py", 1), MAIN), True),
        (
            (Frame("select", f"{LIB}/selectors.py", 1), Frame("start", f"{SITE}/ipykernel/kernelapp.py", 1)),
            True,
        ),
        ((MAIN, Frame("execute", f"{SITE}/ipykernel/kernelapp.py", 1)), False),
        ((Frame("main", "/home/me/code.py", 3),), False),
        ((Frame("wait", f"{LIB}/threading.py", 3), MAIN), False),
    ],
)
def test_prompt_is_told_from_user_code_under_a_debugger(frames: tuple[Frame, ...], is_held: bool) -> None:
    """What stands behind a frame of the user's own does not count, nor does the user's own `code.py`."""
    assert is_prompt(frames) is is_held


def stands(
    processes: list[Observed], activities: Activities = NOTHING, *, is_whole: bool = True
) -> Standstill:
    return standstill(processes, judge(processes), activities, is_whole=is_whole)


def test_run_stands_still_where_nobody_who_is_late_moves() -> None:
    """A rank that computes while another one waits for it is no standstill; one that logs on does not count."""
    asleep, computes = observed(3, MAIN), observed(1, LOOP, cpu_s=0.9)
    assert stands([asleep]) is Standstill.YES
    assert stands([asleep, computes]) is Standstill.NO
    assert stands([asleep, replace(computes, age_s=1.0)]) is Standstill.YES
    assert stands([woken(observed(3, MAIN), 50)]) is Standstill.PERHAPS
    assert stands([observed(3, *PDB), observed(1, BARRIER, MAIN)]) is Standstill.HELD


def test_peers_that_wait_stand_still_with_the_one_they_wait_for() -> None:
    """They may spin. Where all wait, somebody on another node may be the one that computes."""
    waiting = [observed(rank, BARRIER, MAIN, cpu_s=1.0) for rank in range(3)]
    assert stands([*waiting, observed(3, MAIN)]) is Standstill.YES
    assert stands([*waiting, observed(3, MAIN, cpu_s=0.9)]) is Standstill.NO
    assert stands(waiting) is Standstill.YES
    assert stands(waiting, is_whole=False) is Standstill.NO


def test_ranks_that_spin_in_one_line_of_user_code_wait_for_the_odd_one() -> None:
    """A wait for a device shows no collective: `loss.item()`."""
    spinning = [observed(rank, LOOP, MAIN, cpu_s=1.0) for rank in range(3)]
    assert stands([*spinning, observed(3, MAIN)]) is Standstill.YES
    assert stands(spinning) is Standstill.NO


def test_rank_at_its_device_waits_for_one_that_is_elsewhere_unless_the_device_computes() -> None:
    """A collective on a GPU: all of its processors spin, at a fraction of the power that work takes."""
    ranks = [observed(3, SYNC, MAIN, cpu_s=1.0), observed(1, MAIN)]
    assert stands(ranks, gpus(100, 120.0)) is Standstill.YES
    assert stands(ranks) is Standstill.YES
    assert stands(ranks, gpus(100, 600.0)) is Standstill.NO

"""Verdicts on looks made by hand, which cover what real processes do too rarely; parts of a program by its frames."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from logclient_backend.observe import groups, process, stacks, verdict, where
from logclient_backend.observe.described import groups_of
from logclient_backend.observe.mounts import Awaited
from logclient_backend.observe.process import Blocked, Sample
from logclient_backend.observe.stacks import Frame, Stacks, Thread
from logclient_backend.observe.verdict import Look, Observed, judge

SITE = "/opt/python/lib/python3.11/site-packages"
BARRIER = Frame("barrier", f"{SITE}/torch/distributed/distributed_c10d.py", 5356)
REDUCE = Frame("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 3000)
LOADER = Frame("_try_get_data", f"{SITE}/torch/utils/data/dataloader.py", 1300)
QUEUE = Frame("get", "/opt/python/lib/python3.11/multiprocessing/queues.py", 113)
MAIN = Frame("train", "/home/me/train.py", 40)
LOOP = Frame("loop", "/home/me/train.py", 90)
LOG = Frame("log", "/home/me/.venv/lib/python3.11/site-packages/logclient/run.py", 10)
COMPILE = Frame("compile_fx", f"{SITE}/torch/_inductor/compile_fx.py", 1)
NUMPY = Frame("dot", f"{SITE}/numpy/core.py", 7)


def observed(
    rank: int,
    *frames: Frame,
    state: str = "S",
    cpu_s: float = 0.0,
    before: tuple[Frame, ...] | None = None,
    age_s: float | None = 60.0,
    step: int = 7,
) -> Observed:
    """A rank with that stack at both looks (or `before` at the first), late by its rhythm."""

    def look(some: tuple[Frame, ...], cpu: float) -> Look:
        sample = Sample(100 + rank, 1, "python", state, 1, cpu, "futex_wait")
        return Look(sample, Stacks(100 + rank, (Thread(100 + rank, "", True, False, some),)))

    first = look(frames if before is None else before, 1.0)
    return Observed(
        100 + rank,
        first,
        look(frames, 1.0 + cpu_s),
        1.0,
        rank,
        step=step,
        age_s=age_s,
        limit_s=None if age_s is None else 10.0,
    )


def with_samples(made: Observed, first: dict[str, Any], second: dict[str, Any]) -> Observed:
    """Return the process with other fields in its two samples."""
    assert made.first.sample is not None and made.second.sample is not None
    made.first = dataclasses.replace(made.first, sample=dataclasses.replace(made.first.sample, **first))
    made.second = dataclasses.replace(made.second, sample=dataclasses.replace(made.second.sample, **second))
    return made


def gone(rank: int) -> Observed:
    made = observed(rank, MAIN)
    made.second = Look(None, Stacks(made.pid, reason="it is gone"))
    return made


WAITING = [observed(rank, BARRIER, MAIN) for rank in (0, 1, 3)]


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        (gone(2), verdict.GONE),
        (observed(2, MAIN, state="T"), verdict.STOPPED),
        (observed(2, MAIN, state="D"), verdict.FILE_SYSTEM),
        (observed(2, LOOP, MAIN), where.USER_CODE),
        (observed(2, LOOP, MAIN, state="R", cpu_s=1.0), where.USER_CODE),
        (observed(2, NUMPY, LOOP, MAIN), where.USER_CODE),
        (observed(2, QUEUE, LOADER, MAIN), where.DATA_LOADING),
        (observed(2, LOG, MAIN), where.LOGGER),
        (observed(2, REDUCE, MAIN), where.COLLECTIVE),
        (observed(2, LOOP, MAIN, before=(NUMPY, MAIN), cpu_s=0.9), verdict.STRAGGLER),
        (observed(2, COMPILE, MAIN, cpu_s=1.0), verdict.STRAGGLER),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rank_that_is_elsewhere_is_to_blame(odd: Observed, kind: str) -> None:
    """Whatever it does, the others only wait for it."""
    found = judge([*WAITING, odd])
    assert (found.kind, found.pids) == (kind, (102,)), found.text
    assert "rank 2" in found.text and "rank 0, rank 1, rank 3" in found.text
    assert found.is_stuck == (kind != verdict.STRAGGLER)


def test_all_in_one_collective_and_one_step_behind() -> None:
    """Nobody is odd by the stack: the rank with the lowest step is; with equal steps nobody."""
    found = judge(WAITING)
    assert (found.kind, found.pids) == (where.COLLECTIVE, ()) and "all of them" in found.text
    found = judge([*WAITING, observed(2, BARRIER, MAIN, step=6)])
    assert (found.kind, found.pids) == (where.COLLECTIVE, (102,))


def test_as_many_ranks_in_one_collective_as_in_another() -> None:
    """Nobody can tell which is odd; both are named."""
    found = judge([observed(0, BARRIER, MAIN), observed(1, REDUCE, MAIN)])
    assert (found.kind, found.pids) == (where.COLLECTIVE, ()) and "in another one" in found.text


def test_late_ranks_that_move_or_compile_are_quiet() -> None:
    """An evaluation without `log`, a compilation."""
    moving = [observed(rank, LOOP, MAIN, before=(NUMPY, MAIN), cpu_s=0.9) for rank in range(3)]
    assert judge(moving).kind == verdict.QUIET
    assert judge([observed(0, COMPILE, MAIN, cpu_s=1.0)]).kind == verdict.QUIET


def test_declared_phase_is_never_stuck() -> None:
    """Whatever the rank does, and however late its peers are that wait for it; one that ended or is stopped is."""
    for frames, state in (((LOOP, MAIN), "S"), ((MAIN,), "D"), ((COMPILE, MAIN), "R")):
        odd = observed(2, *frames, state=state)
        odd.phase = "is in a declared phase 'checkpoint'"
        for job in ([*WAITING, odd], [odd]):
            found = judge(job)
            assert found.kind == verdict.NOT_STUCK and "checkpoint" in found.text, found.text
    ended = gone(2)
    ended.phase = "is in a declared phase"
    assert judge([*WAITING, ended]).kind == verdict.GONE


def test_ranks_that_logged_a_short_while_ago_are_not_stuck() -> None:
    """Whatever the looks find: a step may sleep."""
    found = judge([observed(rank, LOOP, MAIN, age_s=1.0) for rank in range(3)])
    assert found.kind == verdict.NOT_STUCK and not found.is_stuck and not found.pids
    waiting = [observed(rank, BARRIER, MAIN, age_s=1.0) for rank in (0, 1)]
    found = judge([*waiting, observed(2, LOOP, MAIN, age_s=1.0)])
    assert (found.kind, found.pids) == (verdict.NOT_STUCK, (102,)) and "rank 2 waits" in found.text


BACKWARD = Frame("_engine_run_backward", f"{SITE}/torch/autograd/graph.py", 979)


def test_ranks_that_stand_together_in_c_code_wait_for_the_odd_one() -> None:
    """A wait for peers in `backward` or `item` shows no collective; more than half in one line are taken for one."""
    together = [observed(rank, BACKWARD, MAIN) for rank in (0, 1, 3)]
    for odd, kind in (
        (observed(2, LOOP, MAIN), where.USER_CODE),
        (observed(2, QUEUE, LOADER, MAIN), where.DATA_LOADING),
        (observed(2, LOOP, MAIN, before=(NUMPY, MAIN), cpu_s=0.9), verdict.STRAGGLER),
        (gone(2), verdict.GONE),
    ):
        found = judge([*together, odd])
        assert (found.kind, found.pids) == (kind, (102,)), found.text
        assert "while rank 0, rank 1, rank 3 are all at train (/home/me/train.py:40)" in found.text
    same = judge([*together, observed(2, BACKWARD, MAIN)])
    assert (same.kind, len(same.pids)) == (where.USER_CODE, 4)
    halves = judge([*together[:2], observed(2, LOOP, MAIN), observed(3, LOOP, MAIN)])
    assert (halves.kind, len(halves.pids)) == (where.USER_CODE, 4)
    elsewhere = dataclasses.replace(MAIN, line=90)  # the same function, another line
    assert judge([*together, observed(2, elsewhere)]).pids == (102,)


def held_by_another(rank: int, wakes: int, holder_moves: bool = False) -> Observed:
    """A rank whose main thread woke so often between the looks, while another thread has the GIL."""
    made = observed(rank, LOOP, MAIN)
    with_samples(made, {}, {"wakes": wakes})
    for number, look in enumerate((made.first, made.second)):
        frames = (Frame(f"hold{number}" if holder_moves else "hold", "/home/me/train.py", 7),)
        look.stacks = Stacks(made.pid, (*look.stacks.threads, Thread(900, "helper", False, True, frames)))
    return made


def test_thread_that_holds_the_gil_is_named() -> None:
    """Where the main thread wakes up every few milliseconds to ask for it, and the holder stays where it is."""
    text = "rank 2 waits for the GIL, which thread 'helper' holds at hold (/home/me/train.py:7)"
    assert judge([*WAITING, held_by_another(2, 200)]).text.startswith(text)
    for made in (held_by_another(2, 0), held_by_another(2, 200, holder_moves=True)):
        assert "GIL" not in judge([*WAITING, made]).text
    own = observed(2, LOOP, MAIN)
    for look in (own.first, own.second):
        (main,) = look.stacks.threads
        look.stacks = Stacks(own.pid, (dataclasses.replace(main, has_gil=True),))
    assert "loop (/home/me/train.py:90) and holds the GIL" in judge([*WAITING, own]).text


NFS = Awaited("/mnt/nfs", "nfs4", "server:/export", "it is in fsync of /mnt/nfs/x")


def test_state_d_names_the_mount_or_the_driver_and_tells_slow_from_stuck() -> None:
    """One wait over both looks is stuck; many short ones are I/O that goes on."""
    stuck = with_samples(
        observed(2, MAIN, state="D"), {}, {"awaited": NFS, "wait_channel": "rpc_wait_bit_killable"}
    )
    found = judge([*WAITING, stuck])
    assert found.kind == verdict.FILE_SYSTEM
    assert "most likely for /mnt/nfs (nfs4, server:/export): it is in fsync of /mnt/nfs/x" in found.text
    driver = with_samples(observed(2, MAIN, state="D"), {}, {"kernel_stack": ("_nv041234rm", "nvidia_ioctl")})
    assert judge([*WAITING, driver]).kind == where.ACCELERATOR
    busy = with_samples(observed(2, MAIN, state="D"), {}, {"wakes": 500, "awaited": NFS})
    found = judge([*WAITING, busy])
    assert found.kind == verdict.STRAGGLER and "again and again" in found.text and "/mnt/nfs" in found.text


SYNCHRONIZE = Frame("synchronize", "/usr/lib/python3.11/site-packages/torch/cuda/__init__.py", 1162)


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        (observed(1, LOOP, MAIN), where.USER_CODE),
        (observed(1, LOOP, MAIN, state="R", cpu_s=1.0), where.USER_CODE),
        (observed(1, QUEUE, LOADER, MAIN), where.DATA_LOADING),
        (observed(1, MAIN, state="T"), verdict.STOPPED),
        (gone(1), verdict.GONE),
        (observed(1, NUMPY, MAIN, before=(LOOP, MAIN)), verdict.STRAGGLER),
    ],
    ids=["asleep", "computes", "loader", "stopped", "gone", "moves"],
)
@pytest.mark.parametrize("ranks", [(0,), (0, 2, 3)], ids=["one", "three"])
def test_who_waits_for_its_gpu_waits_for_the_rank_that_is_elsewhere(
    odd: Observed, kind: str, ranks: tuple[int, ...]
) -> None:
    """A collective of NCCL ends in a wait for the device, which spins: seen so on two GPUs."""
    waiting = [observed(rank, SYNCHRONIZE, MAIN, state="R", cpu_s=1.0) for rank in ranks]
    found = judge([*waiting, odd])
    assert (found.kind, found.pids) == (kind, (101,)), found.text
    assert "as in a collective" in found.text or len(ranks) > 1
    mixed = judge([*waiting, odd, observed(4, BARRIER, MAIN)])
    assert (mixed.kind, mixed.pids) == (kind, (101,)), mixed.text


def test_stacks_of_who_is_to_blame_come_first() -> None:
    """Also where no group is the smallest."""
    some = [observed(0, SYNCHRONIZE, MAIN), observed(1, LOOP, MAIN)]
    first, second = groups_of(some, judge(some).blamed)
    assert [member.rank for member in first.members] == [1]
    assert [member.rank for member in second.members] == [0]


def test_all_that_wait_for_a_gpu_are_named() -> None:
    """In different lines, and none of them elsewhere: which one the others wait for cannot be told."""
    found = judge([observed(0, SYNCHRONIZE, MAIN), observed(1, SYNCHRONIZE, LOOP, MAIN)])
    assert (found.kind, found.pids) == (where.ACCELERATOR, (100, 101))
    assert found.text.startswith("rank 0, rank 1: each waits in accelerator")


def test_thread_that_hangs_in_state_d_explains_a_main_thread_that_waits() -> None:
    """A thread that writes a checkpoint; not where the main thread waits for peers, nor for two waits."""
    hangs = {"blocked": (Blocked(907, 5, "folio_wait_bit", NFS),)}
    found = judge([*WAITING, with_samples(observed(2, LOOP, MAIN), hangs, hangs)])
    assert (found.kind, found.pids) == (verdict.FILE_SYSTEM, (102,)) and "its thread 907" in found.text
    assert "/mnt/nfs" in found.text
    other = {"blocked": (Blocked(907, 6, "folio_wait_bit", NFS),)}
    assert judge([*WAITING, with_samples(observed(2, LOOP, MAIN), hangs, other)]).kind == where.USER_CODE
    peers = with_samples(observed(0, BARRIER, MAIN), hangs, hangs)
    assert judge([peers, *WAITING[1:], observed(2, LOOP, MAIN)]).pids == (102,)


def no_stack(rank: int, channel: str) -> Observed:
    made = with_samples(observed(rank), {"wait_channel": channel}, {"wait_channel": channel})
    for look in (made.first, made.second):
        look.stacks = Stacks(made.pid, reason="ptrace is not permitted here")
    return made


def test_without_stacks_the_kernel_says_who_is_odd() -> None:
    """Where all but a few wait in one place; the verdict stays that nobody can tell."""
    rest = [no_stack(rank, "futex_wait_queue") for rank in (0, 1, 3)]
    found = judge([*rest, no_stack(2, "hrtimer_nanosleep")])
    assert (found.kind, found.pids) == (verdict.CANNOT_TELL, (102,))
    assert "rank 2 sleeps in hrtimer_nanosleep; no stack: ptrace" in found.text
    assert "while rank 0, rank 1, rank 3 are in futex_wait_queue" in found.text
    assert len(judge([*rest, no_stack(2, "futex_wait_queue")]).pids) == 4


def test_rank_whose_run_is_over_is_to_blame_while_others_wait_and_else_not() -> None:
    """It raised and hangs at its end; a rank that is stuck itself comes first."""
    over = observed(2, LOOP, MAIN)
    over.is_over, over.end = True, "ValueError: bad batch"
    found = judge([*WAITING, over])
    assert (found.kind, found.pids) == (where.USER_CODE, (102,))
    assert "after the run ended in it (ValueError: bad batch)" in found.text
    assert judge([over]).kind == verdict.NOT_STUCK
    assert judge([*WAITING[:2], over, observed(3, LOOP, MAIN)]).pids == (103,)


def test_another_process_under_the_same_pid_is_gone() -> None:
    """PIDs are used again; the start time tells."""
    made = observed(2, MAIN)
    first = made.first.sample
    assert first is not None
    made.second = Look(Sample(102, 2, "python", "S", 1, 0.0), made.second.stacks)
    assert verdict.state_of(made).kind == verdict.GONE
    assert judge([]).kind == verdict.CANNOT_TELL


def test_groups_put_the_odd_one_first_whatever_its_lines() -> None:
    """Lines and folders differ between ranks and nodes; functions and files do not."""
    moved = Frame(MAIN.function, "/elsewhere/train.py", 99)
    found = {
        rank: Stacks(rank, (Thread(rank, "", True, False, frames),))
        for rank, frames in enumerate([(BARRIER, MAIN), (BARRIER, moved), (LOOP, MAIN), (BARRIER, MAIN)])
    }
    assert [group.members for group in groups.grouped(found)] == [(2,), (0, 1, 3)]


def test_stack_of_this_process_and_reasons_where_there_is_none() -> None:
    """Its own file and function; no process, and none of Python's."""
    source = "import time\ndef f(): time.sleep(1000)\nf()"
    child = subprocess.Popen([sys.executable, "-c", source])
    other = subprocess.Popen(["sleep", "1000"])
    try:
        deadline = time.monotonic() + 60
        while True:
            found = stacks.dump([child.pid, other.pid, 1 << 22])
            main = found[child.pid].main
            if main is not None and main.frames and main.frames[0].function == "f":
                break
            assert time.monotonic() < deadline, found
        assert not found[other.pid].threads and found[other.pid].reason
        assert not found[1 << 22].threads and found[1 << 22].reason
        sample = process.look(child.pid)
        assert sample is not None and sample.parent == os.getpid() and sample.state == "S"
        assert child.pid in process.children(os.getpid()) and process.look(1 << 22) is None
    finally:
        for each in (child, other):
            each.kill()
            each.wait(60)


def test_sampler_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Within its time, with a reason; nothing is left of it."""
    script = os.path.join(str(tmp_path), "py-spy")
    with open(script, "w") as file:
        file.write("#!/bin/sh\nexec sleep 1000\n")
    os.chmod(script, 0o700)
    monkeypatch.setattr(stacks, "sampler", lambda: script)
    begun = time.monotonic()
    found = stacks.dump([os.getpid()], timeout_s=0.5)
    assert "not be read in time" in found[os.getpid()].reason
    assert time.monotonic() - begun < 30
    monkeypatch.setattr(stacks, "sampler", lambda: "")
    assert "pip install py-spy" in stacks.dump([1])[1].reason

"""Planted hangs: do `logclient why` and the observer give the right verdict, and name the right rank?

    python tools/bench/hangs.py [--quick] [--trials N] [--seed N]

Each trial is a job of 2 to 8 gloo ranks that log to one run. At a random step a random rank does one thing, of which
nothing in its name or arguments says which: it sleeps, loops, waits for a worker of its data loader, goes to another
collective, is stopped, waits for a frozen disk (needs root), ends, is slow, or is in a declared phase. Once its peers
are late, `why` is asked once; then `why.json` of the observer is read until the run is stalled, or for `WATCH_S` where
it must not be: a loop looks like a long computation, so there the right rank has to be named, and no more. The seed is
drawn when it starts, and printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness
from tools.faults import frozen

if __name__ == "__main__":
    harness.use_environment()

READY_S, LATE_S, ANSWER_S = 120.0, 3.0, 5.0
SETTLE_S = 8.0  # after the first late rank: all are where they stay
STALLED_S, WATCH_S = 60.0, 10.0  # for a stall to be seen; for none to be seen
# the observer's waits are shorter than by default, as `--late-after` is
OBSERVER = {
    "LOGCLIENT_OBSERVE_S": "0.5",
    "LOGCLIENT_LATE_AFTER_S": str(LATE_S),
    "LOGCLIENT_STALL_SAMPLES_S": "1",
    "LOGCLIENT_SYSTEM": "off",
}
PROGRAM = """
import os, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
import logclient

RANK, RANKS, A, B, C, FOLDER = (*map(int, sys.argv[1:6]), sys.argv[6])
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=RANK, world_size=RANKS)
run = logclient.init("hangs", name="job", quiet=True)

class Items(Dataset):
    def __len__(self): return 8
    def __getitem__(self, at):
        if at == 5: time.sleep(10_000)
        return torch.ones(1)

def f0(): time.sleep(10_000)
def f1():
    while True: pass
def f2():
    for _ in DataLoader(Items(), num_workers=1): pass
def f3(): dist.broadcast(torch.ones(1 << 16), src=RANK)
def f4(): os.kill(os.getpid(), 19)
def f5(): open(os.path.join(FOLDER, "file"), "w").write("x" * 100)
def f6(): os._exit(1)
def f7(): pass
def f8():
    with run.progress(600, "saving"): time.sleep(10_000)

def meet(step):
    if B == 6:  # gloo ends a rank whose peer has gone: here they wait for each other by the store
        dist.distributed_c10d._store_based_barrier(RANK, store, str(step), RANKS, timedelta(hours=1))
    else:
        dist.all_reduce(torch.ones(8))

store = dist.FileStore(os.path.abspath("meet"), RANKS)
step = 0
while True:
    if step == C and RANK == A:
        open("begun", "w").close()
        [f0, f1, f2, f3, f4, f5, f6, f7, f8][B]()
    if B == 7 and RANK == A and step > C: time.sleep(5)
    meet(step)
    run.log(step, {"loss": 1 / (step + 1)})
    step += 1
    time.sleep(0.02)
"""


class Kind(NamedTuple):
    """What a rank does, and the verdicts that are right; `is_named`: it has to be the one that is named."""

    what: str
    right: tuple[str, ...]
    is_named: bool = True
    is_stall: bool = True  # the observer is to call the run stalled


KINDS = (
    Kind("asleep in user code", ("user code",)),
    Kind("an endless loop", ("user code",), is_stall=False),
    Kind("a loader worker that hangs", ("data loading",)),
    Kind("another collective", ("collective or peer",)),
    Kind("stopped", ("stopped",)),
    Kind("a frozen disk", ("file system",)),
    Kind("ended", ("process gone",)),
    Kind("slow", ("straggler", "not stuck"), is_stall=False),
    Kind("a declared phase", ("not stuck",), is_named=False, is_stall=False),
)
LOOP, APART, FROZEN = 1, 3, 5


class Observed(NamedTuple):
    """The observer's finding: the stall where it found one, else its last state."""

    is_stalled: bool
    rank: int | None
    verdict: str
    text: str
    after_s: float  # since it was first read


class Trial(NamedTuple):
    """What was drawn, and what was answered."""

    kind: Kind
    ranks: int
    odd: int
    verdict: str
    is_right: bool
    is_named: bool
    took_s: float
    text: str
    observed: Observed

    @property
    def is_observed_right(self) -> bool:
        """Whether the observer found a stall with the right rank and verdict where there is one, and none elsewhere."""
        found = self.observed
        if self.kind == KINDS[LOOP]:
            return not found.is_stalled and found.rank == self.odd
        if not self.kind.is_stall:
            return not found.is_stalled
        return found.is_stalled and found.rank == self.odd and found.verdict in self.kind.right


@contextlib.contextmanager
def job(
    folder: Path, env: dict[str, str], run_id: str, ranks: int, *drawn: object
) -> Iterator[list[subprocess.Popen[bytes]]]:
    path = folder / "main.py"
    path.write_text(PROGRAM)
    begun = []
    try:
        for rank in range(ranks):
            more = {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank),
                "LOGCLIENT_RUN_ID": run_id,
            }
            words = [sys.executable, str(path), str(rank), str(ranks), *map(str, drawn)]
            with open(folder / f"log{rank}", "wb") as log:
                begun.append(
                    subprocess.Popen(
                        words, cwd=folder, env={**env, **more, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log
                    )
                )
        yield begun
    finally:
        for process in begun:
            process.kill()
        for process in begun:
            process.wait(READY_S)


def observe(memory: Path, kind: Kind) -> Observed:
    """Read `why.json` until the run is stalled, for as long as that may take."""
    begun = time.monotonic()
    found: dict[str, Any] = {}
    while (after_s := time.monotonic() - begun) < (STALLED_S if kind.is_stall else WATCH_S):
        for path in memory.glob("logclient-*/*/why.json"):
            with contextlib.suppress(OSError, ValueError, LookupError):
                found = json.loads(path.read_bytes())["observed"]
        if found.get("kind") == "stalled":
            break
        time.sleep(0.1)
    is_stalled = found.get("kind") == "stalled"
    verdict = str(found.get("verdict", "")) or str(found.get("kind", ""))
    return Observed(is_stalled, found.get("rank"), verdict, str(found.get("text", "")), after_s)


def try_once(chance: random.Random, number: int, disk: frozen.LoopExt4 | None) -> Trial:
    kind = KINDS[number]
    # of two ranks in two collectives nobody can tell which is odd
    ranks, step = chance.randint(3 if number == APART else 2, 8), chance.randint(5, 60)
    odd = chance.randrange(ranks)
    with harness.place() as place, contextlib.ExitStack() as stack:
        folder = place.runs.parent
        where = str(disk.path) if disk is not None else str(folder)
        run_id = f"job-{secrets.token_hex(4)}"
        env = {**place.env, **OBSERVER}
        begun = stack.enter_context(job(folder, env, run_id, ranks, odd, number, step, where))
        if number == FROZEN and disk is not None:
            stack.enter_context(disk.frozen())
        deadline = time.monotonic() + READY_S
        while not (folder / "begun").exists():
            if time.monotonic() > deadline or any(process.poll() is not None for process in begun):
                logs = "".join((folder / f"log{rank}").read_text()[-500:] for rank in range(ranks))
                raise RuntimeError(f"The job did not begin:\\n{logs}")
            time.sleep(0.05)
        time.sleep(LATE_S + SETTLE_S)
        words = [
            sys.executable,
            "-m",
            "logclient_backend",
            "why",
            run_id,
            "--late-after",
            str(LATE_S),
            "--json",
        ]
        before = time.monotonic()
        done = subprocess.run(
            words, capture_output=True, text=True, env=place.env, cwd=harness.ROOT, timeout=60
        )
        took_s = time.monotonic() - before
        found: dict[str, Any] = (
            json.loads(done.stdout) if done.stdout else {"verdict": done.stderr, "pids": [], "text": ""}
        )
        is_named = found["pids"] == [begun[odd].pid]
        return Trial(
            kind,
            ranks,
            odd,
            found["verdict"],
            found["verdict"] in kind.right,
            is_named,
            took_s,
            found["text"],
            observe(place.memory, kind),
        )


def run(report: harness.Report, given: argparse.Namespace) -> None:
    seed = given.seed or secrets.randbits(32)
    report.notes["seed"] = seed
    chance = random.Random(seed)
    numbers = [number for number in range(len(KINDS)) if number != FROZEN or frozen.why_not() is None]
    drawn = [numbers[at % len(numbers)] for at in range(given.trials)]
    chance.shuffle(drawn)
    trials = []
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(frozen.LoopExt4(64)) if FROZEN in numbers else None
        for number in drawn:
            trials.append(try_once(chance, number, disk))
            last = trials[-1]
            mark = "right" if last.is_right and (last.is_named or not last.kind.is_named) else "WRONG"
            harness.say(
                f"{mark}: {last.kind.what}, rank {last.odd} of {last.ranks}: {last.verdict}: {last.text}"
            )
            seen, mark = last.observed, "right" if last.is_observed_right else "WRONG"
            harness.say(
                f"  observer {mark}: rank {seen.rank}, {seen.verdict}: {seen.text}; after {seen.after_s:.1f} s"
            )
    wrong = [each for each in trials if not each.is_right]
    unnamed = [each for each in trials if each.kind.is_named and not each.is_named]
    declared = [each for each in trials if not each.kind.is_named and not each.is_right]
    report.figure("wrong verdicts", len(wrong), "trials", most=len(trials) // 10)
    report.figure("another rank named, or none", len(unnamed), "trials", most=0)
    report.figure("alarms in declared phases", len(declared), "trials", most=0)
    report.figure("longest answer", max(each.took_s for each in trials), "s", most=ANSWER_S)
    stalls = [each for each in trials if each.kind.is_stall]
    calm = [each for each in trials if not each.kind.is_stall]
    unseen = [each for each in stalls if not each.observed.is_stalled or each.observed.rank != each.odd]
    unseen += [each for each in calm if each.kind == KINDS[LOOP] and each.observed.rank != each.odd]
    report.figure("observer: no stall, or another rank", len(unseen), "trials", most=0)
    missed = [each for each in stalls if each.observed.verdict not in each.kind.right]
    report.figure("observer: wrong verdicts", len(missed), "trials", most=len(trials) // 10)
    false = [each for each in calm if each.observed.is_stalled]
    report.figure("observer: stalled in declared phases, loops or while slow", len(false), "trials", most=0)
    report.notes["observer_wrong"] = [
        f"{each.kind.what}, rank {each.odd}: rank {each.observed.rank}: {each.observed.verdict}: {each.observed.text}"
        for each in {*unseen, *missed, *false}
    ]
    report.notes["trials"] = len(trials)
    report.notes["wrong"] = [f"{each.kind.what}: {each.verdict}: {each.text}" for each in {*wrong, *unnamed}]


if __name__ == "__main__":
    options: dict[str, Any] = {"trials": (40, 9, "jobs, kinds in equal shares"), "seed": (0, 0, "0: drawn")}
    sys.exit(harness.main(__doc__, run, **options))

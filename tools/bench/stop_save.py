"""Requests to stop and to save: do all ranks act after the same step, and soon?

    python tools/bench/stop_save.py [--quick] [--trials N] [--seed N]

Gloo ranks train trial after trial, each a run of its own, with an all-reduce in each step. At random moments somebody
asks for a save, and later for a stop. How long a step takes, how often steps are logged, and whether every rank logs
or rank 0 alone (the others then give their step) is drawn anew for each trial. A rank that stopped after another step
than its peers would leave them in the all-reduce: that is seen as a trial that does not end. The seed is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

if __name__ == "__main__":
    harness.use_environment()

RANKS = 8
BEGIN_S, END_S, WITHIN_S = 120.0, 30.0, 2.0
CALLS = 200_000
PROGRAM = """
import json, os, random, sys, time
import torch
import torch.distributed as dist
import logclient

RANK, RANKS = map(int, sys.argv[1:3])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=RANK, world_size=RANKS)

for number in range(10**6):
    while not os.path.exists(f"trial-{number}"):
        time.sleep(0.005)
    with open(f"trial-{number}") as file:
        trial = json.load(file)
    if not trial:
        break
    run = logclient.init("stop", id=trial["id"], rank=RANK, quiet=True)
    chance, step, saved, does_stop = random.Random(trial["seed"] + RANK), 0, [], False
    logs = RANK == 0 or not trial["alone"]
    while not does_stop:
        step += 1
        time.sleep(chance.random() * trial["step_s"])
        dist.all_reduce(torch.ones(8))
        if logs and step % trial["every"] == 0:
            run.log(step, {"loss": 1 / step})
        given = step if trial["alone"] else None
        if run.should_save(given):
            saved.append((step, time.time()))
        does_stop = run.should_stop(given)
    done = {"step": step, "at": time.time(), "saved": saved}
    run.finish()
    with open(f"done-{number}-{RANK}.new", "w") as file:
        json.dump(done, file)
    os.rename(f"done-{number}-{RANK}.new", f"done-{number}-{RANK}")
"""


class Trial(NamedTuple):
    """Outcome of one trial; steps of all ranks."""

    stops: set[int]
    saves: set[tuple[int, ...]]
    stop_s: float  # from the request until the last rank acted
    save_s: float
    what: str

    @property
    def is_right(self) -> bool:
        return len(self.stops) == 1 and len(self.saves) == 1 and len(next(iter(self.saves))) == 1


class Job:
    """The ranks, which go from trial to trial."""

    def __init__(self, folder: Path, env: dict[str, str], ranks: int) -> None:
        self.folder = folder
        self.env = env
        self.ranks = ranks
        self.number = 0
        path = folder / "main.py"
        path.write_text(PROGRAM)
        self.processes = []
        for rank in range(ranks):
            with open(folder / f"log{rank}", "wb") as log:
                words = [sys.executable, str(path), str(rank), str(ranks)]
                self.processes.append(subprocess.Popen(words, cwd=folder, env=env, stdout=log, stderr=log))

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait(END_S)

    def put(self, trial: dict[str, Any]) -> None:
        path = self.folder / f"trial-{self.number}"
        path.with_suffix(".new").write_text(json.dumps(trial))
        path.with_suffix(".new").rename(path)

    def results(self, deadline: float) -> list[dict[str, Any]] | None:
        """What each rank did; None where one has not stopped by then."""
        paths = [self.folder / f"done-{self.number}-{rank}" for rank in range(self.ranks)]
        while not all(path.exists() for path in paths):
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                return None
            time.sleep(0.01)
        self.number += 1
        return [json.loads(path.read_text()) for path in paths]


def try_once(job: Job, chance: random.Random) -> Trial | None:
    """One trial; None where it did not end."""
    from logclient.config import Config
    from logclient_backend.runs import live

    # rank 0 alone: the others give their step, and the agent knows as much of it as is logged
    drawn: dict[str, Any] = {
        "id": f"trial-{secrets.token_hex(4)}",
        "seed": chance.randrange(1 << 30),
        "step_s": chance.choice([0.0, 0.002, 0.01, 0.05]),
        "every": chance.choice([1, 1, 1, 5]),
        "alone": chance.random() < 0.25,
    }
    job.put(drawn)
    wanted = 1 if drawn["alone"] else job.ranks
    deadline = time.monotonic() + BEGIN_S
    while True:
        there = [each for each in live.scan(Config.from_env()) if each.run_id == drawn["id"]]
        if there and sum(bool(process.streams()) for process in there[0].processes) >= wanted:
            break
        if time.monotonic() > deadline or any(process.poll() is not None for process in job.processes):
            logs = "".join((job.folder / f"log{rank}").read_text()[-500:] for rank in range(job.ranks))
            raise RuntimeError(f"The ranks did not begin:\\n{logs}")
        time.sleep(0.02)
    asked = []
    for kind in ("save", "stop"):
        time.sleep(chance.uniform(0.0, 1.5))
        asked.append(time.time())
        ask(there[0], kind)
        if kind == "save":
            time.sleep(WITHIN_S)  # else the two come true together
    found = job.results(time.monotonic() + END_S)
    if found is None:
        return None
    return Trial(
        {each["step"] for each in found},
        {tuple(step for step, _ in each["saved"]) for each in found},
        max(each["at"] for each in found) - asked[1],
        max((at for each in found for _, at in each["saved"]), default=asked[0] + END_S) - asked[0],
        f"steps of {drawn['step_s']} s, each {drawn['every']} logged{' by rank 0 alone' if drawn['alone'] else ''}",
    )


def ask(live_dir: Any, kind: str) -> None:
    """As `logclient stop` does, without the time that a command takes to start."""
    from logclient.shm import stop_requests

    request = {
        "id": stop_requests.new_id(),
        "kind": kind,
        "reason": "a trial",
        "by": "the bench",
        "via": stop_requests.COMMAND,
        "time_ns": time.time_ns(),
    }
    stop_requests.ask(live_dir.shm_dir, request)


def calls(report: harness.Report, chance: random.Random) -> None:
    """What a call costs while nobody asks, beside a call of `status`'s dict lookup: a function that returns False."""
    import logclient

    def nothing(step: int | None = None) -> bool:
        return False

    run = logclient.init("stop", name="calls", quiet=True)
    for step in range(1000):
        run.log(step, {"loss": 1.0})
    took: dict[str, list[float]] = {"stop": [], "save": [], "floor": []}
    each = {"stop": run.should_stop, "save": run.should_save, "floor": nothing}
    for _ in range(9):
        for name, call in chance.sample(sorted(each.items()), len(each)):
            begin = time.perf_counter_ns()
            for _ in range(CALLS // 10):
                call()
            took[name].append((time.perf_counter_ns() - begin) / (CALLS // 10))
    run.finish()
    floor = harness.median(took["floor"])
    report.figure("should_stop, nobody asks", harness.median(took["stop"]), "ns", floor=floor)
    report.figure("should_save, nobody asks", harness.median(took["save"]), "ns", floor=floor)


def run(report: harness.Report, given: argparse.Namespace) -> None:
    seed = given.seed or secrets.randbits(32)
    report.notes["seed"] = seed
    chance = random.Random(seed)
    trials: list[Trial] = []
    hung = 0
    with harness.place() as place, ExitStack() as stack:
        harness.enter(place)
        calls(report, chance)
        job: Job | None = None
        for _ in range(given.trials):
            if job is None:
                folder = place.runs.parent / f"job-{secrets.token_hex(4)}"
                folder.mkdir()
                job = Job(folder, {**os.environ, "OMP_NUM_THREADS": "1"}, given.ranks)
                stack.callback(job.end)
            done = try_once(job, chance)
            if done is None:
                hung += 1
                harness.say("HUNG")
                job.end()
                job = None
                continue
            trials.append(done)
            mark = "right" if done.is_right else "WRONG"
            harness.say(
                f"{mark}: stop {sorted(done.stops)} in {done.stop_s:.2f} s, save {sorted(done.saves)} "
                f"in {done.save_s:.2f} s; {done.what}"
            )
    wrong = [each for each in trials if not each.is_right]
    report.figure("trials that did not end", hung, "trials", most=0)
    report.figure("trials in which ranks acted after different steps", len(wrong), "trials", most=0)
    for what, times in (
        ("stop", [each.stop_s for each in trials]),
        ("save", [each.save_s for each in trials]),
    ):
        report.figure(
            f"longest from request to last rank: {what}", max(times, default=END_S), "s", most=WITHIN_S
        )
    report.notes["trials"], report.notes["ranks"] = given.trials, given.ranks
    report.notes["wrong"] = [str(each) for each in wrong]


if __name__ == "__main__":
    options: dict[str, Any] = {
        "trials": (50, 3, "runs"),
        "ranks": (RANKS, RANKS, "processes"),
        "seed": (0, 0, "0: drawn"),
    }
    sys.exit(harness.main(__doc__, run, **options))

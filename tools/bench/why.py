"""How long does `logclient why` take on 8 ranks with 4 data-loader children each, and is any of them stopped?

    python tools/bench/why.py [--quick] [--answers N]

A job of 8 gloo ranks, of which one is elsewhere and the others are in a collective; each has a data loader with 4
children that have given their first batch. `why` is asked N times. Meanwhile a process looks at the state of every
thread of all 40 in turns: none may ever be stopped (T) or traced (t). How often it looks is part of the report.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness
from tools.faults import processes

if __name__ == "__main__":
    harness.use_environment()

RANKS, WORKERS, ODD = 8, 4, 5
READY_S, LATE_S, ANSWER_S = 240.0, 1.0, 5.0
PAUSE_S = 0.002  # of the process that looks; it shares the machine with what is measured
PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
import logclient

RANK, RANKS, WORKERS, ODD = map(int, sys.argv[1:])
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=RANK, world_size=RANKS)
run = logclient.init("why", name="job", quiet=True)

class Items(Dataset):
    def __len__(self): return 1_000
    def __getitem__(self, at): return torch.ones(1)

batches = iter(DataLoader(Items(), num_workers=WORKERS, persistent_workers=True))
for step in range(5):
    next(batches)
    dist.all_reduce(torch.ones(8))
    run.log(step, {"loss": 1 / (step + 1)})

def elsewhere(): time.sleep(10_000)
open(f"ready{RANK}", "w").close()
elsewhere() if RANK == ODD else dist.all_reduce(torch.ones(8))
"""


@contextlib.contextmanager
def job(folder: Path, env: dict[str, str], run_id: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The ranks, once all of them are where they stay."""
    path = folder / "main.py"
    path.write_text(PROGRAM)
    begun = []
    try:
        for rank in range(RANKS):
            more = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)}
            words = [sys.executable, str(path), str(rank), str(RANKS), str(WORKERS), str(ODD)]
            with open(folder / f"log{rank}", "wb") as log:
                ours = {**env, **more, "LOGCLIENT_RUN_ID": run_id}
                begun.append(subprocess.Popen(words, cwd=folder, env=ours, stdout=log, stderr=log))
        deadline = time.monotonic() + READY_S
        while not all((folder / f"ready{rank}").exists() for rank in range(RANKS)):
            if time.monotonic() > deadline or any(process.poll() is not None for process in begun):
                raise RuntimeError("The job did not begin: " + (folder / "log0").read_text()[-500:])
            time.sleep(0.05)
        yield begun
    finally:
        family = [child for process in begun for child in processes.children_of(process.pid)]
        for process in begun:
            process.kill()
        for process in begun:
            process.wait(READY_S)
        # children of data loaders end with their parents: soon, not at once
        processes.wait_until(lambda: not any(map(processes.is_alive, family)), READY_S)


def watch(pids: list[int], pipe: Connection) -> None:
    """Look at all threads until a word comes; send (looks, states of those that were stopped)."""
    looks, stopped = 0, []
    while not pipe.poll():
        for pid in pids:
            for thread, state in processes.states_of_threads(pid).items():
                if state in "Tt":
                    stopped.append((pid, thread, state))
        looks += 1
        time.sleep(PAUSE_S)
    pipe.send((looks, stopped))


def run(report: harness.Report, given: argparse.Namespace) -> None:
    run_id = f"job-{secrets.token_hex(4)}"
    words = [sys.executable, "-m", "logclient_backend", "why", run_id, "--late-after", str(LATE_S), "--json"]
    with harness.place() as place, job(place.runs.parent, place.env, run_id) as begun:
        pids = [process.pid for process in begun]
        everybody = [*pids, *(child for pid in pids for child in processes.children_of(pid))]
        report.figure("processes", len(everybody), "processes")
        time.sleep(2 * LATE_S)
        here, there = multiprocessing.Pipe()
        watcher = multiprocessing.get_context("fork").Process(target=watch, args=(everybody, there))
        watcher.start()
        took, wrong, cpu_s = [], [], []
        for _ in range(given.answers):
            before, used = time.monotonic(), os.times()
            done = subprocess.run(
                words, capture_output=True, text=True, env=place.env, cwd=harness.ROOT, timeout=READY_S
            )
            took.append(time.monotonic() - before)
            now = os.times()
            cpu_s.append(now.children_user + now.children_system - used.children_user - used.children_system)
            found: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"text": done.stderr}
            is_right = found.get("pids") == [begun[ODD].pid] and found.get("verdict") == "user code"
            seen = sum(1 + len(each["children"]) for each in found.get("processes", []))
            stacks = sum(len(group["pids"]) for group in found.get("groups", []))
            if not is_right or (seen, stacks) != (len(everybody), len(everybody)):
                wrong.append(f"{seen} processes, {stacks} stacks: {found['text']}")
            harness.say(f"{took[-1]:.2f} s, {cpu_s[-1]:.2f} s of CPU: {found['text'][:100]}")
        here.send("end")
        looks, stopped = here.recv()
        watcher.join()
    report.figure("longest answer", max(took), "s", most=ANSWER_S)
    report.figure("median answer", sorted(took)[len(took) // 2], "s")
    report.figure("CPU of one answer", sorted(cpu_s)[len(cpu_s) // 2], "s")
    report.figure("answers with another rank, or without a stack", len(wrong), "answers", most=0)
    report.figure("looks at all threads", looks, "looks")
    report.figure("threads seen stopped", len(stopped), "threads", most=0)
    report.notes["wrong"] = wrong


if __name__ == "__main__":
    options: dict[str, Any] = {"answers": (10, 3, "times that it is asked")}
    sys.exit(harness.main(__doc__, run, **options))

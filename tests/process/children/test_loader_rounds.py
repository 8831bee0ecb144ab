"""Rounds of a torch DataLoader with 8 forked workers that log, while 4 threads log in the parent: no hang, no miscount.

Each round forks 8 processes at moments when threads are anywhere inside `log()`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Pace

from .. import scripts

ROUNDS = """
import json, sys, threading, time, warnings
import torch
from torch.utils.data import DataLoader, Dataset
import logclient

ITEMS, WORKERS, THREADS = 16, 8, 4
rounds, before = int(sys.argv[1]), threading.active_count()
torch.set_num_threads(1)
warnings.filterwarnings("ignore", "This DataLoader will create 8 worker")  # more than there are cores
run = logclient.init(project="case", quiet=True)
stop = threading.Event()
logged = [0] * THREADS

class Data(Dataset):
    def __init__(self, round_): self.first = round_ * ITEMS
    def __len__(self): return ITEMS
    def __getitem__(self, index):
        logclient.log(self.first + index, {"worker": float(self.first + index)})
        return torch.tensor(self.first + index)

def log(number):
    step = 0
    while not stop.is_set():
        for _ in range(5):
            run.log(step, {f"thread{number}": step / 2, "twice": step * 2.0})
            step += 1
            logged[number] = step
        time.sleep(0.02)

threads = [threading.Thread(target=log, args=(number,)) for number in range(THREADS)]
for thread in threads: thread.start()
longest = 0.0
for round_ in range(rounds):
    begun = time.monotonic()
    # a worker that hangs: an exception after that time
    loader = DataLoader(Data(round_), batch_size=2, num_workers=WORKERS, multiprocessing_context="fork", timeout=60)
    seen = [int(item) for batch in loader for item in batch]
    assert seen == list(range(round_ * ITEMS, (round_ + 1) * ITEMS))
    del loader
    longest = max(longest, time.monotonic() - begun)
stop.set()
for thread in threads: thread.join()
done = run.finish(60)
print(json.dumps([logged, run.status(), done, longest, rounds * ITEMS]))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rounds_of_forked_workers_while_threads_log(tmp_path: Path, run_dir: Path, pace: Pace) -> None:
    """Bar: 1,000 rounds, 0 hangs; accepted = stored + forgotten of the parent, and every record of every worker."""
    pytest.importorskip("torch")
    rounds = pace.count(1000, least=10)
    ended = scripts.run_well(tmp_path, ROUNDS, str(rounds), timeout_s=270 * max(1.0, 20 / pace))
    logged, status, done, longest_s, items = json.loads(ended.out.splitlines()[-1])
    assert done and longest_s < 60
    assert status["refused"] == status["left_out"] == status["damaged"] == 0
    assert status["accepted"] == sum(logged)
    scripts.wait_gone(60)
    found = scripts.the_run(run_dir)
    assert found.state.name == "finished"
    assert len(found.processes) == 8 * rounds + 1
    points = scripts.points(found)
    assert sorted(points.pop("worker")) == [(step, float(step)) for step in range(items)]
    assert len(points["twice"]) + status["forgotten"] == sum(logged)
    for number, count in enumerate(logged):
        own = points[f"thread{number}"]
        steps = [step for step, _ in own]
        assert steps == sorted(set(steps)) and all(value == step / 2 for step, value in own)
        assert status["forgotten"] or steps == list(range(count))

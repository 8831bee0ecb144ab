"""The training script of `logclient demo`: a small network on scikit-learn's handwritten digits. A user's program.

    python demo_train.py '{"seconds": 20, "truth": FOLDER, ...}'

Run in a process of its own and never imported: the backend imports neither torch nor the client, this does both.
It knows nothing of the faults. What it logged it also writes into files of its own (`Truth`), by which the demo checks
afterwards what was stored.

Every step is logged. In every second block of BLOCK steps the calls are made after the block, outside of the measured
time: so the same run tells what a step costs with and without them.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import logclient

BLOCK = 25
BATCH = 64
WORKERS = 2
CHUNK = 400  # batches of one pass of the data loader
STEP_KEYS = ("train/loss", "train/accuracy", "train/grad_norm", "optim/lr", "time/data_ms")
LOADER_KEYS = ("loader/prepare_ms", "loader/brightness")

# The head of a truth file: rows, ns of the first call, ns of the longest other one, then the keys as JSON. Rows follow.
HEAD_BYTES = 4096
ROWS, FIRST, LONGEST, KEYS_AT = 0, 1, 2, 24
MAX_ROWS = 1 << 18


class Truth:
    """The records of one process, kept where no logger is needed to find them."""

    def __init__(self, folder: str, keys: tuple[str, ...]) -> None:
        self.row = struct.Struct(f"<q{len(keys)}d")
        path = os.path.join(folder, f"{os.getpid()}.truth")
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, HEAD_BYTES + MAX_ROWS * self.row.size)
        self.map = mmap.mmap(fd, 0)
        os.close(fd)
        self.words = memoryview(self.map)[:KEYS_AT].cast("Q")
        names = json.dumps(keys).encode()
        self.map[KEYS_AT : KEYS_AT + len(names)] = names
        self.rows = 0

    def add(self, step: int, values: Any, took_ns: int) -> None:
        """The call for this record has returned."""
        self.row.pack_into(self.map, HEAD_BYTES + self.rows * self.row.size, step, *values)
        self.rows += 1
        self.words[ROWS] = self.rows
        if self.rows == 1:  # in a forked process the one that makes its lanes
            self.words[FIRST] = took_ns
        elif took_ns > self.words[LONGEST]:
            self.words[LONGEST] = took_ns


class Digits(torch.utils.data.Dataset[Any]):
    """Batches of augmented digits; logs from within the data loader's workers, which are forked."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, truth: str) -> None:
        self.images = images
        self.labels = labels
        self.folder = truth
        self.truth: Truth | None = None

    def __len__(self) -> int:
        return CHUNK * BATCH

    def __getitem__(self, indexes: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        begin = time.perf_counter()
        at = torch.tensor(indexes) % len(self.labels)
        images = self.images[at]
        shifted = torch.roll(images, int(torch.randint(-1, 2, ())), dims=2)
        noisy = shifted + 0.3 * torch.randn_like(shifted)
        if self.truth is None:  # in the worker, with its first batch
            self.truth = Truth(self.folder, LOADER_KEYS)
        step = self.truth.rows
        values = ((time.perf_counter() - begin) * 1e3, float(noisy.mean()))
        before = time.perf_counter_ns()
        logclient.log(step, dict(zip(LOADER_KEYS, values, strict=True)))
        self.truth.add(step, values, time.perf_counter_ns() - before)
        return noisy, self.labels[at]


def batches(data: Digits) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Without end."""
    sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), BATCH, drop_last=True)
    loader = torch.utils.data.DataLoader(
        data,
        sampler=sampler,
        batch_size=None,
        num_workers=WORKERS,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    while True:
        yield from loader


class Meter:
    """Times of steps and calls."""

    def __init__(self) -> None:
        self.logged: list[int] = []  # ns of steps with their call
        self.unlogged: list[int] = []  # of steps whose call came later
        self.calls: list[int] = []

    def summary(self) -> dict[str, float]:
        middle = {name: sorted(times)[len(times) // 2] for name, times in vars(self).items() if times}
        return {f"{name}_ns": time for name, time in middle.items()}


def train(plan: dict[str, Any], run: Any) -> dict[str, Any]:
    """Train until the time is up; returns figures about it."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16 - 0.3
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    train_at, test_at = order[:1400], order[1400:]
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
    ).append(nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    data = Digits(images[train_at], labels[train_at], plan["truth"])
    source = batches(data)
    next(source)  # the workers start, and are not part of the time
    truth, meter = Truth(plan["truth"], STEP_KEYS), Meter()
    late: list[tuple[int, dict[str, float], tuple[float, ...]]] = []
    clock, step = time.perf_counter_ns, 0
    begin = clock()
    end = begin + int(plan["seconds"] * 1e9)
    while clock() < end:
        is_logged = step // BLOCK % 2 == 0
        start = clock()
        batch, wanted = next(source)
        waited = clock() - start
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (1 + step) / 200)
        optimizer.zero_grad()
        answer = model(batch)
        loss = nn.functional.cross_entropy(answer, wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        right = (answer.argmax(1) == wanted).float().mean()
        values = (loss.item(), right.item(), norm.item(), optimizer.param_groups[0]["lr"], waited / 1e6)
        metrics = dict(zip(STEP_KEYS, values, strict=True))
        if is_logged:
            before = clock()
            logclient.log(step, metrics)
            after = clock()
            meter.logged.append(after - start)
            meter.calls.append(after - before)
            truth.add(step, values, after - before)
        else:
            meter.unlogged.append(clock() - start)
            late.append((step, metrics, values))
        step += 1
        if late and step % BLOCK == 0:
            log_late(late, truth, meter)
    log_late(late, truth, meter)
    with torch.no_grad():
        accuracy = (model(images[test_at]).argmax(1) == labels[test_at]).float().mean().item()
    run.summary["accuracy"] = accuracy
    return {"steps": step, "seconds": (clock() - begin) / 1e9, "accuracy": accuracy, **meter.summary()}


def log_late(late: list[tuple[int, dict[str, float], tuple[float, ...]]], truth: Truth, meter: Meter) -> None:
    """The calls of a block that was measured without them."""
    for step, metrics, values in late:
        before = time.perf_counter_ns()
        logclient.log(step, metrics)
        took = time.perf_counter_ns() - before
        meter.calls.append(took)
        truth.add(step, values, took)
    late.clear()


def main(plan: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    run = logclient.init(
        "demo",
        id=plan["run_id"],
        name="digits",
        config={
            "model": "conv 16, linear 64",
            "batch": BATCH,
            "lr": 1e-3,
            "momentum": 0.9,
            "workers": WORKERS,
        },
        tags=["demo"],
        mode="offline",
        dir=plan["dir"],
        quiet=True,
    )
    found = train(plan, run)
    found["finished"] = run.finish(30.0)
    found["status"] = run.status()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

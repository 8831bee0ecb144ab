"""A store of runs as a group of people leaves them: sweeps with seeds, runs that failed, hang or run now."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

from logclient.shm.record import Shape
from logclient_backend.collector.store.interface import Description, Parcel, Store
from logclient_backend.wal.encoded import StreamColumns
from tests.backend.store.samples import columns

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
MODELS = ("resnet50", "vit-base", "convnext", "mlp-mixer")
OPTIMIZERS = ("adamw", "sgd", "lion")
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
SHAPE = Shape(("train/loss", "val/loss", "val/accuracy"), "ddd")
STALLED = {
    "kind": "stalled",
    "verdict": "user code",
    "text": "rank 3 waits in all_reduce, the other ranks are in data loading (loader.py:118)",
    "since_ns": 1,
    "rank": 3,
    "step": 4100,
}
TROUBLES = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "ValueError: loss is nan",
    "AssertionError",
)


def run_of(number: int, now_ns: int, **about: Any) -> Parcel:
    """A run of this number, the lower the newer; `about` replaces parts of its description."""
    chance = random.Random(number)
    seed, rate = number % 5, RATES[number // 5 % 4]
    model, optimizer = MODELS[number // 20 % 4], OPTIMIZERS[number // 80 % 3]
    state = "running" if number < 4 else chance.choice(("finished",) * 7 + ("failed", "failed", "killed"))
    created_ns = now_ns - number * HOUR // 7 - HOUR
    active_ns = int(chance.uniform(0.1, 9) * HOUR)
    stream = number.to_bytes(16, "little")
    more: dict[str, Any] = {"active_ns": active_ns} if state != "running" else {}
    if number == 2:
        more["observed"] = STALLED
    described: dict[str, Any] = {
        "project": ("vision", "distill")[number // 240 % 2],
        "name": f"{model}-{optimizer}-s{seed}",
        "group": f"{model}-{optimizer}-{rate:g}",
        "tags": (("baseline",) if number % 9 == 0 else ()) + (("ablation", "long")[: number % 3]),
        "state": state,
        "reason": chance.choice(TROUBLES) if state == "failed" else "signal 9" if state == "killed" else "",
        "created_ns": created_ns,
        "ended_ns": created_ns + active_ns if state != "running" else 0,
        "counts": {
            "accepted": 5000 + number,
            "forgotten": 1204 if number % 37 == 5 else 0,
            "refused": 3 * (number % 53 == 7),
        },
        "config": {
            "lr": rate,
            "seed": seed,
            "batch_size": 256,
            "model": {"name": model, "layers": 12 + number % 3},
            "optimizer": {"name": optimizer, "weight_decay": 0.05},
        },
        "summary": {"best": round(chance.uniform(0.6, 0.9), 4)},
        "attempts": {stream.hex(): 1},
        "more": more,
    }
    loss = chance.uniform(0.15, 0.6)
    rows = [(loss + 1 / step, loss * 1.1 + 1 / step, 1 - loss + 0.01 * step) for step in range(1, 4)]
    records = StreamColumns(stream, stream, 0, columns(SHAPE, range(1, 4), rows))
    seen_ns = (
        now_ns - (3 + 4 * number) * SECOND // 2 if state == "running" else min(now_ns, created_ns + active_ns)
    )
    id = f"{number:08x}"[::-1] + f"{chance.getrandbits(32):08x}"
    return Parcel(id, "node", seen_ns, [records], (), b"{}", Description(**{**described, **about}))


def parcels(count: int, now_ns: int) -> Iterator[list[Parcel]]:
    """They are written in pages: the store commits each."""
    for first in range(0, count, 200):
        yield [run_of(number, now_ns) for number in range(first, min(count, first + 200))]


def fill(store: Store, count: int) -> None:
    """So many runs, four of them live."""
    for page in parcels(count, time.time_ns()):
        store.writer.write(page)

"""p50 of one log() call beside a function that only packs the same values; also by kind and number of values.

    python tools/bench/log_call.py [--quick] [--calls N]

Floor: `def floor(step, metrics): PACK_INTO(buf, 0, step, time.time_ns(), *metrics.values())`. Each call gets a new
dict, made just before and not measured. Blocks of calls take turns; the cost of reading the clock is taken off all
of them; the bar is for the median over the rounds of (p50 of log / p50 of floor).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness
from tools.bench.probe import BLOCK, Call, Make, floor_for, p50_ns

WARM_UP = 3  # rounds
REST_S = 0.002  # between rounds, so that the agent keeps up
BAR, BAR_RANKED, BAR_KEY_SETS = 4.0, 4.5, 5.0
RANKED = "run.as_rank(1).log"


class Case:
    """One kind of input."""

    def __init__(self, what: str, make: Make, values: int, bar: float | None) -> None:
        self.what = what
        self.make = make
        self.values = values
        self.bar = bar


def floats(count: int, prefix: str = "train/m") -> Make:
    keys = [f"{prefix}{index}" for index in range(count)]

    def make(step: int) -> dict[str, Any]:
        return {key: step + index / 16 for index, key in enumerate(keys)}

    return make


def key_sets(count: int) -> Make:
    """A different set of 10 keys with each call, `count` of them in turn."""
    makers = [floats(10, f"set{index}/m") for index in range(count)]
    return lambda step: makers[step % count](step)


def mixed(step: int) -> dict[str, Any]:
    import numpy
    import torch

    return {
        "loss": torch.tensor(step + 0.25),
        "accuracy": numpy.float32(step + 0.5),
        "lr": step + 0.125,
        "epoch": step,
        "grad_norm": torch.tensor(step + 0.75),
        "tokens": step * 4096,
        "momentum": 0.9 + step,
        "scale": numpy.float32(step + 0.0625),
        "time": step + 0.375,
        "memory": step + 0.875,
    }


def cases() -> list[Case]:
    return [
        Case("10 floats", floats(10), 10, BAR),
        Case("200 alternating key sets of 10 floats", key_sets(200), 10, BAR_KEY_SETS),
        Case("1 float", floats(1), 1, None),
        Case("100 floats", floats(100), 100, None),
        Case("10 of float, int, NumPy float32 and 0-d CPU tensor", mixed, 10, None),
    ]


def measure(case: Case, calls: dict[str, Call], rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """For each of the calls: its p50 in each round, and the floor's in the same round; the clock taken off."""
    floor = floor_for(case.values)
    order: list[str] = [*calls, ""]
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in calls}
    rng = random.Random(1)
    for number in range(rounds + WARM_UP):
        start = number * BLOCK
        rng.shuffle(order)
        clock_ns = p50_ns(None, case.make, start)
        took = {name: p50_ns(calls.get(name, floor), case.make, start) - clock_ns for name in order}
        if number >= WARM_UP:
            for name in calls:
                found[name][0].append(took[name])
                found[name][1].append(took[""])
        time.sleep(REST_S)
    return found


def run(report: harness.Report, given: argparse.Namespace) -> None:
    with harness.place() as place:
        harness.enter(place)
        import logclient

        run = logclient.init("bench")
        assert isinstance(run, logclient.Run)
        for case in cases():
            calls: dict[str, Call] = {"run.log": run.log}
            if case.what == "10 floats":
                calls["logclient.log"] = logclient.log
                calls[RANKED] = run.as_rank(1).log
            for name, (took, floors) in measure(case, calls, max(20, given.calls // BLOCK)).items():
                report.figure(
                    f"p50 of {name}, {case.what}",
                    harness.median(took),
                    "ns",
                    floor=harness.median(floors),
                    ratio=harness.median([high / low for high, low in zip(took, floors, strict=True)]),
                    most_ratio=BAR_RANKED if name == RANKED else case.bar,
                )
        run.finish(10)
        status = run.status()
        report.notes["records"] = {
            name: status[name] for name in ("accepted", "durable", "forgotten", "refused")
        }
        place.wait_empty()


if __name__ == "__main__":
    harness.use_environment()
    sys.exit(harness.main(__doc__, run, calls=(40_000, 10_000, "measured calls of each kind")))

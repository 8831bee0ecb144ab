"""A `print` that is captured beside a bare one, and an unpaced log() of one value in the same process.

    python tools/bench/console.py [--quick] [--calls N]

Blocks of all take turns. Both prints write to /dev/null, so that the stream itself costs little. The bar is for the
median over the rounds of (captured - bare) / log, for `print(text)`.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

BLOCK = 200
WARM_UP = 3  # rounds
REST_S = 0.002  # between rounds, so that the agent keeps up
BAR = 2.0
TEXT = "epoch 12 step 3400 loss 0.123456 lr 3e-4"
ONE, TWO = "print(text)", "print(text, text)"


def run(report: harness.Report, given: argparse.Namespace) -> None:
    with harness.place() as place, open(os.devnull, "w") as bare, open(os.devnull, "w") as below:
        harness.enter(place)
        import logclient

        before, sys.stdout = sys.stdout, below
        run = logclient.init("bench", console="tee")
        assert isinstance(run, logclient.Run)
        captured, sys.stdout = sys.stdout, before
        assert captured is not below
        log = run.log
        records = [{"train/loss": index / 16} for index in range(BLOCK)]

        def log_one() -> None:
            for record in records:
                log(1, record)

        def print_bare() -> None:
            for _ in records:
                print(TEXT, file=bare)

        def print_captured() -> None:
            for _ in records:
                print(TEXT, file=captured)

        def two_bare() -> None:
            for _ in records:
                print(TEXT, TEXT, file=bare)

        def two_captured() -> None:
            for _ in records:
                print(TEXT, TEXT, file=captured)

        blocks: dict[str, Callable[[], None]] = {
            "log": log_one, f"bare {ONE}": print_bare, ONE: print_captured,
            f"bare {TWO}": two_bare, TWO: two_captured,
        }  # fmt: skip
        found: dict[str, list[float]] = {name: [] for name in blocks}
        order, rng = list(blocks), random.Random(1)
        for number in range(WARM_UP + max(20, given.calls // BLOCK)):
            rng.shuffle(order)
            took = {}
            for name in order:
                begun = time.perf_counter_ns()
                blocks[name]()
                took[name] = (time.perf_counter_ns() - begun) / BLOCK
            if number >= WARM_UP:
                for name in blocks:
                    found[name].append(took[name])
            time.sleep(REST_S)
        for name in (ONE, TWO):
            more = [one - bare_ for one, bare_ in zip(found[name], found[f"bare {name}"], strict=True)]
            report.figure(
                f"{name} captured, beyond a bare one",
                harness.median(more),
                "ns",
                floor=harness.median(found["log"]),
                ratio=harness.median([each / log_ for each, log_ in zip(more, found["log"], strict=True)]),
                most_ratio=BAR if name == ONE else None,
            )
        run.finish(10)


if __name__ == "__main__":
    sys.exit(harness.main(__doc__, run, calls=(100_000, 20_000, "calls of each kind")))

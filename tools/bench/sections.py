"""Entering and leaving a section, beside an unpaced log() of one value in the same process.

    python tools/bench/sections.py [--quick] [--calls N]

Blocks of both take turns; the loop around them is taken off. The bar is for the median over the rounds of (section,
kept and entered again and again, / log). `with run.section("data")` looks the section up each time; it has no bar.
"""

from __future__ import annotations

import argparse
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
BAR = 0.5
KEPT, INNER, LOOKED_UP = "a section that is kept", "a section inside another", 'run.section("data")'


def run(report: harness.Report, given: argparse.Namespace) -> None:
    with harness.place() as place:
        harness.enter(place)
        import logclient

        run = logclient.init("bench")
        assert isinstance(run, logclient.Run)
        log, kept, inner = run.log, run.section("data"), run.section("decode")
        records = [{"train/loss": index / 16} for index in range(BLOCK)]

        def log_one() -> None:
            for record in records:
                log(1, record)

        def enter_kept() -> None:
            for _ in records:
                with kept:
                    pass

        def enter_inner() -> None:
            with kept:
                for _ in records:
                    with inner:
                        pass

        def look_up() -> None:
            for _ in records:
                with run.section("data"):
                    pass

        def nothing() -> None:
            for _ in records:
                pass

        blocks: dict[str, Callable[[], None]] = {
            "log": log_one, KEPT: enter_kept, INNER: enter_inner, LOOKED_UP: look_up, "": nothing,
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
                    found[name].append(took[name] - took[""])
            time.sleep(REST_S)
        for name in (KEPT, INNER, LOOKED_UP):
            report.figure(
                f"enter and exit of {name}",
                harness.median(found[name]),
                "ns",
                floor=harness.median(found["log"]),
                ratio=harness.median(
                    [one / log_ for one, log_ in zip(found[name], found["log"], strict=True)]
                ),
                most_ratio=BAR if name == KEPT else None,
            )
        run.finish(10)
        place.wait_empty()


if __name__ == "__main__":
    harness.use_environment()
    sys.exit(harness.main(__doc__, run, calls=(40_000, 10_000, "measured calls of each kind")))

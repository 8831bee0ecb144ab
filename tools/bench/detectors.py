"""How often detectors are right: planted spikes, shifts of a throughput, stragglers; and noise with nothing in it.

    python tools/bench/detectors.py [--quick] [--series N] [--steps N] [--seed N]

Series are those of `tools/bench/series.py`. Seeds are drawn when it starts, and printed, so that nothing is tuned to
them. A spike counts as found where an episode begins within it, or up to two values behind it; every other episode is
false.
"""

from __future__ import annotations

import argparse
import math
import random
import secrets
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

if __name__ == "__main__":
    harness.use_environment()

from logclient_backend.detect.shift import ShiftDetector
from logclient_backend.detect.spike import SpikeDetector
from logclient_backend.detect.straggler import StragglerDetector
from tools.bench import series

FACTORS = (1.2, 1.5, 2.0, 3.0, 5.0)
LARGE = 2.0  # from which the bars hold
LATE = 2  # values behind a spike within which it may be found
FALSE, MISSED = 0.05, 0.1  # shares: precision 0.95 at recall 0.9
FOUND_WITHIN = 20  # steps, a shift
FALSE_PER_STEP = 1e-4
NODES, SLOWER, NOISE, STRAGGLER_WITHIN = 48, 0.025, 0.03, 200


def episodes(made: series.Series) -> tuple[list[int], int]:
    """(positions at which the planted spike was found, false episodes)."""
    detector = SpikeDetector()
    hits, false = [], 0
    for at, (step, value) in enumerate(zip(made.steps, made.values, strict=True)):
        spike = detector.add(step, value)
        if spike is None or spike.is_over:
            continue
        if made.onset is not None and made.end is not None and made.onset <= at < made.end + LATE:
            hits.append(at)
        else:
            false += 1
    return hits, false


def judge_spikes(report: harness.Report, chance: random.Random, count: int) -> None:
    for factor in FACTORS:
        delays, false, found = [], 0, 0
        for _ in range(count):
            made = series.loss(chance.getrandbits(64), factor=factor)
            hits, more = episodes(made)
            false += more
            found += bool(hits)
            if hits and made.onset is not None:
                delays.append(hits[0] - made.onset)
        is_judged = factor >= LARGE
        name = f"spikes of {factor:g} x"
        report.figure(
            f"{name}: 1 - precision",
            false / max(1, false + found),
            "share",
            most=FALSE if is_judged else None,
        )
        report.figure(f"{name}: 1 - recall", 1 - found / count, "share", most=MISSED if is_judged else None)
        report.figure(f"{name}: median delay", harness.median(delays or [math.inf]), "values")
    quiet = [episodes(series.loss(chance.getrandbits(64)))[1] for _ in range(count)]
    report.figure("series without a spike: episodes in each", sum(quiet) / count, "episodes")


def judge_shifts(report: harness.Report, chance: random.Random, count: int, steps: int) -> None:
    for change, name in ((140 / 149 - 1, "149 to 140"), (-0.03, "3 % less"), (0.03, "3 % more")):
        delays = []
        for _ in range(count):
            made = series.level(chance.getrandbits(64), change=change)
            detector, delay = ShiftDetector(), math.inf
            for at, (step, value) in enumerate(zip(made.steps, made.values, strict=True)):
                if detector.add(step, value) is not None and made.onset is not None and at >= made.onset:
                    delay = at - made.onset + 1
                    break
            delays.append(delay)
        report.figure(f"throughput {name}: longest delay", max(delays), "steps", most=FOUND_WITHIN)
    detector, false = ShiftDetector(), 0
    for step in range(steps):
        false += detector.add(step, 149.0 * (1 + chance.gauss(0, 0.01))) is not None
    report.figure(
        "stationary noise of 1 %: false shifts a step", false / steps, "per step", most=FALSE_PER_STEP
    )


def judge_stragglers(report: harness.Report, chance: random.Random, count: int) -> None:
    found, false = [], 0
    for _ in range(count):
        odd, detector = chance.randrange(NODES), StragglerDetector()
        at = math.inf
        for step in range(2 * STRAGGLER_WITHIN):
            common = 10 * (1 + 0.1 * math.sin(step / 50))
            took = {
                node: common * (1 + SLOWER * (node == odd)) * (1 + chance.gauss(0, NOISE))
                for node in range(NODES)
            }
            for each in detector.add(step, took):
                if each.rank != odd and not each.is_over:
                    false += 1
                elif each.rank == odd and not each.is_over:
                    at = min(at, step + 1)
        found.append(at)
    report.figure("straggler 2.5 % slow of 48: longest delay", max(found), "steps", most=STRAGGLER_WITHIN)
    report.figure("others named as stragglers", false, "ranks", most=0)


def run(report: harness.Report, given: argparse.Namespace) -> None:
    seed = given.seed or secrets.randbits(32)
    report.notes["seed"] = seed
    chance = random.Random(seed)
    judge_spikes(report, chance, given.series)
    judge_shifts(report, chance, given.series, given.steps)
    judge_stragglers(report, chance, max(1, given.series // 10))
    detector, count = SpikeDetector(), 20_000
    begun = time.process_time()
    for step in range(count):
        detector.add(step, 2 + chance.gauss(0, 0.02))
    report.figure("a value of a spike detector", (time.process_time() - begun) / count * 1e6, "us of CPU")


if __name__ == "__main__":
    options: dict[str, Any] = {
        "series": (200, 200, "series of each kind"),
        "steps": (1_000_000, 200_000, "of stationary noise"),
        "seed": (0, 0, "0: drawn"),
    }
    sys.exit(harness.main(__doc__, run, **options))

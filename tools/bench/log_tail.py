"""p99.9 of log() paced at 1 ms, beside a function that only packs: pairs of 10 s, in turns, in the same loop.

    python tools/bench/log_tail.py [--quick] [--pairs N]

The bar is for the median over the pairs of (p99.9 of log / p99.9 of floor).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness
from tools.bench.probe import Probe

SAMPLES = 10_000  # of one loop: fewer make no p99.9
BAR = 3.0


def run(report: harness.Report, given: argparse.Namespace) -> None:
    floors, logs = [], []
    with harness.place() as place, Probe(place) as probe:
        for name in ("floor", "log"):
            probe.ask("measure", call=name, count=1000, pace_ns=1_000_000)
        for pair in range(given.pairs):
            found = {}
            for name in ("floor", "log") if pair % 2 == 0 else ("log", "floor"):
                found[name] = probe.ask(
                    "measure", call=name, count=SAMPLES, pace_ns=1_000_000, spin=bool(given.spin)
                )
            floors.append(found["floor"])
            logs.append(found["log"])
            harness.say(
                f"pair {pair + 1}: p99.9 floor {found['floor']['p99.9']:.1f} us, log {found['log']['p99.9']:.1f} us"
            )
        status = probe.ask("finish", timeout_s=20.0)
        place.wait_empty()
    for name in ("p50", "p99", "p99.9", "longest"):
        low, high = [found[name] for found in floors], [found[name] for found in logs]
        ratio = harness.median([b / a for a, b in zip(low, high, strict=True)])
        bar = BAR if name == "p99.9" else None
        report.figure(
            f"{name} of log() paced at 1 ms",
            harness.median(high),
            "us",
            floor=harness.median(low),
            ratio=ratio,
            most_ratio=bar,
        )
    report.notes["pairs"] = [
        {
            "floor": low["p99.9"],
            "log": high["p99.9"],
            "waited_ms": round(low["waited_ms"] + high["waited_ms"]),
        }
        for low, high in zip(floors, logs, strict=True)
    ]
    report.notes["forgotten"] = status["forgotten"]


if __name__ == "__main__":
    harness.use_environment()
    sys.exit(
        harness.main(
            __doc__,
            run,
            pairs=(9, 3, "interleaved pairs of 10 s"),
            spin=(0, 0, "1: busy between the calls, not asleep"),
        )
    )

"""What a training process pays, beside the same at another commit: log p50 and p99.9, import, init, finish.

    python tools/bench/against.py --before CHECKOUT [--quick] [--rounds N]
    git worktree add /tmp/before COMMIT      # makes such a checkout

Three arms take turns in each round, in a new order each time: this checkout, this checkout once more, and the one
before. An arm is a fresh process that imports, inits, logs beside a floor (a function that only packs the values), and
finishes. A figure is the median over the rounds of (this / before). The ratio of this checkout to itself is printed
before it: that is noise, and a bar is missed only where the ratio exceeds it by more than that.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

P50, OTHERS = 1.02, 1.10  # bars
FIGURES = {
    "p50": ("p50 of log() of 10 floats, in floors", P50),
    "p99.9": ("p99.9 of log() paced at 1 ms, in floors", OTHERS),
    "import_ms": ("import logclient", OTHERS),
    "init_ms": ("init()", OTHERS),
    "finish_ms": ("finish() of an idle run", OTHERS),
}

ARM = """
import json, sys, time
clock = time.perf_counter
begin = clock()
import logclient
import_ms = 1e3 * (clock() - begin)
begin = clock()
run = logclient.init("bench")
init_ms = 1e3 * (clock() - begin)
from tools.bench.probe import BLOCK, floor, metrics_of, p50_ns, paced, summary
blocks, samples = map(int, sys.argv[1:])
ratios = []
for number in range(blocks + 5):
    start = number * BLOCK
    calls = [("log", run.log), ("floor", floor), ("clock", None)]
    took = {name: p50_ns(call, metrics_of, start) for name, call in (calls if number % 2 else calls[::-1])}
    if number >= 5:
        ratios.append((took["log"] - took["clock"]) / (took["floor"] - took["clock"]))
    time.sleep(0.002)
tail = None
if samples:
    high, low = summary(paced(run.log, samples, 1_000_000)), summary(paced(floor, samples, 1_000_000))
    tail = high["p99.9"] / low["p99.9"]
run.flush(30)
time.sleep(0.3)
begin = clock()
run.finish(30)
finish_ms = 1e3 * (clock() - begin)
print(json.dumps({"p50": sorted(ratios)[len(ratios) // 2], "p99.9": tail, "import_ms": import_ms,
                  "init_ms": init_ms, "finish_ms": finish_ms}))
"""


@contextmanager
def python_of(checkout: Path) -> Iterator[str]:
    """An interpreter that imports `logclient` and the backend of this checkout, and its dependencies from ours."""
    with TemporaryDirectory(prefix="logclient-bench-") as folder:
        venv.create(folder, symlinks=True, with_pip=False)
        paths = [checkout, checkout / "backend", harness.ROOT, harness.packages()]
        own = harness.packages(folder)
        Path(own, "bench.pth").write_text("".join(f"{path}\n" for path in paths))
        yield str(Path(folder, "bin", "python"))


def ask(python: str, blocks: int, samples: int) -> dict[str, float]:
    """One arm: the figures that its process prints."""
    with harness.place() as place:
        words = [python, "-P", "-c", ARM, str(blocks), str(samples)]
        done = subprocess.run(
            words, env=harness.without_path(place.env), stdout=subprocess.PIPE, timeout=300, check=True
        )
        place.wait_empty()
    found: dict[str, float] = json.loads(done.stdout)
    return found


def run(report: harness.Report, given: argparse.Namespace) -> None:
    before = Path(given.before).resolve()
    if not (before / "logclient" / "__init__.py").is_file():
        raise SystemExit(f"--before {given.before!r} is no checkout of this repository.")
    found: dict[str, list[dict[str, float]]] = {"now": [], "again": [], "before": []}
    order, rng = list(found), random.Random(1)
    with python_of(harness.ROOT) as here, python_of(before) as there:
        for number in range(given.rounds + 1):
            rng.shuffle(order)
            samples = given.samples if number and number <= given.tails else 0
            for arm in order:
                took = ask(there if arm == "before" else here, given.blocks, samples)
                if number:  # the first round fills caches
                    found[arm].append(took)
            harness.say(f"round {number} of {given.rounds}, load {os.getloadavg()[0]:.2f}")
    for name, (what, most) in FIGURES.items():
        add(report, found, name, what, most)
    report.notes["arms"] = found


def add(
    report: harness.Report, found: dict[str, list[dict[str, float]]], name: str, what: str, most: float
) -> None:
    """One figure with its ratio to the commit before; its noise is this commit against itself."""
    rows = [
        values
        for arms in zip(found["now"], found["again"], found["before"], strict=True)
        if None not in (values := [arm[name] for arm in arms])
    ]
    if not rows:
        return
    itself = harness.median([now / again for now, again, _ in rows])
    spread = max(itself, 1 / itself)
    # both arms of this checkout against the one before: twice the samples
    ratio = harness.median([value / old for now, again, old in rows for value in (now, again)])
    unit = "ms" if name.endswith("_ms") else "floors"
    value = harness.median([(now + again) / 2 for now, again, _ in rows])
    old = harness.median([old for *_, old in rows])
    report.figure(f"{what}: the commit against itself", value, unit, ratio=itself)
    report.figure(what, value, unit, well=old, ratio=ratio, most_ratio=most * spread)


if __name__ == "__main__":
    harness.use_environment()
    options: dict[str, Any] = {
        "before": ("", "", "checkout of the commit to compare with"),
        "rounds": (25, 9, "rounds of three arms"),
        "tails": (9, 3, "rounds that measure p99.9 too, 40 s each"),
        "samples": (10_000, 10_000, "paced calls of each kind for a p99.9"),
        "blocks": (100, 60, "blocks of 200 calls for a p50"),
    }
    sys.exit(harness.main(__doc__, run, **options))

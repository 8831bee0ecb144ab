"""What a callback costs a training: its pace with and without ours, rows, sockets; and what importing ours costs.

    python tools/bench/callbacks.py [--quick] [--pairs N] [--imports N] [--only NAME]

Steps take 2 ms, metrics are of epochs (fastai's and Keras' callbacks log batches, too), and a collector is 20 ms
away: a proxy holds each byte for half of that. Trainings of 100 steps with and without the callback take turns in one
process per framework (`trainings.py`); the ratio is the median of the pairs'. Imports wait for nobody: their cost is
CPU time, of processes that have the framework already.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

if __name__ == "__main__":
    harness.use_environment()

from tools.collector import collector
from tools.faults.proxy import Proxy

RATIO = 1.01  # time per step
IMPORT_MS = 5.0
AWAY_S = 0.020
NAMES = ("accelerate", "fastai", "keras", "lightning", "transformers")


def ask(python: str, env: dict[str, str], *words: str) -> dict[str, Any]:
    """What `trainings.py` prints."""
    script = str(Path(__file__).with_name("trainings.py"))
    done = subprocess.run([python, script, *words], env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_pace(report: harness.Report, name: str, env: dict[str, str], pairs: int) -> None:
    found = ask(sys.executable, env, name, "--pairs", str(pairs))
    without, ours = ([1e3 * pair[at] for pair in found["pairs"]] for at in (0, 1))
    report.figure(
        f"time per step with the callback, {name}",
        harness.median(ours),
        "ms",
        well=harness.median(without),
        ratio=harness.median([b / a for a, b in zip(without, ours, strict=True)]),
        most_ratio=RATIO,
    )
    report.figure(f"rows on steps with nothing to log, {name}", abs(found["surplus"]), "rows", most=0)
    report.figure(f"sockets in the training process, {name}", len(found["sockets"]), "made", most=0)
    report.notes[name] = {key: found[key] for key in ("server", "refused", "notices")}


def measure_import(report: harness.Report, name: str, python: str, env: dict[str, str], count: int) -> None:
    found = ask(python, env, name, "--imports", str(count))["imports"]
    both = harness.median([1e3 * sum(pair) for pair in found])
    own = harness.median([1e3 * pair[1] for pair in found])
    report.figure(f"import of the integration beside its framework, {name}", own, "ms", most=IMPORT_MS)
    report.figure(f"the same with `import logclient`, {name}", both, "ms")


def run(report: harness.Report, given: argparse.Namespace) -> None:
    names = [name for name in NAMES if given.only in ("", name)]
    if given.imports:
        with harness.place() as place, harness.plain_python() as python:
            for name in names:
                measure_import(report, name, python, place.env, given.imports)
    with (
        harness.place() as place,
        collector() as there,
        Proxy(there.address.removeprefix("grpc://")) as proxy,
    ):
        proxy.be("delayed", seconds=AWAY_S / 2)
        env = {**place.env, **there.env, "LOGCLIENT_SERVER": f"grpc://{proxy.address}"}
        for name in names:
            measure_pace(report, name, env, given.pairs)


if __name__ == "__main__":
    options: dict[str, Any] = {
        "pairs": (50, 8, "pairs of trainings of each framework, 100 steps each"),
        "imports": (31, 11, "processes that time an import; 0: none"),
        "only": ("", "", "one framework"),
    }
    sys.exit(harness.main(__doc__, run, **options))

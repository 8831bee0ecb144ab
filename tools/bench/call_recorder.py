"""Calls beside an empty profile function in Python: of the recorded package, and of another one.

    python tools/bench/call_recorder.py [--quick] [--calls N] [--python PATH]

Blocks of calls take turns: with `sys.setprofile(empty)`, with the recorder on a function of its package, and on one of
another package. The bars are for the medians over the rounds of (recorder / empty), in CPU time of the thread. The
function called is `def step(x, y): z = x * y + x; return z - y`: one that does less is in no program; with a function
that does nothing the same ratios have no bar. `--python` runs it in another interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

ROOT = Path(__file__).resolve().parents[2]
BLOCK = 10_000
BARS = {"recorded": 3.0, "other": 1.2}
MODULE = """
def step(x, y):
    z = x * y + x
    return z - y

def nothing():
    pass

def steps(count):
    for number in range(count):
        step(number, 7)

def nothings(count):
    for number in range(count):
        nothing()
"""
PROGRAM = """
import json, random, sys, time
sys.path[:0] = [{root!r}, {folder!r}]
import logclient, recorded, other

def empty(frame, event, arg):
    pass

def took(loop, count):
    begun = time.thread_time_ns()
    loop(count)
    return (time.thread_time_ns() - begun) / count

def with_empty(loop, count):
    sys.setprofile(empty)
    try:
        return took(loop, count)
    finally:
        sys.setprofile(None)

def with_recorder(loop, count):
    if not run.trace(["recorded"]):
        raise SystemExit(str(run.status()["notices"]))
    try:
        return took(loop, count)
    finally:
        recorder.end(run._session)

run = logclient.init("bench", quiet=True)
from logclient.calls import recorder
kinds = {{
    "empty": lambda name, count: with_empty(getattr(recorded, name), count),
    "recorded": lambda name, count: with_recorder(getattr(recorded, name), count),
    "other": lambda name, count: with_recorder(getattr(other, name), count),
    "none": lambda name, count: took(getattr(recorded, name), count),
}}
found = {{name: {{kind: [] for kind in kinds}} for name in ("steps", "nothings")}}
rng = random.Random(1)
order = [(name, kind) for name in found for kind in kinds]
for _ in range({rounds}):
    rng.shuffle(order)
    for name, kind in order:
        found[name][kind].append(kinds[kind](name, {block}))
run.finish(10)
print(json.dumps([sys.version.split()[0], found]))
"""


def run(report: harness.Report, given: argparse.Namespace) -> None:
    with harness.place() as place:
        harness.enter(place)
        folder = place.runs.parent
        for name in ("recorded", "other"):
            (folder / f"{name}.py").write_text(textwrap.dedent(MODULE))
        program = PROGRAM.format(
            root=str(ROOT), folder=str(folder), rounds=max(10, given.calls // BLOCK), block=BLOCK
        )
        env = {**os.environ, "LOGCLIENT_PYTHON": sys.executable}
        done = subprocess.run(
            [given.python, "-c", program], capture_output=True, text=True, timeout=500, check=True, env=env
        )
        version, found = json.loads(done.stdout.splitlines()[-1])
        report.notes["python"] = version
        for name, what in (("steps", "a small function"), ("nothings", "a function that does nothing")):
            took = found[name]
            for kind in ("recorded", "other", "none"):
                ratios = [one / empty for one, empty in zip(took[kind], took["empty"], strict=True)]
                report.figure(
                    f"a call, {kind}, of {what}",
                    harness.median(took[kind]),
                    "ns",
                    floor=harness.median(took["empty"]),
                    ratio=harness.median(ratios),
                    most_ratio=BARS.get(kind) if name == "steps" else None,
                )
        place.wait_empty()


if __name__ == "__main__":
    harness.use_environment()
    python = (sys.executable, sys.executable, "interpreter that is measured")
    calls = (1_000_000, 200_000, "calls of each kind")
    sys.exit(harness.main(__doc__, run, calls=calls, python=python))

"""What the training process pays: import, init and finish times, memory, threads, sockets, modules.

    python tools/bench/process_cost.py [--quick] [--pairs N]

Import: whole interpreters, `import logclient` beside `pass`, in turns, with the same flags, files in the cache.
The rest is measured by each of a number of fresh processes about itself, before the import and after `init` and
some thousand calls.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

IMPORT_MS, INIT_MS, FINISH_MS = 20.0, 150.0, 500.0
MEMORY_MIB = 4.0  # beside the lanes
FORBIDDEN = (
    "grpc",
    "google",
    "numpy",
    "torch",
    "logclient_backend",
    "logclient_proto",
    "click",
    "rich",
    "zstandard",
)

# One process about itself. The dict it logs is made of plain floats; its own imports come before the first look.
ABOUT_ITSELF = """
import json, os, sys, time

def memory():
    with open("/proc/self/status") as file:
        found = dict(line.split(":", 1) for line in file)
    return {name: int(found[name].split()[0]) << 10 for name in ("VmRSS", "RssShmem")}

def sockets():
    links = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink("/proc/self/fd/" + entry))
        except OSError:
            pass
    return sum(link.startswith("socket:") for link in links)

memory(), sockets(), time.perf_counter()
before = {"memory": memory(), "threads": len(os.listdir("/proc/self/task")), "sockets": sockets()}
modules = set(sys.modules)
import logclient
start = time.perf_counter()
run = logclient.init("bench")
init_s = time.perf_counter() - start
for step in range(3000):
    run.log(step, {"a": step + 0.1, "b": step + 0.2, "c": step + 0.3})
after = {"memory": memory(), "threads": len(os.listdir("/proc/self/task")), "sockets": sockets()}
session = run._session
shm_dir = session.shm_dir if hasattr(session, "shm_dir") else session.place  # of an earlier commit
lanes = sum(entry.stat().st_size for entry in os.scandir(shm_dir.path) if entry.name.endswith(".lanes"))
run.flush(10)
time.sleep(0.3)
start = time.perf_counter()
done = run.finish(10)
finish_s = time.perf_counter() - start
print(json.dumps({"before": before, "after": after, "modules": sorted(set(sys.modules) - modules), "lanes": lanes,
                  "init_s": init_s, "finish_s": finish_s, "done": done}))
"""


def interpreter_s(python: str, code: str, env: dict[str, str]) -> float:
    """Wall time of an interpreter that runs the code, from start to reaping."""
    begin = time.perf_counter()
    pid = os.posix_spawn(python, [python, "-P", "-c", code], env)
    _, status = os.waitpid(pid, 0)
    took = time.perf_counter() - begin
    if status != 0:
        raise RuntimeError(f"python -c {code!r} ended with {os.waitstatus_to_exitcode(status)}.")
    return took


def measure_import(python: str, pairs: int, env: dict[str, str]) -> tuple[list[float], list[float]]:
    """Seconds of bare interpreters and of such that import the client, pair by pair."""
    bare, full = [], []
    for pair in range(-2, pairs):
        codes = ("pass", "import logclient")
        took = {code: interpreter_s(python, code, env) for code in (codes if pair % 2 else codes[::-1])}
        if pair >= 0:
            bare.append(took["pass"])
            full.append(took["import logclient"])
    return bare, full


def about_itself(python: str, env: dict[str, str]) -> dict[str, Any]:
    command = [python, "-P", "-c", ABOUT_ITSELF]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    if not found["done"]:
        raise RuntimeError("finish() of an idle run gave up.")
    return found


def grown(found: dict[str, Any], name: str) -> int:
    return int(found["after"][name] - found["before"][name])


def memory_mib(found: dict[str, Any]) -> float:
    """What is resident more than before, less the lanes."""
    more = found["after"]["memory"]["VmRSS"] - found["before"]["memory"]["VmRSS"]
    return float(more - found["lanes"]) / (1 << 20)


def run(report: harness.Report, given: argparse.Namespace) -> None:
    with harness.place() as place, harness.plain_python() as python:
        bare, full = measure_import(python, given.pairs, place.env)
        over_ms = 1e3 * harness.median([b - a for a, b in zip(bare, full, strict=True)])
        report.figure("import logclient, over a bare interpreter", over_ms, "ms", most=IMPORT_MS)
        report.notes["interpreter_ms"] = {
            "bare": harness.rounded(1e3 * harness.median(bare)),
            "with import": harness.rounded(1e3 * harness.median(full)),
            "least over": harness.rounded(1e3 * (min(full) - min(bare))),
        }
        found = [about_itself(python, place.env) for _ in range(given.processes)]
        place.wait_empty()
    for what, name, bar in (
        ("init()", "init_s", INIT_MS),
        ("finish() of an idle run", "finish_s", FINISH_MS),
    ):
        times = [1e3 * one[name] for one in found]
        report.figure(what, harness.median(times), "ms", most=bar)
        report.figure(f"longest {what}", max(times), "ms")
    report.figure(
        "memory beside the lanes", harness.median([memory_mib(one) for one in found]), "MiB", most=MEMORY_MIB
    )
    report.figure("lanes", found[0]["lanes"] / (1 << 20), "MiB")
    report.figure("threads", max(grown(one, "threads") for one in found), "added", most=0)
    report.figure("sockets", max(grown(one, "sockets") for one in found), "added", most=0)
    modules = set().union(*(one["modules"] for one in found))
    foreign = sorted(name for name in modules if name.partition(".")[0] in FORBIDDEN)
    report.figure("modules of others", len(foreign), "added", most=0)
    report.notes["modules"] = {"added": len(modules), "foreign": foreign}


if __name__ == "__main__":
    harness.use_environment()
    options: dict[str, Any] = {
        "pairs": (60, 25, "interleaved pairs of interpreters"),
        "processes": (15, 7, "processes that measure themselves"),
    }
    sys.exit(harness.main(__doc__, run, **options))

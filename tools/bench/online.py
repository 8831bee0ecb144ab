"""What shipping costs: the agent's CPU, and the training process, whatever state the collector is in.

    python tools/bench/online.py [--quick] [--points N] [--pairs N] [--only KIND]

CPU: user plus system time of all the agent's processes (supervisor, worker, the one that ships) per million points, 10
values a record, from their start until everything is durable, at the collector, and they have left.

The training process: two probes log in turns, one without a server and one with a collector that is live, dead
(nobody listens), stopped (SIGSTOP) or behind a black hole (packets vanish: needs root). Times of `log()` are compared
pair by pair; `init()` and `finish()`, which is given 3 s, are timed in processes of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

if __name__ == "__main__":
    harness.use_environment()

from logclient.shm import layout
from tools.bench.agent_cpu import Load
from tools.bench.probe import Probe
from tools.collector import Collector, collector
from tools.faults import network

VALUES = 10
CPU_S = 1.0  # per million points
RATIO, BEYOND_MS = 1.5, 20.0  # of p99.9, and of the longest call beyond the floor's: as in log_faults
INIT_MS = 150.0
FINISH_S, LATE_S = 3.0, 0.25
SAMPLES = 10_000
RATES = (5_000, 20_000)
KINDS = ("live", "dead", "stopped", "black hole")


class Way(NamedTuple):
    """How a trainer is started, with which variables, so that its collector is of one kind."""

    env: dict[str, str]
    start: Callable[..., subprocess.Popen[str]]


@contextlib.contextmanager
def way(kind: str) -> Iterator[Way]:
    if kind == "black hole":
        with network.Network() as net, harness.place() as place:
            far = Collector(place.runs.parent / "collector", host=net.right)
            try:
                far.start()
                with net.black_hole():
                    yield Way(far.env, net.left.start)
            finally:
                far.kill()
        return
    with collector() as near, contextlib.ExitStack() as stack:
        if kind == "dead":
            near.kill()
        elif kind == "stopped":
            stack.enter_context(near.stopped())
        yield Way(near.env, subprocess.Popen)


def why_not(kind: str) -> str | None:
    return network.why_not() if kind == "black hole" else None


# ---- the training process ---------------------------------------------------------------------------------------


def measure_calls(report: harness.Report, kind: str, there: Way, given: argparse.Namespace) -> None:
    """`log()`, with and without, in turns."""
    loops: dict[str, list[dict[str, float]]] = {"floor": [], "none": [], kind: []}
    with (
        harness.place() as place,
        Probe(place, start=there.start) as none,
        Probe(place, env=there.env, start=there.start) as with_server,
    ):
        for probe in (none, with_server):
            probe.wait_agent(layout.AGENT_SUPERVISOR, layout.AGENT_WORKER)
            probe.ask("measure", call="log", count=500, pace_ns=100_000)
        for _ in range(given.pairs):
            for name, probe, call in (
                ("floor", none, "floor"),
                ("none", none, "log"),
                (kind, with_server, "log"),
            ):
                found = probe.ask("measure", call=call, count=SAMPLES, pace_ns=int(given.pace_us * 1000))
                loops[name].append(found)
        status = with_server.ask("status")
        acked = {
            "server": status["server"]["state"],
            "acked": status["acked"],
            "accepted": status["accepted"],
        }
        for probe in (none, with_server):
            probe.ask("finish", timeout_s=FINISH_S)
    for quantile in ("p50", "p99.9"):
        beside = [one[quantile] for one in loops["none"]]
        values = [one[quantile] for one in loops[kind]]
        report.figure(
            f"{quantile} of log(), collector: {kind}",
            harness.median(values),
            "us",
            well=harness.median(beside),
            ratio=harness.median([b / a for a, b in zip(beside, values, strict=True)]),
            most_ratio=RATIO,
        )
    longest = {name: max(one["longest"] for one in found) / 1e3 for name, found in loops.items()}
    report.figure(
        f"longest call beyond the floor's, collector: {kind}",
        longest[kind] - longest["floor"],
        "ms",
        most=BEYOND_MS,
    )
    report.notes[kind] = {
        **acked,
        "longest_ms": {name: harness.rounded(value) for name, value in longest.items()},
    }


def measure_ends(report: harness.Report, kind: str, there: Way, given: argparse.Namespace) -> None:
    """`init()` and `finish()`, in fresh processes, in turns with such that have no server."""
    took: dict[str, list[float]] = {"init": [], "finish": [], "init without": []}
    with harness.place() as place:
        for _ in range(given.processes):
            with Probe(place, start=there.start) as bare:
                took["init without"].append(bare.init_ms)
                bare.ask("finish", timeout_s=FINISH_S)
            with Probe(place, env=there.env, start=there.start) as probe:
                probe.ask("burst", count=1000)
                took["init"].append(probe.init_ms)
                took["finish"].append(probe.ask("finish", timeout_s=FINISH_S)["finish_ms"] / 1e3)
    well = harness.median(took["init without"])
    report.figure(f"init(), collector: {kind}", harness.median(took["init"]), "ms", well=well, most=INIT_MS)
    beside = harness.median([b / a for a, b in zip(took["init without"], took["init"], strict=True)])
    report.figure(
        f"init() beside one without, collector: {kind}", beside, "x", ratio=beside, most_ratio=RATIO
    )
    report.figure(f"longest finish(), collector: {kind}", max(took["finish"]), "s", most=FINISH_S + LATE_S)


# ---- the agent -----------------------------------------------------------------------------------------------------


def measure_cpu(report: harness.Report, points: int) -> None:
    with collector() as there, harness.plain_python() as python:
        harness.adopt_orphans()
        load = functools.partial(Load, python, env=there.env)
        bare = load(10, None)
        bare.run()
        report.figure("agent CPU to start, ship next to nothing, and end", bare.cpu_s, "s")
        for rate in RATES:
            one = load(points // VALUES, rate)
            before = there.cpu_s
            one.run()
            stored = one.status["durable"] * VALUES / 1e6
            name = f"at {rate:,} records/s"
            report.figure(
                f"agent CPU per million points shipped, {name}", one.cpu_s / stored, "s", most=CPU_S
            )
            report.figure(
                f"the same without its start and end, {name}", (one.cpu_s - bare.cpu_s) / stored, "s"
            )
            report.figure(f"collector CPU per million points, {name}", (there.cpu_s - before) / stored, "s")
            report.notes[name] = {"stored": one.status["durable"], "acked at finish": one.status["acked"]}


def run(report: harness.Report, given: argparse.Namespace) -> None:
    left_out = {}
    if not given.only or given.only == "cpu":
        measure_cpu(report, int(given.points))
    for kind in KINDS:
        if given.only and given.only != kind:
            continue
        if reason := why_not(kind):
            left_out[kind] = reason
            continue
        with way(kind) as there:
            measure_calls(report, kind, there, given)
            measure_ends(report, kind, there, given)
    report.notes["left_out"] = left_out


if __name__ == "__main__":
    options: dict[str, Any] = {
        "points": (10e6, 1e6, "points of each load"),
        "pairs": (9, 5, "pairs of loops of each kind"),
        "pace_us": (1000.0, 100.0, "us between calls"),
        "processes": (15, 3, "processes that time init and finish"),
        "only": ("", "", "cpu, or one kind of collector"),
    }
    sys.exit(harness.main(__doc__, run, **options))

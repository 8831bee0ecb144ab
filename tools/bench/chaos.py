"""The chaos run: trainers ship to a collector on another host while both and the network between them are struck.

    python tools/bench/chaos.py [--quick] [--points N] [--strikes N] [--seed N]

Eight processes of one run (so eight streams, one agent) log records of 10 values at a steady rate. Meanwhile the
collector is killed, the agent's worker is killed, and the network is cut (silence, resets, a pulled cable, in turns),
each so many times, evenly mixed over the whole length. Then there is peace. The bars: what the collector has then is
what was logged, to the record, the value and the step, and nothing is there twice. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

if __name__ == "__main__":
    harness.use_environment()

from logclient.shm import layout
from tests.process.disturbed import Trainer
from tests.process.hosts import at_collector
from tools.collector import Collector
from tools.faults import network, processes

STREAMS, VALUES = 8, 10
PEACE_S = 300.0  # for all that is left to get across
CUT_S = (0.5, 2.0)


class Chaos:
    """One run, its collector, and what strikes them."""

    def __init__(
        self, net: network.Network, collector: Collector, place: harness.Place, records: int, rate: float
    ) -> None:
        self.net = net
        self.collector = collector
        self.counts = {"collector killed": 0, "worker killed": 0, "network cut": 0}
        env = {**place.env, **collector.env, "LOGCLIENT_STALL_S": "30", "LOGCLIENT_START_TIMEOUT_S": "60"}
        plan = {
            "records": records,
            "rate": rate,
            "values": VALUES,
            "init": {"id": "chaos"},
            "finish_timeout_s": 60.0,
        }
        self.total = records * STREAMS
        start = net.left.start
        self.trainers = [Trainer(place.runs.parent, env, start, **plan) for _ in range(STREAMS)]

    def end(self) -> None:
        for trainer in self.trainers:
            trainer.process.kill()
            trainer.process.communicate()

    @property
    def share(self) -> float:
        """Of all records, logged by now."""
        return sum(trainer.logged for trainer in self.trainers) / self.total

    def strike(self, what: str, chance: random.Random) -> None:
        """Once."""
        if what == "collector killed":
            self.collector.kill()
            time.sleep(chance.uniform(0, 1))
            self.collector.start()
        elif what == "worker killed":
            pid = self.trainers[0].word(layout.AGENT_WORKER)
            if not pid or not processes.send(pid, 9):
                raise RuntimeError("There was no worker to kill.")
        else:
            cuts: list[Callable[[], contextlib.AbstractContextManager[None]]]
            cuts = [self.net.black_hole, self.net.reset, self.net.cable_out]
            with cuts[self.counts[what] % len(cuts)]():
                time.sleep(chance.uniform(*CUT_S))
        self.counts[what] += 1


def run(report: harness.Report, given: argparse.Namespace) -> None:
    if reason := network.why_not():
        raise SystemExit(f"chaos: {reason}")
    chance = random.Random(given.seed)
    records = int(given.points) // VALUES // STREAMS
    blows = [
        what for what in ("collector killed", "worker killed", "network cut") for _ in range(given.strikes)
    ]
    chance.shuffle(blows)
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(network.Network())
        place = stack.enter_context(harness.place())
        collector = Collector(place.runs.parent / "collector", host=net.right)
        stack.callback(collector.kill)
        collector.start()
        chaos = Chaos(net, collector, place, records, given.rate)
        stack.callback(chaos.end)
        begin = time.monotonic()
        for number, what in enumerate(blows):
            # spread over what is logged, not over the time: it is the same run on a slow machine
            while chaos.share < (number + 1) / (len(blows) + 2):
                time.sleep(0.05)
            harness.say(f"{chaos.share:4.0%} logged, {time.monotonic() - begin:4.0f} s: {what}")
            chaos.strike(what, chance)
        statuses = [trainer.end(PEACE_S + 10 * records / given.rate) for trainer in chaos.trainers]
        logged_s = time.monotonic() - begin
        shm_dir = Path(chaos.trainers[0].shm_dir)
        processes.wait_until(lambda: not shm_dir.exists(), PEACE_S, 0.1, "the agent has shipped all and left")
        all_s = time.monotonic() - begin
        code = collector.stop()
        judge(report, chaos, statuses, code)
        report.notes["strikes"] = chaos.counts
        report.notes["seconds"] = {
            "until all was logged": round(logged_s, 1),
            "until all was there": round(all_s, 1),
        }


def judge(report: harness.Report, chaos: Chaos, statuses: list[dict[str, Any]], code: int) -> None:
    """Compare what was logged with what is there."""
    logged = sum(trainer.logged for trainer in chaos.trainers)
    found = at_collector(chaos.collector.data, "chaos")
    twice = sum(len(seqs) - len(set(seqs)) for seqs in found.seqs.values())
    # every trainer logs the steps from 0 on, in one stream
    wrong_steps = sum(
        sum(a != b for a, b in zip(sorted(steps), range(len(steps)), strict=True))
        for steps in found.steps.values()
    )
    report.figure("records logged", logged, "records")
    report.figure("streams at the collector", len(found.seqs), "streams")
    report.figure("records missing at the collector", logged - found.records, "records", most=0)
    report.figure("records more than logged", found.records - logged, "records", most=0)
    report.figure("records there twice", twice, "records", most=0)
    report.figure("records with other values", found.wrong, "records", most=0)
    report.figure("records with other steps", wrong_steps, "records", most=0)
    report.figure("forgotten or damaged", found.forgotten + found.damaged, "records", most=0)
    refused = sum(status["refused"] + status["left_out"] for status in statuses)
    report.figure("refused or left out by log()", refused, "records", most=0)
    report.figure("exit code of the collector in the end", code, "", most=0)


if __name__ == "__main__":
    options: dict[str, Any] = {
        "points": (10e6, 500e3, "points in all"),
        "strikes": (20, 2, "of each kind"),
        "rate": (500.0, 400.0, "records a second and process"),
        "seed": (1, 1, "of what strikes when"),
    }
    sys.exit(harness.main(__doc__, run, **options))

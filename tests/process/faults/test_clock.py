"""The wall clock is set forth and back while a run goes on: nothing is lost, and the newest stays the newest (1.1-1.6).

The clock is replaced for real in the trainer and in its agent (`clocks.py`). The bar's figure is printed by

    pytest tests/process/faults/test_clock.py -k random --pace 1 -s
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient_backend.runs import contents
from tests.conftest import Pace
from tools.collector import Collector

from .. import scripts
from ..agents import WORKER, checked, kill, successor
from ..clocks import HOUR_NS, SteppingClock
from ..disturbed import ROOMY, Trainer, stored, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("patient")]

DAY_NS = 24 * HOUR_NS
SMALL = {**ROOMY, "LOGCLIENT_SEGMENT_BYTES": "65536", "LOGCLIENT_SEAL_S": "0.5"}

ATTEMPT = """
import sys, time
import logclient
attempt, how = float(sys.argv[1]), sys.argv[2]
run = logclient.init(id="x", config={"attempt": attempt})
step, end = 0, time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    run.log(step, {"a": attempt, **{f"m{i}": step + i / 16 for i in range(10)}})
    step += 1
    time.sleep(0.0005)
run.summary["best"] = attempt
print(step, run.flush(30), flush=True)
if how == "kill":
    import os
    os.kill(os.getpid(), 9)
run.finish()
"""


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> list[SteppingClock]:
    """Of two hosts."""
    return [SteppingClock(tmp_path_factory.mktemp(f"host{number}")) for number in range(2)]


@pytest.fixture
def clock(clocks: list[SteppingClock]) -> Iterator[SteppingClock]:
    yield clocks[0]
    clocks[0].offset_ns = clocks[1].offset_ns = 0


def sync(collector: Collector, run_dir: Path) -> dict[str, Any]:
    """What `logclient sync` says as JSON."""
    words = [sys.executable, "-m", "logclient_backend", "sync", str(run_dir), "--json"]
    env = scripts.environment(LOGCLIENT_TOKEN=collector.token)
    ended = scripts.run_words(run_dir.parent, [*words, "--server", collector.address], 120, env=env)
    assert ended.code == 0, ended
    told: dict[str, Any] = json.loads(ended.out)
    return told


def test_a_budget_keeps_the_newest_after_a_step_back(
    run_dir: Path, tmp_path: Path, clock: SteppingClock
) -> None:
    """1.2: the clock goes back by an hour in mid-run; what was logged last is what the budget keeps."""
    settings = {**SMALL, "LOGCLIENT_DISK_BYTES": "20000"}
    trainer = Trainer(tmp_path, settings, start=clock.popen(), rate=4_000, until_told=True)
    wait_until(lambda: trainer.logged > 8_000, 60, "it logs")
    clock.offset_ns = -HOUR_NS
    before = trainer.logged
    wait_until(lambda: trainer.logged > before + 24_000, 60, "it logs on")
    status = trainer.tell_to_end()
    trainer.wait_gone()
    found = checked(run_dir, status["accepted"], lost=None)
    steps = sorted(step for steps in found.steps.values() for step in steps)
    assert found.forgotten > 0, "the budget was never reached"
    assert steps[-1] == status["accepted"] - 1
    assert steps == list(range(steps[0], steps[-1] + 1)), "the oldest went, and nothing between"


def test_a_killed_worker_costs_nothing_after_a_step_back(
    run_dir: Path, tmp_path: Path, clock: SteppingClock
) -> None:
    """1.3: segments that are staged on both sides of a step are one log to the successor."""
    settings = {**SMALL, "LOGCLIENT_SYNC_S": "0.05"}
    trainer = Trainer(tmp_path, settings, start=clock.popen(), rate=8_000, until_told=True)
    for number in range(4):
        logged = trainer.logged
        wait_until(lambda: trainer.logged > logged + 2_000, 60, "it logs")  # noqa: B023
        clock.offset_ns -= HOUR_NS
        worker = trainer.agent_pid(WORKER)
        if number % 2:
            kill(worker)
            successor(trainer, WORKER, worker)
    status = trainer.tell_to_end()
    trainer.wait_gone()
    checked(run_dir, status["accepted"])


def test_a_clock_before_1970(run_dir: Path, tmp_path: Path, clock: SteppingClock) -> None:
    """1.5: `init` raised; now all is stored, and every command shows the run."""
    import time

    clock.offset_ns = -time.time_ns() - 5 * HOUR_NS
    trainer = Trainer(tmp_path, start=clock.popen(), records=500)
    status = trainer.end()
    trainer.wait_gone()
    checked(run_dir, status["accepted"])
    for words in (["ls"], ["show"], ["export", trainer.run_id], ["wal", "verify", trainer.run_id]):
        ended = scripts.run_words(tmp_path, [clock.python, "-m", "logclient_backend", *words])
        assert ended.code == 0, ended


@pytest.mark.parametrize("how", ["kill", "finish"])
def test_the_second_attempt_is_the_newest_on_a_host_whose_clock_is_behind(
    run_dir: Path, tmp_path: Path, clocks: list[SteppingClock], clock: SteppingClock, how: str
) -> None:
    """1.4: attempt 1 on a host ten minutes ahead; state, config, summary and points are those of attempt 2."""
    clock.offset_ns = HOUR_NS // 6
    for number, host in enumerate(clocks, 1):
        script = scripts.write(tmp_path, ATTEMPT)
        ended = "finish" if number == 2 else how
        words = [host.python, str(script), str(number), ended, "0.3"]
        scripts.run_words(tmp_path, words)
        scripts.wait_gone()
    newest_wins(logclient.read(run_dir)["x"])
    shown = scripts.run_words(tmp_path, [sys.executable, "-m", "logclient_backend", "show", "x"])
    assert "never met" not in shown.out


def test_attempts_whose_folders_never_met_are_told_to_be_ordered_by_time(
    run_dir: Path, tmp_path: Path, clock: SteppingClock
) -> None:
    """Their node folders were made in two run folders, and copied together later."""
    elsewhere = tmp_path / "elsewhere"
    for number, where in ((1, run_dir), (2, elsewhere)):
        script = scripts.write(tmp_path, ATTEMPT)
        words = [clock.python, str(script), str(number), "finish", "0.2"]
        scripts.run_words(tmp_path, words, env=scripts.environment(LOGCLIENT_DIR=str(where)))
        scripts.wait_gone()
    (node,) = (path for path in (elsewhere / "x").iterdir() if path.is_dir())
    node.rename(run_dir / "x" / node.name)
    shown = scripts.run_words(tmp_path, [sys.executable, "-m", "logclient_backend", "show", "x"])
    assert "attempts 1 and 2 lie in folders that never met" in shown.out
    newest_wins(logclient.read(run_dir)["x"])


def newest_wins(run: Any, newest: float = 2.0) -> None:
    """What is shown of the run is what its newest attempt said."""
    assert run.state == "finished", run
    assert run.about["attempts"] == 2
    assert run.config["attempt"] == newest
    assert run.summary["best"] == newest
    own = run.series("a")
    assert set(own.value[own.attempt == 2].tolist()) == {newest}
    assert own.value[-1] == newest or own.step[-1] > own.step[own.attempt == 2].max()


def test_a_clock_that_is_set_at_random(
    run_dir: Path, tmp_path: Path, clocks: list[SteppingClock], clock: SteppingClock, pace: Pace
) -> None:
    """20 steps of up to a day a run, workers killed, a disk budget, two attempts, sync in between.

    Nothing is damaged or lost uncounted; the newest documents and the newest attempt win, in the folder and there.
    """
    collector = Collector(tmp_path / "collector")
    collector.start()
    try:
        rounds, damaged, uncounted, trimmed = pace.count(50, least=2), 0, 0, 0
        for number in range(rounds):
            seed = random.Random(number)
            folder = run_dir / str(number)
            budget_bytes = (20_000, 1 << 30)[number % 2]
            lost = one_round(folder, tmp_path / f"round{number}", clocks, collector, seed, budget_bytes)
            damaged, uncounted, trimmed = damaged + lost[0], uncounted + lost[1], trimmed + lost[2]
        print(
            f"{rounds} runs: {damaged} damaged, {uncounted} lost uncounted, {trimmed:,} trimmed by budgets; "
            f"the newest documents and attempt won in each"
        )
        assert (damaged, uncounted) == (0, 0)
        assert trimmed > 0, "no budget was ever reached"
    finally:
        collector.stop()


def one_round(
    folder: Path,
    work: Path,
    clocks: list[SteppingClock],
    collector: Collector,
    seed: random.Random,
    budget_bytes: int,
) -> tuple[int, int, int]:
    """Two attempts of one run; how many records are damaged, how many nobody counted, and how many were trimmed."""
    settings = {**SMALL, "LOGCLIENT_DIR": str(folder), "LOGCLIENT_MODE": "offline"}
    settings["LOGCLIENT_DISK_BYTES"] = str(budget_bytes)
    run_id, accepted = f"r{seed.getrandbits(40):x}", 0
    for attempt, host in enumerate(clocks, 1):
        host.offset_ns = seed.randrange(-DAY_NS, DAY_NS)
        trainer = Trainer(
            work,
            settings,
            start=host.popen(),
            rate=4_000,
            until_told=True,
            init={"id": run_id, "config": {"attempt": attempt}, "tags": [f"of {attempt}"]},
        )
        for step in range(10):
            logged = trainer.logged
            host.offset_ns = seed.randrange(-DAY_NS, DAY_NS)
            if seed.random() < 0.3:
                worker = trainer.agent_pid(WORKER)
                kill(worker)
                successor(trainer, WORKER, worker)
            if step == seed.randrange(10):
                sync(collector, folder)
            wait_until(lambda: trainer.logged > logged + 300, 60, "it logs on")  # noqa: B023
        accepted += trainer.tell_to_end()["accepted"]
        trainer.wait_gone()
        told = sync(collector, folder)
        assert {upload["outcome"] for upload in told["uploads"]} <= {"sent", "already there"}, told
    assert stored(folder).wrong == 0
    run = scripts.the_run(folder)
    counts = contents.read(run).counts(run)
    for read in (
        logclient.read(folder)[run_id],
        logclient.read(collector.url, token=collector.token)[run_id],
    ):
        assert (read.state, read.about["attempts"], read.config["attempt"]) == ("finished", 2, 2), read.about
        assert list(read.tags) == ["of 2"]
    uncounted = accepted - counts["stored"] - counts["forgotten"] - counts["damaged"]
    return counts["damaged"], uncounted, counts["trimmed"]

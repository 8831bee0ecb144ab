"""Part 6, preemption: SIGTERM with grace, SIGINT once and twice, a whole process group, `finish` inside a handler."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Pace
from tools.faults import frozen
from tools.faults.frozen import LoopExt4

from .. import scripts
from ..disturbed import wait_until
from ..recipes import recipe

pytestmark = pytest.mark.timeout(120)

LEAVES = """
import os, signal, sys, time
import logclient
number, way, pause = sys.argv[1], sys.argv[2], float(sys.argv[3])
truth = os.open(f"truth-{number}", os.O_CREAT | os.O_WRONLY)
def leave(signum, frame):
    logclient.log(1_000_000, {"left": 1.0})
    logclient.finish()
    (os._exit if way == "_exit" else sys.exit)(7)
signal.signal(signal.SIGTERM, leave)
os.write(truth, b"%20d" % 0)
logclient.init(project="preemption", id=f"trial-{number}", quiet=True)
step = 0
while True:
    logclient.log(step, {"loss": step / 2})
    step += 1
    os.pwrite(truth, b"%20d" % step, 0)
    if pause:
        time.sleep(pause)
"""
AT_ONCE = 4
IN_TIME_S = 30.0  # which SLURM gives by default; `finish` takes a third of it at most
WHOLE_TRIAL_S = 120.0


class Trial:
    """One trainer that gets SIGTERM at a random moment: in `init`, or while it logs."""

    def __init__(self, where: Path, number: int, chance: random.Random) -> None:
        self.number = number
        self.truth = where / f"truth-{number}"
        way, pause = chance.choice(("exit", "_exit")), chance.choice(("0", "0", "0.001", "0.02"))
        self.is_flat_out = pause == "0"
        self._begun = time.monotonic()
        self._least_logged = chance.choice((0, 1, 1, 1))
        self._moments = [chance.uniform(0, 0.3)]
        self.is_repeated = chance.random() < 0.25
        if self.is_repeated:  # somebody is impatient
            self._moments.append(self._moments[0] + chance.uniform(0, 0.1))
        self._ready = self._sent = 0.0
        self.took_s = 0.0
        self.said = ""
        self.process = subprocess.Popen(
            [sys.executable, "train.py", str(number), way, pause],
            cwd=where,
            env=scripts.environment(LOGCLIENT_FINISH_TIMEOUT_S="10"),
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def logged(self) -> int:
        """Calls of log() that had returned."""
        return int(self.truth.read_bytes() or 0) if self.truth.exists() else -1

    def look(self) -> bool:
        """Is it over?"""
        now = time.monotonic()
        assert now - self._begun < WHOLE_TRIAL_S, f"trial {self.number} hangs"
        if not self._ready and self.logged >= self._least_logged:
            self._ready = now
        while self._ready and self._moments and now - self._ready >= self._moments[0]:
            self._moments.pop(0)
            self._sent = self._sent or now
            self.process.send_signal(signal.SIGTERM)
        if self.process.poll() is None:
            return False
        self.took_s = now - self._sent
        self.said = self.process.communicate()[1]
        return True


def carry_out(where: Path, count: int, chance: random.Random) -> list[Trial]:
    """Run trials, a few at a time; those that hang are killed."""
    scripts.write(where, LEAVES)
    waiting = list(range(count))
    going: list[Trial] = []
    over: list[Trial] = []
    try:
        while waiting or going:
            while waiting and len(going) < AT_ONCE:
                going.append(Trial(where, waiting.pop(), chance))
            over += [trial for trial in going if trial.look()]
            going = [trial for trial in going if trial not in over]
            time.sleep(0.005)
    finally:
        for trial in going:
            trial.process.kill()
            trial.process.communicate()
    return over


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_handler_that_logs_and_finishes(tmp_path: Path, run_dir: Path, pace: Pace) -> None:
    """SIGTERM at 1,000 random moments, in `init` too: all end in time and right; each row is stored or counted."""
    trials = carry_out(tmp_path, pace.count(1_000, least=20), random.Random(6))
    # what ended in `init`, before it had an agent, goes with the next run on this node, or like this
    scripts.run_words(tmp_path, [sys.executable, "-m", "logclient_backend", "recover"], 120)
    scripts.wait_gone(120)
    found = {run.id: run for run in scripts.runs(run_dir)}
    for trial in trials:
        # an interpreter that is ending has no handlers any more, so there a second signal kills
        codes = (7, -signal.SIGTERM) if trial.is_repeated else (7,)
        assert trial.process.returncode in codes, (trial.number, trial.said)
        assert "Traceback" not in trial.said, trial.said
        assert trial.took_s < IN_TIME_S, trial.number
        if trial.logged > 0:
            run = found[f"trial-{trial.number}"]
            stored = scripts.points(run)
            counts = run.counts()
            missing = set(range(trial.logged)) - {step for step, _ in stored["loss"]}
            assert len(missing) == counts["forgotten"], (trial.number, counts)
            assert not missing or trial.is_flat_out, (trial.number, counts)  # faster than any agent drains
            assert (1_000_000, 1.0) in stored["left"], trial.number
            # a second signal may end the program in the middle of what `finish` says
            assert run.state.name == "finished" or trial.is_repeated, (trial.number, run.state)
            assert counts["damaged"] == 0, trial.number


def test_page_says_how_a_handler_tells_of_preemption(tmp_path: Path, run_dir: Path) -> None:
    """The recipe of the page: the run is preempted, the exit code the handler's."""
    given = recipe("Signals")
    given.write(tmp_path)
    (name,) = given.files
    process = subprocess.Popen([sys.executable, name], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: scripts.runs(run_dir) and scripts.steps(scripts.the_run(run_dir)), 60, "it logs")
        process.send_signal(signal.SIGTERM)
        ended = scripts.end(process, 60)
    finally:
        process.kill()
    assert ended.code == 7, ended
    scripts.wait_gone(60)
    found = scripts.the_run(run_dir)
    assert (found.state.name, found.state.cause) == ("preempted", "as it said itself")
    assert len(scripts.points(found)["left at"]) == 1


GROUP = """
import os, sys, time
import logclient
run = logclient.init(project="group", quiet=True)
for child in range(2):
    if os.fork() == 0:
        break
else:
    child = 2
truth = os.open(f"truth-{child}", os.O_CREAT | os.O_WRONLY)
step = 0
while True:
    run.log(10 * step + child, {f"of {child}": 1.0})
    step += 1
    os.pwrite(truth, b"%20d" % step, 0)
    time.sleep(0.001)
"""


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT] * 2, [signal.SIGTERM, signal.SIGKILL]])
def test_signal_to_the_whole_group(tmp_path: Path, run_dir: Path, signals: list[signal.Signals]) -> None:
    """Trainer and children get it at once, as from a terminal or a scheduler; the agent does not, and stores all."""
    process = scripts.start(tmp_path, GROUP, start_new_session=True)
    truths = [tmp_path / f"truth-{child}" for child in range(3)]
    try:
        wait_until(lambda: all(path.exists() and path.stat().st_size for path in truths), 60, "all log")
        for number in signals:
            os.killpg(process.pid, number)
        process.communicate(timeout=60)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    scripts.wait_gone(60)
    found = scripts.the_run(run_dir)
    stored = scripts.points(found)
    for child, path in enumerate(truths):
        logged = [10 * step + child for step in range(int(path.read_text()))]
        assert {step for step, _ in stored[f"of {child}"]} >= set(logged)
    assert found.state.name in ("terminated", "killed"), found.state
    assert found.state.signal in signals


@pytest.mark.root
@pytest.mark.skipif(frozen.why_not() is not None, reason=frozen.why_not() or "")
@pytest.mark.parametrize("way", ["exit", "_exit"])
def test_handler_finishes_while_the_disk_is_frozen(tmp_path: Path, run_dir: Path, way: str) -> None:
    """`finish` in the handler gives up at its deadline, the exit code is the handler's; after the thaw all is there."""
    with LoopExt4(16) as disk:
        runs = disk.path / "runs"
        scripts.write(tmp_path, LEAVES)
        process = subprocess.Popen(
            [sys.executable, "train.py", "0", way, "0.001"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            env=scripts.environment(LOGCLIENT_DIR=str(runs), LOGCLIENT_FINISH_TIMEOUT_S="2"),
        )
        try:
            truth = tmp_path / "truth-0"
            wait_until(lambda: truth.exists() and int(truth.read_text() or 0), 60, "it logs")
            with disk.frozen():
                process.send_signal(signal.SIGTERM)
                begun = time.monotonic()
                process.communicate(timeout=60)
                assert time.monotonic() - begun < IN_TIME_S
            assert process.returncode == 7
        finally:
            process.kill()
        scripts.wait_gone(60)
        stored = scripts.points(scripts.the_run(runs))
        assert {step for step, _ in stored["loss"]} >= set(range(int(truth.read_text())))
        assert (1_000_000, 1.0) in stored["left"]

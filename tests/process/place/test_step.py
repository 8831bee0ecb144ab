"""A scheduler's step waits for what a trainer left, or kills it: it is not held open, and nothing is lost unseen."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.faults import frozen

from .. import containers, scripts
from ..containers import COUNTED, Step, Truth
from ..disturbed import wait_until
from ..recipes import recipe

pytestmark = [pytest.mark.root, pytest.mark.slow]

LEAVE = {"LOGCLIENT_LEAVE_S": "2"}
KILLED = COUNTED + "os.kill(os.getpid(), 9)\n"


@pytest.fixture
def step(run_dir: Path, needs_root: None) -> Iterator[Step]:
    with Step() as step:
        yield step


def runs() -> Path:
    return Path(os.environ["LOGCLIENT_DIR"])


@pytest.mark.timeout(300)
def test_step_that_waits_ends_when_all_is_stored(step: Step, tmp_path: Path) -> None:
    """The trainer is SIGKILLed; its agent stores what is left, tells how it ended, and the step is over."""
    trainer = step.start(tmp_path, KILLED, "truth", "0.6")
    assert scripts.end(trainer, 150).code == -signal.SIGKILL
    step.wait(120)
    assert len(containers.times(runs())) == Truth(tmp_path / "truth").logged > 10
    assert scripts.the_run(runs()).state.name == "killed"
    scripts.wait_gone(120)


@pytest.mark.timeout(300)
def test_step_that_kills_loses_half_a_second_at_most(step: Step, tmp_path: Path) -> None:
    """What is left when the trainer ends is killed as a whole; what the mount still holds `recover` stores."""
    trainer = step.start(tmp_path, COUNTED + "print(time.time(), flush=True)\nos._exit(0)\n", "truth", "1.5")
    ended = scripts.end(trainer, 150)
    step.kill()
    step.wait(120)
    stored, logged = containers.times(runs()), Truth(tmp_path / "truth").logged
    print(f"the newest record stored was {float(ended.out) - stored[-1]:.2f} s old at the trainer's end")
    assert float(ended.out) - stored[-1] < 8.5, "0.5 s, on a machine that does nothing else"
    containers.recover()
    assert len(containers.times(runs())) == logged
    scripts.wait_gone(120)


@pytest.mark.timeout(300)
def test_step_that_kills_after_finish_loses_nothing(step: Step, tmp_path: Path) -> None:
    """`finish` and the exit hook return when all is in its final place: with the kill nothing is lost."""
    for number, end in enumerate(("assert run.finish(120)\nos._exit(0)\n", "")):
        truth = f"truth{number}"
        trainer = step.start(tmp_path, COUNTED + end, truth, "0.3", LOGCLIENT_DIR=str(runs() / str(number)))
        assert scripts.end(trainer, 150).code == 0
        step.kill()
        step.wait(120)
        assert len(containers.times(runs() / str(number))) == Truth(tmp_path / truth).logged > 10
        assert scripts.the_run(runs() / str(number)).state.name == "finished"


@pytest.mark.timeout(300)
def test_disk_that_takes_nothing_does_not_hold_a_step_open(
    step: Step, disk: frozen.LoopExt4, tmp_path: Path
) -> None:
    """Full disk: after `leave_s` the agent leaves all in shared memory for `recover`; outside a step it stays."""
    trainer = step.start(tmp_path, KILLED, "truth", "4", **LEAVE)
    truth = Truth(tmp_path / "truth")
    wait_until(lambda: truth.logged > 300, 60, "the trainer logs")
    disk.fill()
    assert scripts.end(trainer, 150).code == -signal.SIGKILL
    step.wait(120)
    (shm_dir,) = scripts.shm_dirs()
    stays = scripts.start(tmp_path, KILLED, "other", "0.3", env=scripts.environment(**LEAVE))
    assert scripts.end(stays, 150).code == -signal.SIGKILL
    time.sleep(4)
    assert scripts.agents(), "no step: the agent goes on trying"
    disk.free()
    containers.recover()
    wait_until(lambda: not shm_dir.exists(), 30, "all is stored")
    steps = sorted(len(scripts.steps(found, "time")) for found in scripts.runs(runs()))
    assert steps == sorted((truth.logged, Truth(tmp_path / "other").logged))
    scripts.wait_gone(120)


@pytest.mark.timeout(300)
def test_only_a_process_in_state_d_outstays_the_step(
    step: Step, disk: frozen.LoopExt4, tmp_path: Path
) -> None:
    """Frozen disk: the agent leaves after `leave_s`, but for what the kernel holds in it; `recover` finds all."""
    trainer = step.start(tmp_path, KILLED, "truth", "3", **LEAVE)
    truth = Truth(tmp_path / "truth")
    wait_until(lambda: truth.logged > 300, 60, "the trainer logs")
    with disk.frozen(150):
        assert scripts.end(trainer, 150).code == -signal.SIGKILL
        wait_until(lambda: step.states() == ["D"], 60, "supervisor and worker leave")
        time.sleep(4)
        assert step.states() == ["D"], "nobody came back, either"
        assert scripts.shm_dirs(), "what is not stored stays in shared memory"
    step.wait(120)
    containers.recover()
    assert len(containers.times(runs())) == truth.logged
    scripts.wait_gone(120)


@pytest.mark.timeout(300)
def test_recipe_for_a_step_that_kills(step: Step, tmp_path: Path) -> None:
    """The page's recipe: where the block ends everything is on disk, though the step is killed at once."""
    found = recipe("Scheduler steps")
    trainer = step.start(tmp_path, found.files["train.py"], LOGCLIENT_QUIET="1")
    assert scripts.end(trainer, 150).code == 0
    step.kill()
    step.wait(120)
    assert scripts.the_run(runs()).state.name == "finished"
    assert scripts.steps(scripts.the_run(runs())) == list(range(100))

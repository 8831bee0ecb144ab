"""An agent at rest: its looks move apart, and whoever waits for it ends its pause."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from logclient.shm import layout
from logclient.shm import shm_dir as shm_dirs
from logclient.shm.wake import SUPERVISOR, WORKER, wake
from logclient.spawn.agent import map_status

from .. import scripts
from ..disturbed import MIN_S, wait_until

RESTED_S = 1.5  # between two beats of a worker that has nothing to do

WAITS = """
import logclient, sys
run = logclient.init("rests", quiet=True)
run.log(0, {"a": 1.0})
assert run.flush(60)
print(run._session.shm_dir.path, flush=True)
sys.stdin.readline()
run.log(1, {"a": 2.0})
assert run.flush(60)
print("flushed", flush=True)
sys.stdin.readline()
run.finish(60)
"""


def next_beat(words: memoryview) -> int:
    before = words[layout.AGENT_WORKER_BEAT]
    wait_until(lambda: words[layout.AGENT_WORKER_BEAT] != before, MIN_S, "another beat")
    return int(words[layout.AGENT_WORKER_BEAT])


def woken_beat(shm_dir: shm_dirs.ShmDir, process: str) -> None:
    """Wake that process and wait for the beat of its next look."""
    words = map_status(shm_dir)
    assert words is not None
    which = {WORKER: layout.AGENT_WORKER_BEAT, SUPERVISOR: layout.AGENT_SUPERVISOR_BEAT}[process]
    before = words[which]
    wake(shm_dir, process)
    wait_until(lambda: words[which] != before, MIN_S, f"a beat, {process} having been rung")


def rest(words: memoryview) -> None:
    """Wait until the worker takes long pauses: half a minute after the last record."""

    def is_resting() -> bool:
        return next_beat(words) - next_beat(words) < -RESTED_S * 1e9

    wait_until(is_resting, 120, "the agent rests")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_agent_at_rest_is_woken_by_those_who_wait(run_dir: Path, tmp_path: Path) -> None:
    """Thirty beats come within the time of ten pauses when each is asked for; flush and finish end a pause, too."""
    program = scripts.start(tmp_path, WAITS, stdin=-1)
    assert program.stdout is not None and program.stdin is not None
    try:
        shm_dir = shm_dirs.read(program.stdout.readline().strip())
        assert shm_dir is not None
        words = map_status(shm_dir)
        assert words is not None
        rest(words)
        begun = time.monotonic()
        for _ in range(30):
            woken_beat(shm_dir, WORKER)
        woken_beat(shm_dir, SUPERVISOR)
        assert time.monotonic() - begun < 30 * RESTED_S
        program.stdin.write("log\n")
        program.stdin.flush()
        assert program.stdout.readline() == "flushed\n"
        ended = scripts.end_with(program, "finish\n")
        assert ended.code == 0, ended.err
        wait_until(lambda: not os.path.exists(shm_dir.path), MIN_S, "the agent leaves")
    finally:
        program.kill()
        program.wait()
    assert len(scripts.points(scripts.the_run(run_dir))["a"]) == 2


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_trainer_that_dies_while_the_agent_rests_is_noticed(run_dir: Path, tmp_path: Path) -> None:
    """Records logged right before a SIGKILL are stored and the directory goes, with no flush to wake anybody."""
    code = WAITS.replace("assert run.flush(60)\nprint", "import os; os.kill(os.getpid(), 9)\nprint")
    code = code.replace("import os; os.kill(os.getpid(), 9)", "assert run.flush(60)", 1)
    program = scripts.start(tmp_path, code, stdin=-1)
    assert program.stdout is not None and program.stdin is not None
    try:
        shm_dir = shm_dirs.read(program.stdout.readline().strip())
        assert shm_dir is not None
        words = map_status(shm_dir)
        assert words is not None
        rest(words)
        program.stdin.write("log\n")
        program.stdin.flush()
        assert program.wait(MIN_S) == -9
        wait_until(lambda: not os.path.exists(shm_dir.path), MIN_S, "the agent leaves")
    finally:
        program.kill()
        program.communicate()
    found = scripts.the_run(run_dir)
    assert found.state.name == "killed" and len(scripts.points(found)["a"]) == 2

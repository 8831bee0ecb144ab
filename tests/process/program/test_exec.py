"""A program that becomes another one by `exec`: PID, start and pidfd stay, its run is over."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Pace
from tools.faults import tmpfs

from .. import scripts
from ..disturbed import wait_until

GENERATIONS = """
import os, sys, threading
import logclient
number, last, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
run = logclient.init(project="case", name=f"gen{number}", quiet=True)
for step in range(100):
    run.log(step, {"loss": step / 2})
if how == "finish" and number == 0:
    run.finish()
if number < last:
    again = [sys.executable, __file__, str(number + 1), str(last), how]
    if how == "thread":
        threading.Thread(target=os.execv, args=(sys.executable, again)).start()
        threading.Event().wait()
    os.execv(sys.executable, again)
print(run.status()["notices"], flush=True)
sys.stdin.read()
run.finish()
"""

OTHER = """
import os, sys
import logclient
run = logclient.init(project="case", quiet=True)
for step in range(100):
    run.log(step, {"loss": step / 2})
os.execv(sys.executable, [sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(3)"])
"""

CHILD_OF_ANOTHER = """
import os, signal, subprocess, sys
import logclient
if sys.argv[1] == "child":
    run = logclient.init(project="case", quiet=True)
    print(run.id, flush=True)
elif sys.argv[1] == "exec":
    env = {name: value for name, value in os.environ.items() if name != "LOGCLIENT_PARENT"}
    subprocess.run([sys.executable, __file__, "child"], env=env, check=True)
else:
    run = logclient.init(project="case", quiet=True)
    run.log(0, {"loss": 0.5})
    assert run.flush(60)
    agent = run.status()["agent"]
    print(run.id, agent["supervisor"], agent["worker"], flush=True)
    for which in ("supervisor", "worker"):
        os.kill(agent[which], signal.SIGSTOP)
    os.execv(sys.executable, [sys.executable, __file__, "exec"])
"""


def states(run_dir: Path) -> dict[str, str]:
    return {run.name: run.state.name for run in scripts.runs(run_dir)}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exec", "thread", "finish"])
def test_a_program_that_becomes_itself_again_leaves_nothing(how: str, run_dir: Path, tmp_path: Path) -> None:
    """Each incarnation's run is stored whole and over; its agent leaves, and its memory is given back."""
    trainer = scripts.start(tmp_path, GENERATIONS, "0", "4", how, stdin=subprocess.PIPE)
    wanted = {f"gen{number}": "replaced" for number in range(4)} | {"gen4": "running"}
    if how == "finish":
        wanted["gen0"] = "finished"
    try:
        wait_until(lambda: states(run_dir) == wanted, 60, "the earlier runs are over")
        wait_until(lambda: len(scripts.shm_dirs()) == 1, 30, "one shm directory is left")
        wait_until(lambda: len(scripts.agents()) == 3, 30, "one agent is left")
    finally:
        ended = scripts.end_with(trainer, "")
    assert ended.code == 0, ended
    scripts.wait_gone()
    assert states(run_dir) == wanted | {"gen4": "finished"}
    for run in scripts.runs(run_dir):
        assert scripts.steps(run) == list(range(100))
        assert run.state.exit_code is None and run.state.signal is None


@pytest.mark.parametrize("number", [0, signal.SIGKILL])
def test_a_run_takes_no_end_of_what_its_program_became(number: int, run_dir: Path, tmp_path: Path) -> None:
    """The other program ends by exit code 3, or is killed: nothing of that is the run's."""
    trainer = scripts.start(tmp_path, OTHER, stdin=subprocess.PIPE)
    try:
        found = scripts.wait_state(run_dir, "replaced", 60)
        scripts.wait_gone()
    finally:
        if number:
            trainer.send_signal(number)
        ended = scripts.end_with(trainer, "") if not number else scripts.end(trainer)
    assert ended.code == (-number or 3)
    found = scripts.the_run(run_dir)
    assert (found.state.name, found.state.exit_code, found.state.signal) == ("replaced", None, None)
    assert scripts.steps(found) == list(range(100))


def test_a_child_of_what_its_program_became_joins_no_run_that_is_over(run_dir: Path, tmp_path: Path) -> None:
    """The run's files are still there, since its agent is stopped, and its PID is that of an ancestor."""
    trainer = scripts.start(tmp_path, CHILD_OF_ANOTHER, "first")
    assert trainer.stdout is not None
    first, *agent = trainer.stdout.readline().split()
    try:
        ended = scripts.end(trainer)
    finally:
        for pid in agent:
            os.kill(int(pid), signal.SIGCONT)
    assert ended.code == 0 and ended.out.strip() not in ("", first), ended
    scripts.wait_gone()
    assert len(scripts.runs(run_dir)) == 2


@pytest.mark.root
@pytest.mark.slow
def test_restarts_on_a_small_mount_all_get_lanes(
    pace: Pace, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 MiB of shared memory, and one incarnation after the other as fast as they start."""
    if reason := tmpfs.why_not():
        pytest.skip(reason)
    last = pace.count(200, least=12)
    with tmpfs.SmallTmpfs(64) as shm:
        monkeypatch.setenv("LOGCLIENT_SHM_DIR", str(shm.path))
        trainer = scripts.start(tmp_path, GENERATIONS, "0", str(last), "exec", stdin=subprocess.PIPE)
        try:
            # an agent that comes to work after the last one's end sees how that ended, and nothing of the exec before
            wait_until(lambda: len(scripts.runs(run_dir)) == last + 1, 300, "all runs are there")
            wait_until(lambda: len(scripts.shm_dirs()) == 1, 60, "the earlier runs are over")
        finally:
            ended = scripts.end_with(trainer, "", 300)
        assert ended.code == 0, ended
        scripts.wait_gone(60)
    for run in scripts.runs(run_dir):
        assert run.state.name == ("finished" if run.name == f"gen{last}" else "replaced")
        assert scripts.steps(run) == list(range(100))
    assert len(scripts.runs(run_dir)) == last + 1

"""What dead processes and agents leave behind in shared memory: nothing, after the next agent of this user."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from logclient.shm import layout
from logclient_backend.agent.supervise import cleanup
from logclient_backend.wal.reader import WalReader

from .. import scripts
from ..agents import both_killed, nothing_left
from ..disturbed import Trainer, stored, wait_until

_CYCLES = """
import os, sys, time, logclient
cycles, victims = int(sys.argv[1]), int(sys.argv[2])
def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
sizes = []
for number in range(cycles):
    if number % (cycles // victims) == 1:
        if (child := os.fork()) == 0:
            run = logclient.init("case", id=f"v{number}", quiet=True)
            for step in range(200):
                run.log(step, {"loss": 1.0})
            os.kill(os.getpid(), 9)
        os.waitpid(child, 0)
        continue
    run = logclient.init("case", id=f"n{number}", quiet=True)
    for step in range(20):
        run.log(step, {"loss": 1.0})
    assert run.finish(60), run.status()
    sizes.append((rss(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
print(sizes[len(sizes) // 5], sizes[-1], sep="\\n")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cycles_of_init_and_finish_leave_nothing(run_dir: Path, tmp_path: Path, pace) -> None:
    """S-4: 1,000 cycles (paced), 100 of them SIGKILLed in the middle: no files, processes, descriptors, memory left."""
    cycles, victims = pace.count(1_000, least=60), pace.count(100, least=6)
    env = scripts.environment(
        LOGCLIENT_START_TIMEOUT_S="30"
    )  # who is killed before its agent is there is "lost"
    ended = scripts.run_well(tmp_path, _CYCLES, str(cycles), str(victims), timeout_s=3_000, env=env)
    early, late = map(eval, ended.out.splitlines())
    assert late[1:] == early[1:], "descriptors and threads"
    assert late[0] - early[0] < 2 << 20, f"memory grew by {late[0] - early[0]:,} bytes"
    nothing_left(60)
    wait_until(lambda: not scripts.agents(), 30, "no process is left")
    killed = [run for run in scripts.runs(run_dir) if run.id.startswith("v")]
    assert len(killed) == len([n for n in range(cycles) if n % (cycles // victims) == 1])
    assert {run.state.name for run in killed} == {"killed"}
    assert stored(run_dir).records == 200 * len(killed) + 20 * (cycles - len(killed))


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_next_init_serves_who_lost_its_agent_and_sweeps_what_the_dead_left(
    run_dir: Path, tmp_path: Path
) -> None:
    """S-4: the next init of this user stores what dead processes left and removes it, and serves the living again."""
    victim = Trainer(tmp_path / "1", rate=2_000, seconds=60)
    orphan = Trainer(tmp_path / "2", records=2_000, rate=500)
    wait_until(lambda: victim.logged > 1_000, 20, "some are logged")
    for trainer in (victim, orphan):
        both_killed(trainer)
    victim.end_by()
    half_made = Path(victim.shm_dir).parent / "half-made"
    half_made.mkdir(0o700)
    os.utime(half_made, (1, 1))
    Trainer(tmp_path / "3", records=10, rate=100).end()
    victim.wait_gone()
    wait_until(lambda: not half_made.exists(), 20, "what was never finished is removed")
    assert orphan.end()["durable"] == 2_000
    orphan.wait_gone()
    nothing_left()
    (node,) = (run_dir / victim.run_id).iterdir()
    records = sum(span.records for span in WalReader(str(node)).spans().values())
    assert victim.logged <= records <= victim.begun


def test_shm_dir_whose_process_is_about_to_start_an_agent_is_left_alone(tmp_path: Path) -> None:
    """A sweeper must not be the first agent of a living run: it would end with its own job."""
    shm_dir = tmp_path / "run"
    shm_dir.mkdir(0o700)
    (shm_dir / "run.json").write_text("{}")
    (shm_dir / f"{'a' * 32}.lanes").write_bytes(b"")
    (shm_dir / "agent.status").write_bytes(bytes(layout.STATUS_BYTES))
    assert cleanup._is_left(str(shm_dir)), "nobody lives there"
    code = """
    import sys
    from logclient.shm.owner import LiveLock
    lock = LiveLock(sys.argv[1])
    print("locked", flush=True)
    sys.stdin.read()
    """
    child = scripts.start(tmp_path, code, str(shm_dir / f"{'a' * 32}.live"), stdin=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == "locked\n"
    assert not cleanup._is_left(str(shm_dir))
    with open(shm_dir / "agent.status", "r+b") as file:
        file.seek(8 * layout.AGENT_SUPERVISOR)
        file.write((1 << 22).to_bytes(8, "little"))
    assert cleanup._is_left(str(shm_dir)), "its agent died"
    scripts.end_with(child, "")

"""Children that are forked right after `init`: how many agents they start, and what they wait for."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import Pace

from .. import scripts

EIGHT = '''
import os, select, signal, sys
import logclient
run = logclient.init(project="case", quiet=True)
run.log(0, {"parent": 1.0})
def kill_agent():
    """Kill all its processes, and what they fork meanwhile: how many there were."""
    handles = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if os.fsencode(run._session.shm_dir.path) in file.read():
                    handles.append(os.pidfd_open(int(pid)))
                    os.kill(int(pid), signal.SIGKILL)
        except OSError:
            continue  # gone meanwhile
    for handle in handles:
        select.select([handle], [], [])  # ended, its locks gone
        os.close(handle)
    return len(handles)

# no SIGSTOP before it: strace fails at times where a stopped process is killed (PTRACE_LISTEN: Input/output error)
if sys.argv[1] == "killed":
    assert run.flush(60) and kill_agent()
    while kill_agent():
        pass
children = []
for number in range(8):
    pid = os.fork()
    if pid == 0:
        run.log(0, {"child": float(number)})
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
assert run.finish(60), run.status()
'''


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("how", "agents"), [("started", 0), ("killed", 1)])
def test_eight_children_start_no_agent_too_many(
    how: str, agents: int, pace: Pace, run_dir: Path, tmp_path: Path
) -> None:
    """Right after `init`, whose agent is only just starting: none. After all of the agent was killed: one, for all."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("needs strace")
    scripts.write(tmp_path, EIGHT)
    for number in range(pace.count(50, least=2)):
        trace = tmp_path / f"trace-{number}"
        # by seccomp: a process that is stopped at each of its calls starts several times as slowly
        words = [strace, "--seccomp-bpf", "-f", "-qq", "-s", "200", "-e", "trace=execve", "-o", str(trace)]
        ended = scripts.run_words(tmp_path, [*words, sys.executable, "train.py", how], 110)
        assert ended.code == 0, ended
        lines = trace.read_text().splitlines()
        starts = [line for line in lines if "execve(" in line and '"agent"' in line]
        callers = [line.partition("--trainer=")[2].partition('"')[0] for line in starts]
        # the first of them is of `init`; `finish` may call for one on a machine that is very busy
        by_children = [caller for caller in callers if caller != callers[0]]
        assert len(by_children) == agents, "\n".join(starts)
        scripts.wait_gone()
    for run in scripts.runs(run_dir):
        assert run.counts()["stored"] == run.counts()["accepted"] == 9

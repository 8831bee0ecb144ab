"""PR_SET_PTRACER: asked for where Yama's sysctl says 1, for the supervisor or for all, and nowhere else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from logclient.session.ptracer import SCOPE, is_restricted
from logclient.shm import layout
from logclient_backend.runs import live

from ..disturbed import ROOT, wait_until

PROGRAM = """
import os, sys
sys.path[:0] = [{root!r}, {root!r} + "/backend"]
from logclient.session import ptracer, start
ptracer.SCOPE = {scope!r}
start._SUPERVISOR_WAIT_S = 60.0  # a slow machine is no failure
import logclient
run = logclient.init("ptrace", dir={runs!r}, quiet=True{more})
run.log(1, {{"a": 1.0}})
pid = os.fork()
if pid == 0:
    run.log(2, {{"a": 1.0}})
    os._exit(0)
os.waitpid(pid, 0)
from logclient.shm import layout
print(run._session.status_page[layout.AGENT_SUPERVISOR])
run.finish(30)
"""
ASKED = re.compile(r"prctl\((?:0x59616d61.*|PR_SET_PTRACER), (.*?)[,)]")


@pytest.mark.parametrize(
    ("scope", "more"), [("0", ""), ("1", ""), ("1", ', ptrace="any"'), ("2", ""), (None, "")]
)
def test_right_is_given_where_yama_asks_for_it(
    scope: str | None, more: str, tmp_path: Path, run_dir: Path
) -> None:
    """By the run's process and by its forked child, each for itself."""
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    file = tmp_path / "ptrace_scope"
    if scope is not None:
        file.write_text(scope + "\n")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(root=str(ROOT), scope=str(file), runs=str(run_dir), more=more))
    trace = tmp_path / "trace"
    words = ["strace", "-f", "-e", "trace=prctl", "-o", str(trace), sys.executable, str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    supervisor = done.stdout.strip()
    asked = [
        (int(line.split()[0]), found[1])
        for line in trace.read_text().splitlines()
        if (found := ASKED.search(line))
    ]
    if scope != "1":
        assert not asked
        return
    assert len({pid for pid, _ in asked}) == 2 and len(asked) == 2
    names = (
        {hex(layout.PTRACER_ANY), "PR_SET_PTRACER_ANY", "-1"} if more else {supervisor, hex(int(supervisor))}
    )
    assert {whom for _, whom in asked} <= names


def test_this_machine_says_what_it_has() -> None:
    """The sysctl is read as it is here, or is missing."""
    has_yama = os.path.exists(SCOPE)
    assert is_restricted(SCOPE) == (has_yama and Path(SCOPE).read_text().strip() == "1")


def test_right_of_an_earlier_agent_is_said(tmp_path: Path, run_dir: Path) -> None:
    """A kernel without Yama gives no right, so the word that notes it is set by the test."""
    import logclient

    run = logclient.init("ptrace", dir=str(run_dir), quiet=True)
    assert isinstance(run, logclient.Run)
    try:
        live_dir = live.look(run._session.shm_dir.path)
        assert live_dir is not None
        (process,) = live_dir.processes
        lanes, page = run._session.lanes, run._session.status_page
        assert lanes is not None and page is not None
        wait_until(lambda: page[layout.AGENT_SUPERVISOR], 60, "there is a supervisor")
        assert live_dir.ptracer(process) == ""
        lanes.words[layout.PTRACER] = page[layout.AGENT_SUPERVISOR]
        assert live_dir.ptracer(process) == ""
        lanes.words[layout.PTRACER] = page[layout.AGENT_SUPERVISOR] + 1
        assert "LOGCLIENT_PTRACE=any" in live_dir.ptracer(process)
        lanes.words[layout.PTRACER] = layout.PTRACER_ANY
        assert live_dir.ptracer(process) == ""
    finally:
        run.finish(30)

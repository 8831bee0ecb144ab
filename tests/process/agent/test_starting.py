"""Starting an agent: any `sys.path`, a clean environment, nothing on the terminal; no /proc; none below an agent."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from .. import scripts

PROGRAM = """
import json, os, sys, time
import logclient
sys.path += [f"/opt/{number:05}/a_long_name_of_a_package/site-packages" for number in range(int(sys.argv[1]))]
run = logclient.init(project="case")
for step in range(10):
    run.log(step, {"loss": step / 2})
begun = time.monotonic()
done = run.finish()
print(json.dumps([done, time.monotonic() - begun]))
"""


def assert_stored(ended: scripts.Ended, run_dir: Path) -> None:
    assert ended.code == 0, ended
    assert ended.out.startswith("[true"), ended
    assert len(ended.said) == len(ended.err.splitlines()) == 2, ended.err
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(10))


def test_sys_path_of_any_length(tmp_path: Path, run_dir: Path) -> None:
    """One string of a command line may have 128 KiB."""
    assert_stored(scripts.run(tmp_path, PROGRAM, "10000"), run_dir)


def test_shell_writes_nothing(tmp_path: Path, run_dir: Path) -> None:
    """Exported functions that no shell can read, and a locale that is not there, make shells complain."""
    odd = {"BASH_FUNC_module%%": "() {  broken", "LC_ALL": "xx_XX.nothing", "ENV": "/nonexistent"}
    assert_stored(scripts.run(tmp_path, PROGRAM, "0", env=scripts.environment(**odd)), run_dir)


def test_agent_has_no_tracer_of_the_program(tmp_path: Path, run_dir: Path) -> None:
    """Variables by which coverage, debuggers and interpreters start something are not handed on."""
    told = tmp_path / "told"
    scripts.write(tmp_path / "hook", f"open({str(told)!r}, 'a').write('x')\n", "sitecustomize.py")
    odd = {
        "COVERAGE_PROCESS_START": "/nonexistent",
        "PYTHONWARNINGS": "ignore",
        "PYDEVD_USE_FRAME_EVAL": "NO",
    }
    odd |= {"PYTHONPATH": str(tmp_path / "hook"), "PYTHONFAULTHANDLER": "1"}
    code = PROGRAM.replace(
        "begun =",
        """pid = 0
while not pid:
    pid = run.status()["agent"]["supervisor"] if run.status()["agent"]["state"] == "running" else 0
found = open(f"/proc/{pid}/environ").read()
assert not any(f"\\0{name}" in "\\0" + found for name in ("COVERAGE", "PYDEVD", "PYTHONW", "PYTHONF")), found
assert "LOGCLIENT_AGENT=1" in found.split("\\0")
begun =""",
    )
    assert_stored(scripts.run(tmp_path, code, "0", env=scripts.environment(**odd)), run_dir)
    assert told.read_text() == "x", "the program alone"


def test_no_run_begins_below_an_agent(tmp_path: Path, run_dir: Path) -> None:
    """Whatever an agent started by mistake: its `init` does nothing, and says why."""
    ended = scripts.run(tmp_path, PROGRAM, "0", env=scripts.environment(LOGCLIENT_AGENT="1"))
    assert ended.code == 0, ended
    assert "LOGCLIENT_AGENT" in ended.err
    assert not scripts.shm_dirs()
    assert not scripts.runs(run_dir)


@pytest.mark.parametrize("name", ["train", "python3"])
def test_executable_that_is_no_python_is_named(tmp_path: Path, run_dir: Path, name: str) -> None:
    """Given by the user: the sentence says what it is, and nobody is waited for."""
    program = scripts.write(tmp_path / "bin", "#!/bin/sh\nexit 0\n", name)
    program.chmod(0o755)
    ended = scripts.run(tmp_path, PROGRAM, "0", env=scripts.environment(LOGCLIENT_PYTHON=str(program)))
    assert ended.code == 0, ended
    assert ended.out.startswith("[false"), ended
    assert f"LOGCLIENT_PYTHON={str(program)!r}" in ended.said[0]
    assert "does not answer" not in ended.err
    assert "goes on" not in ended.err


@pytest.mark.root
def test_without_proc_it_is_said_at_once(tmp_path: Path, run_dir: Path) -> None:
    """A chroot often has none; no agent works there."""
    scripts.write(tmp_path, PROGRAM)
    hide = 'mount -t tmpfs tmpfs /proc && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", hide, "sh", sys.executable, "train.py", "0"]
    ended = scripts.run_words(tmp_path, words, env={**os.environ})
    assert ended.code == 0, ended
    assert ended.out.startswith("[false"), ended
    assert "/proc is not mounted" in ended.said[0]
    assert float(ended.out.split(",")[1].strip(" ]\n")) < 1.0

"""A run whose last handle is dropped without `finish` ends, with all that was accepted; another one goes on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.session import dropped, handles
from logclient.shm import layout
from logclient.spawn import agent as spawn
from tests.lanes import LaneFile, start_no_agent

from .. import scripts
from ..disturbed import wait_until

# argv: how many, rows of each; garbage is never collected
DROPPED_IN_TURN = """
import gc, json, os, sys
import logclient
gc.disable()
count, rows = int(sys.argv[1]), int(sys.argv[2])
for number in range(count):
    run = logclient.init("case", name=f"n{number}", quiet=True)
    before = before if number else len(os.listdir("/proc/self/fd"))
    for step in range(rows):
        run.log(step, {"loss": step / 2})
    del run
logclient.finish()
print(len(os.listdir("/proc/self/fd")) - before, flush=True)
input()
"""

DROPPED_AT_ONCE = """
import os, sys
import logclient
runs = [logclient.init("case", name=f"n{number}", quiet=True) for number in range(int(sys.argv[1]))]
for step in range(500):
    for run in runs:
        run.log(step, {"loss": step / 2})
last = logclient.init("case", name="last", quiet=True)
del run
runs.clear()
print("dropped", flush=True)
input()
last.log(1, {"loss": 0.5})
"""


# argv: how many; their memory is mapped until the program calls us again
STORED = """
import sys
import logclient
from logclient.session import handles, waiting
for number in range(int(sys.argv[1])):
    logclient.init("case", name=f"n{number}", quiet=True)
last = logclient.init("case", name="last", quiet=True)
dropped = [handle.session for handle in handles.by_shm_dir.values() if handle() is None]
print(len(dropped), flush=True)
input()
print([session.name for session in dropped if session.lanes and not waiting.is_durable(session)])
"""


def states(where: Path) -> dict[str, tuple[str, str]]:
    return {run.name: (run.state.name, run.state.cause) for run in scripts.runs(where)}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_runs_dropped_in_turn_leave_nothing(run_dir: Path, tmp_path: Path) -> None:
    """Forty times `init` and `del`: all is stored, and no agent, memory or descriptor stays while the program lives."""
    count, rows = 40, 50
    process = scripts.start(tmp_path, DROPPED_IN_TURN, str(count), str(rows), stdin=-1)
    try:
        assert process.stdout is not None
        more = int(process.stdout.readline())
        scripts.wait_gone(60)
        assert more <= 6, "descriptors of a few runs at most"
        scripts.wait_gone(60)  # one that was being started is seen late
        assert process.poll() is None
    finally:
        ended = scripts.end_with(process, "\n")
    assert ended.code == 0 and not ended.err, ended.err
    found = scripts.runs(run_dir)
    assert len(found) == count
    for run in found:
        cause = "" if run.name == f"n{count - 1}" else "handle dropped"
        assert (run.state.name, run.state.cause) == ("finished", cause)
        assert scripts.steps(run) == list(range(rows))


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_runs_dropped_at_once_end_though_the_program_calls_nothing_more(
    run_dir: Path, tmp_path: Path
) -> None:
    """Their agents end them; the run that is current goes on."""
    process = scripts.start(tmp_path, DROPPED_AT_ONCE, "5", stdin=-1)
    try:
        assert process.stdout is not None and process.stdout.readline() == "dropped\n"
        wait_until(lambda: len(scripts.shm_dirs()) == 1, 60, "their agents leave")
        wait_until(lambda: len(scripts.runs(run_dir)) == 6, 60, "all runs are on disk")
        expected = {f"n{number}": ("finished", "handle dropped") for number in range(5)}
        assert states(run_dir) == expected | {"last": ("running", "")}
    finally:
        ended = scripts.end_with(process, "\n")
    assert ended.code == 0 and not ended.err, ended.err
    scripts.wait_gone()
    assert all(len(scripts.steps(run)) in (500, 1) for run in scripts.runs(run_dir))
    assert states(run_dir)["last"] == ("finished", "")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_what_an_agent_stored_last_counts_as_stored(run_dir: Path, tmp_path: Path) -> None:
    """Otherwise the exit hook waits for an agent that has left, and says that the run is not on disk."""
    process = scripts.start(tmp_path, STORED, "24", stdin=-1)
    try:
        assert process.stdout is not None and int(process.stdout.readline()) >= 1
        wait_until(lambda: len(scripts.shm_dirs()) == 1, 120, "their agents leave")
    finally:
        ended = scripts.end_with(process, "\n")
    assert (ended.code, ended.out.strip(), ended.err) == (0, "[]", "")


def test_exit_hook_waits_for_what_was_dropped(run_dir: Path, tmp_path: Path) -> None:
    """The agent of a dropped run was killed: the exit hook brings another."""
    code = """
    import os, signal, logclient
    run = logclient.init("case", name="dropped", quiet=True)
    agent = run.status()["agent"]
    run.log(0, {"loss": 1.0})
    assert run.flush(60)
    agent = run.status()["agent"]
    os.kill(agent["supervisor"], signal.SIGSTOP)
    os.kill(agent["worker"], signal.SIGKILL)
    os.kill(agent["supervisor"], signal.SIGKILL)
    for step in range(1, 1_000):
        run.log(step, {"loss": 1.0})
    other = logclient.init("case", name="other", quiet=True)
    del run
    """
    scripts.run_well(tmp_path, code)
    scripts.wait_gone(60)
    found = {run.name: run for run in scripts.runs(run_dir)}
    assert scripts.steps(found["dropped"]) == list(range(1_000))
    assert found["dropped"].state.cause == "handle dropped"


REACHED = """
import json, logclient
first = logclient.init("case", name="first", quiet=True)
kept = {kept}
for number in range(3):
    other = logclient.init("case", name=f"n{{number}}", quiet=True)
del first
from logclient.session import handles
assert "first" in [session.name for session in handles.sessions()]
{use}
logclient.init("case", name="end", quiet=True).finish(60)
"""


@pytest.mark.first_is_quick
@pytest.mark.parametrize(
    ("kept", "use"),
    [
        ("first.log", 'kept(7, {"loss": 1.0})'),
        ("first.as_rank(3)", 'kept.log(7, {"loss": 1.0})'),
        ("first.config", 'kept["a"] = 1'),
    ],
)
def test_a_run_that_something_leads_to_goes_on(kept: str, use: str, run_dir: Path, tmp_path: Path) -> None:
    """A bound method, a rank's handle, its config: each keeps the run open until the program ends."""
    # the exit hook of a slow machine ends the other runs for longer than an agent waits for an exit code
    env = scripts.environment(LOGCLIENT_LINGER_S="120")
    scripts.run_well(tmp_path, REACHED.format(kept=kept, use=use), env=env)
    scripts.wait_gone(60)
    (first,) = [run for run in scripts.runs(run_dir) if run.name == "first"]
    assert (first.state.name, first.state.cause) == ("finished", "")
    assert scripts.steps(first) == [7] or first.config == {"a": 1}


def test_the_current_run_needs_no_handle(run_dir: Path, tmp_path: Path) -> None:
    """`logclient.log` leads to it."""
    code = """
    import gc, logclient
    logclient.init("case", quiet=True)
    gc.collect()
    for step in range(10):
        logclient.log(step, {"loss": step / 2})
    assert logclient.flush(60)
    """
    scripts.run_well(tmp_path, code)
    scripts.wait_gone()
    found = scripts.the_run(run_dir)
    assert scripts.steps(found) == list(range(10)) and found.state.cause == ""


CHILD_DROPS = """
import os, sys, logclient
run = logclient.init("case", name="first", quiet=True)
other = logclient.init("case", name="other", quiet=True)
run.log(0, {"loss": 0.0})
pid = os.fork()
if pid == 0:
    if "logs" in sys.argv:
        run.log(1, {"loss": 1.0})
    del run
    other.log(5, {"loss": 5.0})
    assert other.flush(60)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
from logclient.shm import layout
words = run._session.lanes.words
assert words[layout.DROPPED] in (0, pid) and run.flush(60)
assert words[layout.STATE] == layout.STATE_OPEN
run.log(2, {"loss": 2.0})
assert run.finish(60)
assert other.finish(60)
"""


@pytest.mark.first_is_quick
@pytest.mark.parametrize("logs", ["logs", "silent"])
def test_a_child_that_drops_its_handle_ends_nothing_of_its_parents(
    logs: str, run_dir: Path, tmp_path: Path
) -> None:
    """The run goes on in its owner, and what the child logged is stored."""
    scripts.run_well(tmp_path, CHILD_DROPS, logs)
    scripts.wait_gone()
    found = {run.name: run for run in scripts.runs(run_dir)}
    assert sorted(scripts.steps(found["first"])) == ([0, 1, 2] if logs == "logs" else [0, 2])
    assert {name: (run.state.name, run.state.cause) for name, run in found.items()} == {
        "first": ("finished", ""),
        "other": ("finished", ""),
    }


def test_the_finalizer_runs_no_bytecode(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So no handler of a signal is called in it, whose exception would be swallowed: it stores one word."""
    monkeypatch.setattr(spawn, "start_agent", start_no_agent)
    run: Any = logclient.init("ends", quiet=True)
    run.log(1, {"a": 1.0})
    file = LaneFile(run._session.lanes.path)
    path = run._session.shm_dir.path
    logclient._run = None
    is_known = handles.find(path) is run
    assert file.words[layout.DROPPED] == 0 and is_known
    called: list[Any] = []
    sys.setprofile(lambda frame, event, what: called.append((event, frame.f_code)))
    del run
    sys.setprofile(None)
    assert [code for event, code in called if event == "call"] == []
    assert file.words[layout.DROPPED] == os.getpid() and handles.find(path) is None
    assert path in handles.by_shm_dir and file.words[layout.STATE] == layout.STATE_OPEN
    assert [record.step for record in file.read()] == [1]
    dropped.let_go_durable()
    assert path in handles.by_shm_dir, "it is not yet on disk"
    file.make_durable()
    dropped.let_go_durable()
    assert path not in handles.by_shm_dir and file.words[layout.STATE] == layout.STATE_FINISHED

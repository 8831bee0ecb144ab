"""C8-4: two processes, then two hosts, with one run id; each logs steps 0 to 99 under own names and a shared one.

What is right: all rows of both are there, whoever came first and whoever stops first; `resume` says whether the run
may, must or must not exist already. A host is a shm directory of its own here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .. import scripts
from ..disturbed import wait_until

STEPS = list(range(100))

# waits for a file before it logs, and for another one before it finishes
PROGRAM = """
import os, sys, time
import logclient

def wait(name):
    deadline = time.monotonic() + 20
    while not os.path.exists(name):
        assert time.monotonic() < deadline, name
        time.sleep(0.005)

me, resume = sys.argv[1:3]
run = logclient.init(project="case", id="both", resume=resume)
open(f"{me}.began", "w").close()
for name in sys.argv[3:4]:
    wait(name)
for step in range(100):
    run.log(step, {f"{me}/own": step, "shared": step + (0.5 if me == "b" else 0.0)})
open(f"{me}.logged", "w").close()
for name in sys.argv[4:5]:
    wait(name)
run.finish()
open(f"{me}.finished", "w").close()
"""

REFUSED = """
import sys
import logclient
try:
    logclient.init(project="case", id="both", resume=sys.argv[1])
except logclient.BadArgument as error:
    print(error)
else:
    sys.exit("init did not raise")
"""


def assert_all_rows(where: Path) -> None:
    found = scripts.points(scripts.the_run(where))
    assert found["a/own"] == [(step, step) for step in STEPS]
    assert found["b/own"] == [(step, step) for step in STEPS]
    of_a = [(step, value) for step, value in found["shared"] if value == step]
    of_b = [(step, value) for step, value in found["shared"] if value == step + 0.5]
    assert [step for step, _ in of_a] == [step for step, _ in of_b] == STEPS
    assert len(found["shared"]) == 200


@pytest.fixture
def other_host(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a process on another host that shares the run folder."""
    shm_root = tempfile.mkdtemp(prefix="host-", dir=os.environ["LOGCLIENT_SHM_DIR"])
    yield {**os.environ, "LOGCLIENT_SHM_DIR": shm_root}
    shutil.rmtree(shm_root, ignore_errors=True)


def both_at_once(tmp_path: Path, env: dict[str, str] | None = None) -> None:
    a = scripts.start(tmp_path, PROGRAM, "a", "allow", "b.began")
    b = scripts.start(tmp_path, PROGRAM, "b", "allow", "a.began", env=env)
    for process in (a, b):
        ended = scripts.end(process)
        assert ended.code == 0, ended


def wait_for(path: Path) -> None:
    wait_until(path.exists, 20, f"{path.name}")


def test_two_processes_at_once(tmp_path: Path, run_dir: Path) -> None:
    """Both start, log and finish at the same time: one run on one node, all rows of both (C8-4)."""
    both_at_once(tmp_path)
    scripts.wait_gone()
    assert_all_rows(run_dir)
    found = scripts.the_run(run_dir)
    assert len(found.nodes) == 1
    assert len(found.processes) == 2
    assert found.state.name == "finished"


def test_two_hosts_at_once(tmp_path: Path, run_dir: Path, other_host: dict[str, str]) -> None:
    """The same from two hosts into one folder: two nodes, all rows of both (C8-4)."""
    both_at_once(tmp_path, other_host)
    wait_until(lambda: not scripts.shm_dirs(), 20, "agents leave")
    wait_until(lambda: not list(Path(other_host["LOGCLIENT_SHM_DIR"]).iterdir()), 20, "agents leave")
    assert_all_rows(run_dir)
    found = scripts.the_run(run_dir)
    assert len(found.nodes) == 2
    assert found.state.name == "finished"


@pytest.mark.slow
def test_one_after_the_other(tmp_path: Path, run_dir: Path) -> None:
    """The second comes when the first and its agent are gone: a second attempt of the same run (C8-4)."""
    scripts.run_well(tmp_path, PROGRAM, "a", "allow")
    scripts.wait_gone()
    scripts.run_well(tmp_path, PROGRAM, "b", "must")
    scripts.wait_gone()
    assert_all_rows(run_dir)
    assert [attempt.number for attempt in scripts.the_run(run_dir).attempts] == [1, 2]


@pytest.mark.slow
def test_close_on_the_heels(tmp_path: Path, run_dir: Path) -> None:
    """Six processes, each started when the last one ended, while agents still leave: nothing is lost (C8-4)."""
    code = PROGRAM.replace('f"{me}/own"', '"own"')
    for _ in range(6):
        ended = scripts.run(tmp_path, code, "a", "allow")
        assert ended.code == 0, ended
    scripts.wait_gone()
    found = scripts.the_run(run_dir)
    assert sorted(scripts.steps(found, "own")) == sorted(STEPS * 6)
    assert len(found.processes) == 6


def test_one_stops_while_the_other_goes_on(tmp_path: Path, run_dir: Path) -> None:
    """The first finishes and is resumed while the second has the run open: running until all are done (C8-4)."""
    b = scripts.start(tmp_path, PROGRAM, "b", "allow", "a.finished", "again")
    wait_for(tmp_path / "b.began")
    scripts.run_well(tmp_path, PROGRAM, "a", "allow")
    wait_for(tmp_path / "b.logged")
    assert scripts.the_run(run_dir).state.name == "running"
    scripts.run_well(tmp_path, PROGRAM, "a", "must")
    assert scripts.the_run(run_dir).state.name == "running"
    (tmp_path / "again").touch()
    assert scripts.end(b).code == 0
    scripts.wait_gone()
    found = scripts.the_run(run_dir)
    assert found.state.name == "finished"
    by_key = scripts.points(found)
    assert sorted(by_key["a/own"]) == sorted([(step, step) for step in STEPS] * 2)
    assert by_key["b/own"] == [(step, step) for step in STEPS]
    assert len(by_key["shared"]) == 300


def files_of(where: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in where.rglob("*") if path.is_file()}


def test_never_refuses_a_run_that_is_there(tmp_path: Path, run_dir: Path) -> None:
    """resume="never" and the run exists: BadArgument that names run and folder; the run is not touched (C8-4)."""
    scripts.run_well(tmp_path, PROGRAM, "a", "never")
    scripts.wait_gone()
    before = files_of(run_dir)
    ended = scripts.run_well(tmp_path, REFUSED, "never")
    assert "'both'" in ended.out
    assert str(run_dir) in ended.out
    scripts.wait_gone()
    assert files_of(run_dir) == before


def test_must_refuses_a_run_that_is_not_there(tmp_path: Path, run_dir: Path) -> None:
    """resume="must" and there is no such run: BadArgument, also the second time; nothing is made (C8-4)."""
    for _ in range(2):
        ended = scripts.run_well(tmp_path, REFUSED, "must")
        assert "'both'" in ended.out
        assert str(run_dir) in ended.out
        assert scripts.shm_dirs() == []
        assert not run_dir.exists()


def test_live_run_refuses_never_and_takes_must(tmp_path: Path, run_dir: Path) -> None:
    """While the run is live here, "never" is an error at once and disturbs nothing, "must" joins it (C8-4)."""
    a = scripts.start(tmp_path, PROGRAM, "a", "allow", "b.finished")
    wait_for(tmp_path / "a.began")
    ended = scripts.run_well(tmp_path, REFUSED, "never")
    assert "'both'" in ended.out
    scripts.run_well(tmp_path, PROGRAM, "b", "must")
    assert scripts.end(a).code == 0
    scripts.wait_gone()
    assert_all_rows(run_dir)


@pytest.mark.slow
def test_live_run_of_another_host_refuses_never(
    tmp_path: Path, run_dir: Path, other_host: dict[str, str]
) -> None:
    """What another host writes into the folder counts as well (C8-4)."""
    a = scripts.start(tmp_path, PROGRAM, "a", "allow", "b.finished", env=other_host)
    wait_for(tmp_path / "a.began")
    assert "'both'" in scripts.run_well(tmp_path, REFUSED, "never").out
    scripts.run_well(tmp_path, PROGRAM, "b", "must")
    assert scripts.end(a).code == 0
    wait_until(lambda: not scripts.shm_dirs(), 20, "agents leave")
    wait_until(lambda: not list(Path(other_host["LOGCLIENT_SHM_DIR"]).iterdir()), 20, "agents leave")
    assert_all_rows(run_dir)


def test_refusal_leaves_room_for_another_try(tmp_path: Path, run_dir: Path) -> None:
    """After "must" was refused, the same process starts the run with "allow"; after "never", with "must" (C8-4)."""
    code = """
    import logclient
    for first, second in (("must", "allow"), ("never", "must")):
        try:
            logclient.init(project="case", id="both", resume=first)
        except logclient.BadArgument:
            run = logclient.init(project="case", id="both", resume=second)
        for step in range(100):
            run.log(step, {"loss": step})
        assert run.finish()
    """
    scripts.run_well(tmp_path, code)
    scripts.wait_gone()
    found = scripts.the_run(run_dir)
    assert scripts.steps(found) == STEPS * 2
    assert found.state.name == "finished"


def test_settings_of_the_first_count_and_the_second_is_told(tmp_path: Path, run_dir: Path) -> None:
    """The second process names another folder: the run stays whole, in the first one's, and a line says so (C8-4)."""
    a = scripts.start(tmp_path, PROGRAM, "a", "allow", "b.finished")
    wait_for(tmp_path / "a.began")
    other = tmp_path / "elsewhere"
    ended = scripts.run(tmp_path, PROGRAM, "b", "allow", env={**os.environ, "LOGCLIENT_DIR": str(other)})
    assert ended.code == 0, ended
    assert any(str(run_dir) in line and str(other) in line for line in ended.said), ended.err
    assert scripts.end(a).code == 0
    scripts.wait_gone()
    assert_all_rows(run_dir)
    assert not other.exists()


@pytest.mark.parametrize("first", ["", "grpc://127.0.0.1:1"])
def test_server_of_the_first_counts_and_the_second_is_told(tmp_path: Path, run_dir: Path, first: str) -> None:
    """The agent that is there ships to another server, or to none: a line says so, and what takes the run there."""
    a = scripts.start(
        tmp_path, PROGRAM, "a", "allow", "b.finished", env={**os.environ, "LOGCLIENT_SERVER": first}
    )
    wait_for(tmp_path / "a.began")
    wanted = "grpc://127.0.0.1:2"
    ended = scripts.run(tmp_path, PROGRAM, "b", "allow", env={**os.environ, "LOGCLIENT_SERVER": wanted})
    assert ended.code == 0, ended
    told = [line for line in ended.said if f"logclient sync --server {wanted}" in line]
    assert len(told) == 1 and (first or "without a server") in told[0], ended.err
    assert scripts.end(a).code == 0


@pytest.mark.slow
def test_many_processes_start_at_once(tmp_path: Path, run_dir: Path) -> None:
    """Twenty processes call init with one id in the same moment: one agent, all rows (C8-4)."""
    code = """
    import os, sys, time
    import logclient
    open(f"ready{sys.argv[1]}", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.001)
    run = logclient.init(project="case", id="many")
    for step in range(100):
        run.log(step, {"own": int(sys.argv[1]) * 1000 + step})
    sys.exit(not run.finish())
    """
    started: list[subprocess.Popen[str]] = []
    for number in range(20):
        started.append(scripts.start(tmp_path, code, str(number), name=f"train{number}.py"))
    wait_until(lambda: len(list(tmp_path.glob("ready*"))) == 20, 30, "all are ready")
    (tmp_path / "go").touch()
    for process in started:
        ended = scripts.end(process, 60)
        assert ended.code == 0, ended
    scripts.wait_gone()
    found = scripts.the_run(run_dir)
    values = sorted(value for _, value in scripts.points(found)["own"])
    assert values == [number * 1000 + step for number in range(20) for step in STEPS]
    assert len(found.nodes) == 1

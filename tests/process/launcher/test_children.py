"""Children of a training program, by every way to start them: which run they are in, and that they never end it."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from logclient_backend.runs.view import RunView
from tests.conftest import Pace

from .. import scripts
from ..disturbed import wait_until
from ..launched import by_rank, ranks, the_runs, whole, writers
from ..recipes import recipe

METHODS = ("fork", "spawn", "forkserver")

# Rounds of children by three libraries. Each child leaves what it saw in a file: a pool's result may be any worker's.
SCENES = """
import json, os, sys
import logclient

def work(scene, number, wait=None):
    os.environ["RANK"] = str(number)
    if wait:
        import time
        while not os.path.exists(wait): time.sleep(0.01)
    own = None
    if scene.endswith("every") or scene.endswith("zero") and number == 0:
        own = logclient.init(project="children", name=scene.partition(" ")[0] if "alone" in scene else None)
    for step in range(10):
        logclient.log(step, {scene: number})
    told = {"refused": logclient.status()["refused"], "id": own.id if own else None}
    with open(f"{scene} {number}.new", "w") as file:
        json.dump(told, file)
    os.rename(file.name, f"{scene} {number}")
    if own and "alone" in scene:
        own.finish()

def start(library, method, scene, wait=None):
    if library == "futures":
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        pools = [ProcessPoolExecutor(1, multiprocessing.get_context(method)) for _ in range(2)]
        tasks = [pool.submit(work, scene, number, wait) for number, pool in enumerate(pools)]
        return lambda: [[task.result(60) for task in tasks], [pool.shutdown() for pool in pools]]
    import importlib
    context = importlib.import_module(library).get_context(method)
    children = [context.Process(target=work, args=(scene, number, wait)) for number in range(2)]
    for child in children: child.start()
    def join():
        for child in children:
            child.join(60)
            assert child.exitcode == 0, (scene, child.exitcode)
    return join

if __name__ == "__main__":
    method, *libraries = sys.argv[1:]
    join = start(libraries[0], method, "late none", "go")
    with logclient.init(project="children", name="late") as run:
        run.log(0, {"parent": 1})
        open("go", "w").close()
        join()
    with logclient.init(project="children", name="parent") as run:
        for library in libraries:
            for scene in ("none", "zero", "every"):
                start(library, method, f"{library}-in {scene}")()
            run.log(0, {"parent": 1})
    for library in libraries:
        start(library, method, f"{library}-alone none")()
        start(library, method, f"{library}-alone zero")()
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("method", METHODS)
def test_children_of_processes_and_pools(tmp_path: Path, run_dir: Path, method: str) -> None:
    """multiprocessing, multiprocess and concurrent.futures: the parent's run, that of rank 0 alone, or none at all."""
    libraries = ("multiprocessing", "multiprocess", "futures")
    ended = scripts.run(tmp_path, SCENES, method, *libraries, timeout_s=150)
    assert ended.code == 0, ended
    assert "Traceback" not in ended.err

    def told(scene: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = [
            json.loads((tmp_path / f"{scene} {number}").read_text()) for number in (0, 1)
        ]
        return found

    late, parent, *alone = the_runs(run_dir, 2 + len(libraries))
    assert parent.name == "parent"
    for library in libraries:
        for scene in ("none", "zero", "every"):
            key = f"{library}-in {scene}"
            assert by_rank(parent, key) == ranks(2, range(10)), key
            assert {each["id"] for each in told(key)} <= {None, parent.id}
        assert [each["refused"] for each in told(f"{library}-alone none")] == [10, 10]
        assert [each["refused"] for each in told(f"{library}-alone zero")] == [0, 10]
        (zero,) = (run for run in alone if run.name == f"{library}-alone")
        assert by_rank(zero, f"{library}-alone zero") == {0: list(range(10))}
    assert scripts.steps(parent, "parent") == [0, 0, 0]
    assert writers(parent) == 1 + 3 * 3 * 2
    # children that were there before `init`: part of the run, though no variable tells them of it
    assert [each["refused"] for each in told("late none")] == [0, 0]
    assert by_rank(late, "late none") == ranks(2, range(10))
    assert scripts.steps(late, "parent") == [0]
    assert len([line for line in ended.said if "refused" in line]) == 3 * len(libraries), ended.err


BAR = """
import itertools, multiprocessing, os, signal, sys, threading
import logclient

HOWS = ("return", "sys.exit", "os._exit", "exception")

class Planned(Exception): pass

def work(how, number):
    for step in range(100):
        logclient.log(step, {"row": number})
    match how:
        case "sys.exit": sys.exit(7)
        case "os._exit": os._exit(8)
        case "exception":
            sys.stderr = open(os.devnull, "w")
            raise Planned

if __name__ == "__main__":
    rounds = int(sys.argv[1])
    run = logclient.init("bar", name="parent")
    number = itertools.count()
    for round_ in range(rounds):
        children = []
        def start(method):
            for _ in range(8):
                n = next(number)
                how = HOWS[n % 4]
                child = multiprocessing.get_context(method).Process(target=work, args=(how, n))
                child.start()
                children.append((child, how))
        for method in ("spawn", "forkserver"): start(method)
        forking = threading.Thread(target=start, args=("fork",))  # a thread that forks
        forking.start()
        run.log(2 * round_, {"parent": 1})
        forking.join()
        for child, how in children:
            child.join(120)
            expected = {"return": 0, "sys.exit": 7, "os._exit": 8, "exception": 1}[how]
            assert child.exitcode == expected, (round_, child.name, how, child.exitcode)
            child.close()
        run.log(2 * round_ + 1, {"parent": 1})
    status = run.status()
    assert status["refused"] == 0 and status["agent"]["state"] == "running", status
    assert run.finish(60)
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_children_that_end_in_every_way(tmp_path: Path, run_dir: Path, pace: Pace) -> None:
    """Rounds of 8 forked (by a thread), 8 spawned, 8 forkserver children: all rows, run not ended (R2-34)."""
    rounds = pace.count(200, least=4)
    ended = scripts.run_well(tmp_path, BAR, str(rounds), timeout_s=200 + 20 * rounds)
    assert "Planned" not in ended.err
    (found,) = the_runs(run_dir, 1)
    rows: dict[int, list[int]] = {}
    for step, number in scripts.points(found)["row"]:
        rows.setdefault(number, []).append(step)
    assert sorted(rows) == list(range(24 * rounds))
    assert all(steps == list(range(100)) for steps in rows.values())
    assert scripts.steps(found, "parent") == list(range(2 * rounds))
    assert found.counts()["accepted"] == 24 * rounds * 100 + 2 * rounds
    assert writers(found) == 24 * rounds + 1


FINISHED = """
import os
import logclient
run = logclient.init(project="children")
run.log(0, {"parent": 1})
run.finish()
for how in (logclient.log, run.log):
    pid = os.fork()
    if pid == 0:
        how(1, {"child": 1})
        os._exit(logclient.status()["refused"])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
"""


@pytest.mark.timeout(60)
def test_fork_after_finish(tmp_path: Path, run_dir: Path) -> None:
    """A child of a process whose run is finished is told just that, and its records are counted."""
    ended = scripts.run_well(tmp_path, FINISHED)
    said = [line for line in ended.said if "cannot" in line or "refused" in line]
    assert said == ["logclient: a record was refused and counted: the run is finished"] * 2, ended.err
    (found,) = the_runs(run_dir, 1)
    assert list(scripts.points(found)) == ["parent"]


OUTLIVED = """
import multiprocessing, os, sys, time
import logclient

def wait(name):
    deadline = time.monotonic() + 60
    while not os.path.exists(name):
        assert time.monotonic() < deadline
        time.sleep(0.01)

def work(run):
    for step in range(50):
        run.log(step, {"child": 1})
    open("half", "w").close()
    wait("go")
    for step in range(50, 100):
        run.log(step, {"child": 1})
    open("done", "w").close()
    os._exit(0)

if __name__ == "__main__":
    run = logclient.init(project="children")
    child = multiprocessing.get_context(sys.argv[1]).Process(target=work, args=(run,))
    child.start()
    wait("half")
    run.log(0, {"parent": 1})
    if sys.argv[2] == "finish":
        run.finish()
    elif sys.argv[2] == "kill":
        os.kill(os.getpid(), 9)
    os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("end", ["finish", "kill"])
def test_child_that_outlives_its_parent(tmp_path: Path, run_dir: Path, end: str) -> None:
    """What a child logs after its parent has finished, or was killed, is in the run (R2-34)."""
    state = {"finish": "finished", "kill": "killed"}[end]
    for method in METHODS:
        where = tmp_path / method
        null = subprocess.DEVNULL  # the child would hold pipes open
        parent = scripts.start(where, OUTLIVED, method, end, stdout=null, stderr=null)
        ended = scripts.end(parent, 60)
        assert ended.code == (-9 if end == "kill" else 0)
        (where / "go").touch()
        wait_until((where / "done").exists, 60, "the child is done")
    for found in the_runs(run_dir, len(METHODS), state):
        assert scripts.steps(found, "child") == list(range(100))
        assert scripts.steps(found, "parent") == [0]


def recipe_run(where: Path, run_dir: Path, heading: str, **more: str) -> RunView:
    """Run a recipe of the page as it stands there; its one run."""
    page = recipe(heading)
    assert page.commands == ["python train.py"]
    ended = scripts.run(where, page.files["train.py"], timeout_s=120, env={**scripts.environment(), **more})
    assert ended.code == 0, ended
    scripts.wait_gone(60)
    return whole(scripts.the_run(run_dir))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heading", "key"),
    [("multiprocessing and multiprocess", "worker {}/loss"), ("concurrent.futures", "task {}/loss")],
)
def test_pools_of_the_page(tmp_path: Path, run_dir: Path, heading: str, key: str) -> None:
    """As the page shows it."""
    found = recipe_run(tmp_path, run_dir, heading)
    for number in range(4):
        assert scripts.steps(found, key.format(number)) == list(range(100))


LOKY = """
import os, sys
import logclient
from joblib import Parallel, delayed

def task(scene, number, run=None):
    own = None
    if scene == "own":
        own = logclient.init(project="loky", name=f"task{number}")
    elif scene == "handle":
        for step in range(100):
            run.log(step, {f"task {number}": step})
        return os.getpid(), 0
    for step in range(100):
        logclient.log(step, {f"task {number}": step})
    refused = logclient.status()["refused"]
    if own:
        own.finish()
    return os.getpid(), refused

def rounds(scene, run=None):
    told = Parallel(n_jobs=2)(delayed(task)(scene, number, run) for number in range(4))
    print(scene, len({pid for pid, _ in told}) <= 2, sorted({refused for _, refused in told}))

# no guard: loky does not need it
with logclient.init(project="loky", name="first") as run:
    rounds("log", run)
with logclient.init(project="loky", name="second") as run:
    rounds("handle", run)
rounds("log")
rounds("own")
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_joblib(tmp_path: Path, run_dir: Path) -> None:
    """Loky workers: they log to the run they were started in, ever after; to one they are handed; or to one a task."""
    ended = scripts.run(tmp_path, LOKY, timeout_s=100)
    assert ended.code == 0, ended
    assert ended.out.splitlines() == [f"{scene} True [0]" for scene in ("log", "handle", "log", "own")]
    first, second, *own = the_runs(run_dir, 6)
    assert (first.name, second.name) == ("first", "second")
    assert sorted(run.name for run in own) == [f"task{number}" for number in range(4)]
    for number in range(4):
        key = f"task {number}"
        assert scripts.steps(first, key) == 2 * list(range(100))  # the second time after its end
        assert scripts.steps(second, key) == list(range(100))
        (mine,) = (run for run in own if run.name == f"task{number}")
        assert scripts.points(mine) == {key: [(step, step) for step in range(100)]}


@pytest.mark.slow
def test_joblib_of_the_page(tmp_path: Path, run_dir: Path) -> None:
    """As the page shows it."""
    found = recipe_run(tmp_path, run_dir, "joblib")
    assert all(scripts.steps(found, f"task {number}/loss") == list(range(100)) for number in range(4))


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_datasets_of_the_page(tmp_path: Path, run_dir: Path, home: Path) -> None:
    """`map(num_proc=2)` as the page shows it: each row once, from two writers besides the owner."""
    pytest.importorskip("datasets")
    found = recipe_run(tmp_path, run_dir, "datasets", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "hf"))
    assert sorted(scripts.points(found)["prepared"]) == [(step, 2 * step) for step in range(100)]
    assert writers(found) == 3


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ray_of_the_page(tmp_path: Path, run_dir: Path, home: Path) -> None:
    """Tasks and an actor, with the run handed to them, as the page shows it; Ray leaves nothing of ours behind."""
    pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets lie there: their paths must be short
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": folder}
    try:
        found = recipe_run(tmp_path, run_dir, "Ray", **settings)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert scripts.steps(found, "actor/loss") == list(range(100))
    assert all(scripts.steps(found, f"task {number}/loss") == list(range(100)) for number in range(2))

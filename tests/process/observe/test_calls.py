"""The call recorder in real processes: threads, forks, exceptions, SIGKILL, state D, and what it keeps away from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import pythons
from tools.faults import frozen, processes

from ..disturbed import ROOT, wait_until

PATIENCE_S = 60.0
PYTHONS = [pytest.param(sys.executable, id="this Python")]
PYTHONS += [pytest.param(path, id=Path(path).name) for path in pythons.newer()]

PACKAGES = {
    "mypkg/__init__.py": "",
    "mypkg/work.py": """
import time
def leaf(x): return x + 1
def fails(): raise ValueError
def caught():
    try: fails()
    except ValueError: pass
def numbers():
    yield 1
    yield 2
def outer():
    for number in range(3): leaf(number)
    caught()
    list(numbers())
def many(count):
    for number in range(count): leaf(number)
def wait(path):
    open(path + ".inside", "w").close()
    while True: time.sleep(0.01)
def write(path): open(path, "w").close()
""",
    "mypkg/left_out.py": "def hidden(): pass\n",
    "mypkgs.py": "def similar(): pass\n",
    "other.py": "def step(x): return x\n",
}
PRELUDE = """
import json, os, sys, threading, time
sys.path[:0] = [{root!r}, {root!r} + "/backend", {folder!r}]
import logclient, other, mypkgs
from mypkg import left_out, work
run = logclient.init("calls", name=f"calls-{{os.getpid()}}", quiet=True, dir={runs!r})
from logclient.shm.calls import Calls
def path(): return run._session.lanes.path.removesuffix(".lanes") + ".calls"
def seen(most=1000):
    found = Calls(path()).threads(most)
    return {{k: [(c.function, "return" if c.is_return else "call") for c in v] for k, v in found.items()}}
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    for name, text in PACKAGES.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return tmp_path


def command(python: str, folder: Path, run_dir: Path, source: str) -> list[str]:
    program = folder / "program.py"
    head = PRELUDE.format(root=str(ROOT), folder=str(folder), runs=str(run_dir))
    program.write_text(head + textwrap.dedent(source))
    return [python, str(program)]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "LOGCLIENT_PYTHON": sys.executable, **more}


def result(python: str, folder: Path, run_dir: Path, source: str, **env: str) -> Any:
    """The last line that it prints, as JSON."""
    words = command(python, folder, run_dir, source)
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, env=environment(**env))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def running(python: str, folder: Path, run_dir: Path, source: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command(python, folder, run_dir, source), env=environment())
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def why(*words: object) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "logclient_backend", "why", *map(str, words), "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
    )
    assert done.returncode in (0, 3, 4), done.stderr
    return json.loads(done.stdout) if done.stdout else {"error": done.stderr}


OUTER = [
    ["outer", "call"],
    *[["leaf", "call"], ["leaf", "return"]] * 3,
    *[["caught", "call"], ["fails", "call"], ["fails", "return"], ["caught", "return"]],
    *[["numbers", "call"], ["numbers", "return"]] * 3,
    ["outer", "return"],
]


@pytest.mark.parametrize("python", PYTHONS)
def test_calls_of_a_package_are_recorded_and_no_others(python: str, packages: Path, run_dir: Path) -> None:
    """Returns, exceptions and generators too; a package of a similar name and an excluded module are others."""
    source = """
    run.trace(["mypkg"], exclude=["mypkg.left_out"])
    def everything():
        work.outer(); other.step(1); mypkgs.similar(); left_out.hidden(); json.dumps({})
    everything()
    found = seen()[os.getpid()]
    run.trace("other, mypkg.left_out")
    everything()
    print(json.dumps([found, seen()[os.getpid()]]))
    """
    found, then = result(python, packages, run_dir, source)
    assert found == OUTER
    assert then == [["step", "call"], ["step", "return"], ["hidden", "call"], ["hidden", "return"]]


@pytest.mark.parametrize("python", PYTHONS)
def test_each_thread_has_its_own_ring(python: str, packages: Path, run_dir: Path) -> None:
    """Rings of threads that ended are used again; without a free one calls of a thread are left out and counted."""
    source = """
    logclient.trace(include=["mypkg"])
    work.leaf(0)
    for _ in range(40):
        thread = threading.Thread(target=work.outer); thread.start(); thread.join()
    one = {k: v for k, v in seen().items() if k != os.getpid()}
    go, ready = threading.Event(), threading.Semaphore(0)
    def hold():
        work.leaf(1); ready.release(); go.wait(); work.leaf(2)
    threads = [threading.Thread(target=hold) for _ in range(20)]
    for thread in threads: thread.start()
    for thread in threads: ready.acquire()
    held, without = len(seen()), Calls(path()).without_ring
    go.set()
    for thread in threads: thread.join()
    print(json.dumps([list(one.values())[:1], held, without, seen()[os.getpid()]]))
    """
    one, held, without, main = result(python, packages, run_dir, source)
    assert one == [OUTER]
    assert held == 16 and without == 5
    assert main[:2] == [["leaf", "call"], ["leaf", "return"]]


@pytest.mark.parametrize("python", PYTHONS)
def test_last_ten_thousand_calls_are_kept(python: str, packages: Path, run_dir: Path) -> None:
    """The oldest go first; what is read is whole, also while another process reads it."""
    source = """
    run.trace(["mypkg"])
    work.many(100_000)
    found = Calls(path()).threads(100_000)[os.getpid()]
    times = [call.time_s for call in found]
    print(json.dumps([len(found), times == sorted(times), sorted({call.function for call in found}),
                      found[-1].function, found[0].file.endswith("mypkg/work.py"), found[0].line]))
    """
    count, is_sorted, functions, last, has_file, line = result(python, packages, run_dir, source)
    assert count >= 20_000 and is_sorted and functions == ["leaf", "many"] and last == "many"
    assert has_file and line == 3


@pytest.mark.parametrize("python", PYTHONS)
def test_forked_child_records_for_itself(python: str, packages: Path, run_dir: Path) -> None:
    """Not before it logs; the parent's ring has none of its calls, and what the child ran of `outer` is its own."""
    source = """
    run.trace(["mypkg"])
    work.leaf(0)
    parent = path()
    pid = os.fork()
    if pid == 0:
        work.outer()
        run.log(1, {"a": 1.0})
        work.outer()
        with open("child.json", "w") as file: json.dump([path() != parent, list(seen().values())], file)
        os._exit(0)
    os.waitpid(pid, 0)
    work.leaf(1)
    print(json.dumps([seen()[os.getpid()], json.load(open("child.json"))]))
    """
    main, (is_other, child) = result(python, packages, run_dir, f"    os.chdir({str(packages)!r})" + source)
    assert main == [["leaf", "call"], ["leaf", "return"]] * 2
    assert is_other and child == [OUTER]


@pytest.mark.parametrize("python", PYTHONS)
def test_it_keeps_away_from_other_tools(python: str, packages: Path, run_dir: Path) -> None:
    """A profiler or debugger stays; one sentence says so. After `finish` nothing is left in the way of others."""
    source = """
    def theirs(*_): return None
    sys.setprofile(theirs)
    first, stays = run.trace(["mypkg"]), sys.getprofile() is theirs
    sys.setprofile(None)
    sys.settrace(theirs)
    second, traces = run.trace(["mypkg"]), sys.gettrace() is theirs
    sys.settrace(None)
    third = run.trace(["mypkg"])
    wrong = [run.trace(each) for each in ([], 7, [7], "")]
    notices = run.status()["notices"]
    run.finish(10)
    work.outer()
    monitoring = getattr(sys, "monitoring", None)
    tool = monitoring and monitoring.get_tool(2)
    print(json.dumps([first, stays, second, traces, third, wrong, notices, [sys.getprofile(), tool]]))
    """
    found = result(python, packages, run_dir, source)
    assert found[:5] == [False, True, False, True, True] and found[5] == [False] * 4
    assert len(found[6]) == 1 and "a profiler is installed" in found[6][0]
    assert found[7] == [None, None]


@pytest.mark.parametrize("python", PYTHONS)
def test_setting_needs_no_change_of_the_program(python: str, packages: Path, run_dir: Path) -> None:
    source = "work.leaf(1)\nprint(json.dumps(seen()[os.getpid()]))\n"
    found = result(python, packages, run_dir, source, LOGCLIENT_TRACE="other,mypkg")
    assert found == [["leaf", "call"], ["leaf", "return"]]


@pytest.mark.parametrize("python", PYTHONS)
def test_program_of_the_package_itself_is_recorded(python: str, packages: Path, run_dir: Path) -> None:
    """`python -m mypkg.main`: its module is called __main__."""
    head = PRELUDE.format(root=str(ROOT), folder=str(packages), runs=str(run_dir))
    (packages / "mypkg/main.py").write_text(
        head + "run.trace(['mypkg'])\ndef f(): pass\nf()\nprint(json.dumps(seen()[os.getpid()]))\n"
    )
    words = [python, "-m", "mypkg.main"]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=PATIENCE_S, cwd=packages, env=environment()
    )
    assert json.loads(done.stdout.splitlines()[-1])[:2] == [["f", "call"], ["f", "return"]], done.stderr


def test_calls_are_read_while_it_lives_and_after_sigkill(packages: Path, run_dir: Path) -> None:
    """`why --calls` by PID: from shared memory, then from the run folder, when the agent has left."""
    inside = packages / "at"
    source = f"""
    run.trace(["mypkg"])
    run.log(1, {{"a": 1.0}})
    work.many(20_000)
    work.wait({str(inside)!r})
    """
    with running(sys.executable, packages, run_dir, source) as process:
        wait_until((packages / "at.inside").exists, PATIENCE_S, "it is inside")
        found = why("--calls", process.pid)
        assert found["is_alive"] and found["pid"] == process.pid
        (thread,) = found["threads"]
        last = thread["calls"][-1]
        assert (last["function"], last["event"]) == ("wait", "call") and len(thread["calls"]) == 20_000
        assert why(f"calls-{process.pid}", "--calls", process.pid)["run"] == found["run"]
        (seen,) = why(found["run"])["processes"]
        assert seen["last_calls"][0]["calls"][-1]["function"] == "wait"
        process.kill()
        process.wait(PATIENCE_S)
        killed = why("--calls", process.pid, "--dir", run_dir)
        assert "error" not in killed, killed["error"]
        assert killed["threads"][0]["calls"][-1]["function"] == "wait"
        wait_until(lambda: list(run_dir.glob("*/*/calls-*")), PATIENCE_S, "they are in the run folder")
        kept = wait_until(
            lambda: why("--calls", process.pid, "--dir", run_dir).get("threads"), PATIENCE_S, "they are found"
        )
        (path,) = run_dir.glob("*/*/calls-*")
        assert path.stat().st_mode & 0o077 == 0o044 & path.stat().st_mode
        assert len(kept[0]["calls"]) == 20_000 and kept[0]["calls"][-1]["function"] == "wait"


def test_finished_run_leaves_no_calls(packages: Path, run_dir: Path) -> None:
    """Neither in shared memory nor in the run folder."""
    source = (
        "run.trace(['mypkg'])\nwork.leaf(1)\nrun.log(1, {'a': 1.0})\nfolder = run._session.shm_dir.path\n"
    )
    source += "mode = os.stat(path()).st_mode & 0o777\nrun.finish(30)\nprint(json.dumps([folder, mode]))\n"
    folder, mode = result(sys.executable, packages, run_dir, source)
    assert mode == 0o600
    wait_until(lambda: not os.path.exists(folder), PATIENCE_S, "the agent has left")
    assert not list(run_dir.glob("*/*/calls-*"))


@pytest.mark.root
@pytest.mark.parametrize("python", PYTHONS)
def test_calls_are_read_while_it_is_in_state_d(
    python: str, packages: Path, run_dir: Path, disk: frozen.LoopExt4
) -> None:
    """A file on a frozen disk: the function that opens it was called, and has not returned."""
    source = f"""
    run.trace(["mypkg"])
    work.many(20_000)
    open({str(packages / "ready")!r}, "w").close()
    while not os.path.exists({str(packages / "go")!r}): time.sleep(0.01)
    work.write({str(disk.path / "file")!r})
    """
    with running(python, packages, run_dir, source) as process:
        wait_until((packages / "ready").exists, PATIENCE_S, "it is ready")
        with disk.frozen():
            (packages / "go").touch()
            wait_until(lambda: processes.state_of(process.pid) == "D", PATIENCE_S, "it waits for the disk")
            (thread,) = why("--calls", process.pid)["threads"]
            last = thread["calls"][-1]
            assert (last["function"], last["event"]) == ("write", "call") and len(thread["calls"]) == 20_000

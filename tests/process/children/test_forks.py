"""Forked, spawned and pooled children: lanes of their own, the parent's run whole, however a child ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from logclient.shm import layout
from logclient.shm.owner import is_locked
from tests.lanes import Script, by_pid, lane_files, wait_until

FLOOR = 256 << 10

# each starts a child that runs `work` and ends by `end`, and waits for it
FORKS = {
    "os.fork": """
def start(work, end):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            end()
        except Exception:
            os._exit(9)
        finally:
            if end is leave:
                os._exit(0)
    os.waitpid(pid, 0)
""",
    "fork in C": """
import ctypes
libc = ctypes.CDLL(None)

def start(work, end):
    pid = libc.fork()
    if pid == 0:
        try:
            work()
            end()
        except Exception:
            os._exit(9)
        finally:
            if end is leave:
                os._exit(0)
    os.waitpid(pid, 0)
""",
    "multiprocessing": """
import multiprocessing

def start(work, end):
    def target():
        work()
        end()
    process = multiprocessing.get_context("fork").Process(target=target)
    sys.stderr = open(os.devnull, "w")
    process.start()
    process.join()
    sys.stderr = sys.__stderr__
""",
}
ENDS = """
def leave(): pass
def exit_early(): sys.exit(3)
def fail(): raise ValueError("of the child")
def drop(): os._exit(4)
"""
PARENT = """
run = logclient.init("forks", config={"lr": 1.0})
run.log(1, {"who": 1.0})

def work():
    for step in range(10):
        logclient.log(step, {"who": 2.0, "pid": os.getpid()})
    run.summary["child"] = os.getpid()

start(work, globals()[sys.argv[1]])
run.log(2, {"who": 1.0})
print(json.dumps([os.getpid(), run.status()["accepted"], os.listdir(run._session.shm_dir.path)]))
run.finish()
"""


@pytest.mark.first_is_quick
@pytest.mark.parametrize("end", ["leave", "exit_early", "fail", "drop"])
@pytest.mark.parametrize("how", FORKS)
def test_child_logs_into_lanes_of_its_own_and_its_end_ends_nothing(
    how: str, end: str, run_dir: Path, tmp_path: Path
) -> None:
    """Case R2-34: return, sys.exit, exception or os._exit: own process id, floor size; only the owner ends the run."""
    parent, accepted, _ = Script(tmp_path, FORKS[how] + ENDS + PARENT, end).result()
    found = by_pid()
    assert accepted == 2 and len(found) == 2
    own, records = found.pop(parent)
    assert [record.values for record in records] == [{"who": 1.0}] * 2
    assert own.document("start")["role"] == "owner"
    assert own.document("state")["state"] == "finished"
    assert own.document("summary") is None
    assert own.words[layout.STATE] == layout.STATE_FINISHED
    ((child, (file, records)),) = found.items()
    assert [record.step for record in records] == list(range(10))
    assert {record.values["pid"] for record in records} == {child} and {
        record.lane for record in records
    } == {0}
    assert len(file.mem) == FLOOR
    assert file.document("start")["role"] == "member" and file.document("start")["pid"] == child
    assert file.document("state") is None and file.words[layout.STATE] == layout.STATE_OPEN
    assert file.document("summary") == {"child": child}
    assert not is_locked(str(file.path.with_suffix(".live")))


def test_child_that_never_logs_makes_nothing(run_dir: Path, tmp_path: Path) -> None:
    """A forked probe or data-loader worker costs no file, touches no lane, and its exit hook does nothing."""
    source = """
    run = logclient.init("forks")
    before = sorted(os.listdir(run._session.shm_dir.path))
    pid = os.fork()
    if pid == 0:
        sys.exit(run.status()["accepted"] + run.flush(0) - 1)
    code = os.waitpid(pid, 0)[1]
    print(json.dumps([code, sorted(os.listdir(run._session.shm_dir.path)) == before]))
    """
    assert Script(tmp_path, source).result() == [0, True]
    (file,) = lane_files()
    assert file.document("state")["by"] == "exit"


def test_fork_in_a_handler_that_interrupted_log(run_dir: Path, tmp_path: Path) -> None:
    """The child returns into a log() that the parent began: `os.fork` or in C, neither writes the other's lanes."""
    source = """
    import ctypes
    libc = ctypes.CDLL(None)
    run = logclient.init("forks")
    parent = os.getpid()
    children = []
    is_over = False

    def fork(number, frame):
        if os.getpid() != parent or len(children) >= 40 or not frame.f_globals["__name__"].startswith("logclient."):
            return
        pid = os.fork() if len(children) % 2 else libc.fork()
        if pid:
            children.append(pid)
        elif len(children) % 4 < 2:
            logclient.log(-1, {"child": 1.0})  # the handler itself logs before it returns into the parent's call

    signal.signal(signal.SIGALRM, fork)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    step = 0
    while os.getpid() == parent and len(children) < 40 or step < 100:
        step += 1
        row = {"step": float(step)} if step % 3 else {f"k{step}": step, "step": float(step)}
        logclient.log(step, row)
        if os.getpid() != parent:
            break
    if os.getpid() != parent:
        for more in range(5):
            logclient.log(step + more, {"child": 1.0})
        os._exit(0 if run.status()["refused"] == 0 else 1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    codes = [os.waitpid(pid, 0)[1] for pid in children]
    print(json.dumps([parent, step, codes, run.status()]))
    """
    parent, steps, codes, status = Script(tmp_path, source).result()
    assert codes == [0] * 40
    found = by_pid()
    own, records = found.pop(parent)
    assert status["accepted"] == steps == len(records) + sum(own.forgotten) and status["refused"] == 0
    assert not sum(own.damaged)
    assert [record.values["step"] for record in records] == [record.step for record in records]
    assert sorted({record.step for record in records}) == [record.step for record in records]
    assert len(found) == 40
    for file, records in found.values():
        assert [r.values["child"] for r in records if "child" in r.values and r.step >= 0] == [1.0] * 5
        assert len(records) <= 7 and not sum(file.damaged)


def test_fork_while_another_thread_is_inside_log(run_dir: Path, tmp_path: Path) -> None:
    """The child inherits nothing held: its first log() works though the parent's lanes were all in hand."""
    source = """
    run = logclient.init("forks")
    is_over = False

    def busy(number):
        step = 0
        while not is_over:
            step += 1
            run.log(step, {f"t{number}": step + 0.5, "text": "x"} if step % 2 else {f"new{step % 5000}": 1})

    threads = [threading.Thread(target=busy, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    codes = []
    for child in range(15):
        pid = os.fork()
        if pid == 0:
            begun = time.monotonic()
            for step in range(20):
                run.log(step, {"child": float(child), "fresh": step})
            quick = time.monotonic() - begun < 5
            status = run.status()
            os._exit(0 if status["accepted"] == 20 and not status["refused"] and quick else 1)
        codes.append(os.waitpid(pid, 0)[1])
    is_over = True
    for thread in threads:
        thread.join()
    lanes = run._session.lanes
    print(json.dumps([os.getpid(), codes, run.status(), len(lanes.first) + len(lanes.others)]))
    """
    parent, codes, status, lanes_back = Script(tmp_path, source).result()
    assert codes == [0] * 15 and lanes_back == 4
    found = by_pid()
    own, records = found.pop(parent)
    assert len(records) + sum(own.forgotten) == status["accepted"] and not sum(own.damaged)
    assert len(found) == 15
    assert all([r.values["fresh"] for r in records] == list(range(20)) for _, records in found.values())


def test_all_threads_of_a_child_get_its_lanes(run_dir: Path, tmp_path: Path) -> None:
    """One thread of the child makes them, the others wait a moment; nothing is refused."""
    source = """
    run = logclient.init("forks")
    pid = os.fork()
    if pid == 0:
        barrier = threading.Barrier(4)
        def work(number):
            barrier.wait()
            for step in range(200):
                run.log(step, {"n": float(number)})
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        status = run.status()
        os._exit(0 if (status["accepted"], status["refused"]) == (800, 0) else 1)
    print(json.dumps(os.waitpid(pid, 0)[1]))
    """
    assert Script(tmp_path, source).result() == 0
    assert len(lane_files()) == 2


def test_grandchildren_have_lanes_of_their_own(run_dir: Path, tmp_path: Path) -> None:
    """A fork of a fork, with and without a log() in between."""
    source = """
    run = logclient.init("forks")
    def descend(depth):
        if depth % 2:
            run.log(depth, {"depth": float(depth)})
        pid = os.fork() if depth < 5 else None
        if pid == 0:
            descend(depth + 1)
            os._exit(0)
        if pid:
            os.waitpid(pid, 0)
    descend(0)
    print("null")
    """
    Script(tmp_path, source).result()
    found = [record.step for file in lane_files() for record in file.read()]
    assert sorted(found) == [1, 3, 5]


def test_child_outlives_the_parent(run_dir: Path, tmp_path: Path) -> None:
    """Case R2-34: it goes on logging after the owner has finished; its lock says that it lives."""
    source = """
    run = logclient.init("forks")
    pid = os.fork()
    if pid == 0:
        os.close(1)
        os.close(2)
        run.log(1, {"child": 1.0})
        signal.sigwait({signal.SIGUSR1})
        run.log(2, {"child": 1.0})
        signal.sigwait({signal.SIGUSR1})
        os._exit(0)
    run.log(1, {"parent": 1.0})
    print(json.dumps(pid))
    """
    source = source.replace(
        "run = logclient", "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n    run = logclient"
    )
    child = Script(tmp_path, source).result()
    try:
        file = wait_until(lambda: {file.pid: file for file in lane_files()}.get(child), "the child's lanes")
        wait_until(lambda: file.accepted == 1, "its first record")
        os.kill(child, signal.SIGUSR1)
        wait_until(lambda: file.accepted == 2, "its second record")
        assert is_locked(str(file.path.with_suffix(".live")))
    finally:
        os.kill(child, signal.SIGKILL)
    wait_until(lambda: not is_locked(str(file.path.with_suffix(".live"))), "its lock is free")
    assert [record.step for record in file.read()] == [1, 2]

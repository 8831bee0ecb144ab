"""`logclient why` on real processes that hang in one way each; nothing in their names or arguments says how."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.faults import processes

from ..disturbed import ROOT, wait_until
from .plant import LOGGED, PATIENCE_S, RANKS, of, program, settled, why


def test_process_that_sleeps_is_in_user_code(tmp_path: Path) -> None:
    """Function, file and line of the user's own frame, whatever library it waits in."""
    source = """
    import threading
    def f(lock):
        ready()
        lock.wait()
    f(threading.Event())
    """
    with program(tmp_path, source) as (process,):
        found, code = settled("user code", "--pid", process.pid)
        assert (code, found["pids"]) == (3, [process.pid])
        assert f"f ({tmp_path}/main.py:" in found["text"]
        assert process.poll() is None


@pytest.mark.slow
def test_process_that_moves_is_not_stuck(tmp_path: Path) -> None:
    """Two functions in turns; one that computes in the same function is one of which nobody can tell."""
    source = """
    def f(): time.sleep(0.05)
    def g(): sum(range(1_000_000))
    ready()
    while True: f(); g()
    """
    with program(tmp_path, source) as (process,):
        kinds = {why("--pid", process.pid, "--apart", 2.1)[0]["verdict"] for _ in range(2)}
        assert kinds <= {"not stuck", "cannot tell"}, kinds
    endless = "ready()\nwhile True: pass\n"
    with program(tmp_path, endless) as (process,):
        found, code = settled("cannot tell", "--pid", process.pid)
        assert code == 4 and found["processes"][0]["cpu_share"] > 0.02


@pytest.mark.slow
def test_stopped_and_gone(tmp_path: Path) -> None:
    """SIGSTOP; then a PID that is no process any more."""
    with program(tmp_path, "ready()\nwhile True: time.sleep(0.01)\n") as (process,):
        with processes.stopped(process.pid):
            found, code = why("--pid", process.pid)
            assert (found["verdict"], code) == ("stopped", 3)
        process.kill()
        process.wait(PATIENCE_S)
        found, code = why("--pid", process.pid)
        assert (found["verdict"], code) == ("process gone", 3)


def test_process_that_is_no_python_is_named(tmp_path: Path) -> None:
    """What can be read of it is shown, with the reason why there is no stack."""
    process = subprocess.Popen(["sleep", "1000"])
    try:
        found, code = why("--pid", process.pid)
        assert (found["verdict"], code) == ("cannot tell", 4)
        (each,) = found["processes"]
        assert each["kernel_state"] == "S" and each["no_stack"] and not each["frames"]
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def test_processes_are_neither_traced_nor_signalled(tmp_path: Path) -> None:
    """By the system calls of the command and its children: memory is read, and nothing else is done to a process."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    trace = tmp_path / "trace"
    calls = "trace=ptrace,kill,tkill,tgkill,pidfd_send_signal,process_vm_readv,process_vm_writev"
    with program(tmp_path, "def f(): time.sleep(1000)\nready()\nf()\n", count=2) as begun:
        found, _ = why(*of(begun), wrap=["strace", "-f", "-o", str(trace), "-e", calls])
        assert all(each["frames"] for each in found["processes"])
        lines = trace.read_text().splitlines()
        for process in begun:
            touched = [line for line in lines if f"({process.pid}," in line]
            assert touched and all(" process_vm_readv(" in line for line in touched)
    assert not [line for line in lines if " ptrace(" in line]


@pytest.mark.slow
def test_live_run_by_its_name(tmp_path: Path, run_dir: Path) -> None:
    """Late by its own rhythm: an endless loop is user code then; while it logs it is not stuck."""
    with program(tmp_path, LOGGED.format(dir=str(run_dir), name="loops") + "while True: pass\n") as (
        process,
    ):
        found, code = settled("user code", "loops", "--late-after", 2)
        (each,) = found["processes"]
        assert (code, found["pids"], each["step"]) == (3, [process.pid], 49) and each["age_s"] > 2
        assert "step 49" in found["text"]
        fresh, code = why("loops", "--late-after", 600)
        assert (fresh["verdict"], code) == ("not stuck", 0)
    (tmp_path / "ready0").unlink()
    moves = "while True: step += 1; run.log(step, {'loss': 0.0}); time.sleep(0.05)\n"
    with program(tmp_path, LOGGED.format(dir=str(run_dir), name="moves") + moves):
        found, code = why("moves", "--late-after", 60)
        assert (found["verdict"], code) == ("not stuck", 0)
        assert found["text"].startswith("every rank logged a record a short while ago")


@pytest.mark.slow
def test_declared_phase_is_not_stuck_until_its_time_is_over(tmp_path: Path, run_dir: Path) -> None:
    """As a context manager it ends with the block; the verdict says what was declared."""
    source = (
        LOGGED.format(dir=str(run_dir), name="saves")
        + """
with run.progress(300, "checkpoint"):
    run.log(50, {"inside": 1.0})
    open("inside", "w").close()
    while not os.path.exists("go"): time.sleep(0.01)
while True: pass
"""
    )
    with program(tmp_path, source):
        wait_until(lambda: (tmp_path / "inside").exists(), PATIENCE_S, "it is inside")
        time.sleep(2.0)
        found, code = why("saves", "--late-after", 1)
        assert (found["verdict"], code) == ("not stuck", 0) and "'checkpoint'" in found["text"], found["text"]
        (tmp_path / "go").touch()
        settled("user code", "saves", "--late-after", 1)


@pytest.mark.slow
def test_child_that_did_its_work_is_not_missed(tmp_path: Path, run_dir: Path) -> None:
    """Forked, logged, ended by `os._exit`: whether its parent logs on, or is late for a reason of its own."""
    source = (
        LOGGED.format(dir=str(run_dir), name="forks")
        + """
pid = os.fork()
if pid == 0:
    run.log(0, {"child": 1.0})
    os._exit(0)
os.waitpid(pid, 0)
open("forked", "w").close()
while not os.path.exists("go"): run.log(1, {"parent": 1.0}); time.sleep(0.05)
while True: pass
"""
    )
    with program(tmp_path, source):
        wait_until(lambda: (tmp_path / "forked").exists(), PATIENCE_S, "the child has ended")
        found, code = why("forks", "--late-after", 60)
        assert (found["verdict"], code) == ("not stuck", 0), found["text"]
        (tmp_path / "go").touch()
        settled("user code", "forks", "--late-after", 1)


def test_no_run_and_more_than_one_are_errors(tmp_path: Path, run_dir: Path) -> None:
    """With a sentence that names what there is, and not the exit code of a run that is stuck."""
    command = [sys.executable, "-m", "logclient_backend", "why"]
    done = subprocess.run([*command, "nobody"], capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT)
    assert done.returncode == 4 and "No live run on this host is called 'nobody'" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        ("time.sleep(1000)", "user code"),
        ("os.kill(os.getpid(), 19)", "stopped"),
        ("dist.all_reduce(__import__('torch').ones(1 << 20))", "collective or peer"),
    ],
    ids=["asleep", "stopped", "another collective"],
)
def test_odd_rank_among_gloo_ranks_is_named(tmp_path: Path, odd: str, kind: str) -> None:
    """Four ranks; the others wait in a barrier."""
    pytest.importorskip("torch")
    with program(tmp_path, RANKS.format(odd=odd), count=4) as begun:
        found, code = settled(kind, *of(begun))
        assert (found["pids"], code) == ([begun[2].pid], 3), found["text"]
        assert "wait for their peers" in found["text"]
        if kind != "stopped":
            sizes = sorted(len(group["pids"]) for group in found["groups"])
            assert sizes == [1, 3]
        os.kill(begun[2].pid, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_loader_worker_that_hangs_is_data_loading(tmp_path: Path) -> None:
    """The main process waits in its data loader; the child that hangs is named with its own state."""
    pytest.importorskip("torch")
    source = """
    import torch
    from torch.utils.data import DataLoader, Dataset
    class Items(Dataset):
        def __len__(self): return 100
        def __getitem__(self, at):
            if at == 7: time.sleep(1000)
            return torch.ones(1)
    def f():
        for number, _ in enumerate(DataLoader(Items(), num_workers=1)):
            if number == 3: ready()
    f()
    """
    with program(tmp_path, source) as (process,):
        found, code = settled("data loading", "--pid", process.pid)
        assert (found["pids"], code) == ([process.pid], 3), found["text"]
        assert "its data-loader child" in found["text"] and "__getitem__" in found["text"]

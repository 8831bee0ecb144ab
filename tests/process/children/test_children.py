"""Other ways to children: multiprocessing in each of its ways, pools, data loaders, exec; and what they inherit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import Pace
from tests.lanes import Script, by_pid, lane_files

LISTING = """
import os
links = ["/proc/self/fd/" + fd for fd in os.listdir("/proc/self/fd")]
print([link for link in links if os.path.exists(link) and "logclient-" in os.readlink(link)])
"""


def test_descriptors_do_not_survive_exec(run_dir: Path, tmp_path: Path) -> None:
    """Cases C3-2 and S-1: ring, lock and status descriptors are close-on-exec, in the owner and in a forked child."""
    source = """
    import subprocess
    run = logclient.init("forks")
    run.log(1, {"a": 1.0})
    def seen():
        ask = [sys.executable, "-c", sys.argv[1]]
        return subprocess.run(ask, close_fds=False, capture_output=True, text=True).stdout.strip()
    first = seen()
    pid = os.fork()
    if pid == 0:
        run.log(1, {"a": 1.0})
        os._exit(0 if seen() == first else 1)
    own = [p for p in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{p}")]
    held = [p for p in own if "logclient-" in os.readlink(f"/proc/self/fd/{p}")]
    print(json.dumps([first, os.waitpid(pid, 0)[1], len(held), [os.get_inheritable(int(p)) for p in held]]))
    """
    first, code, held, inheritable = Script(tmp_path, source, LISTING).result()
    assert first == "[]" and code == 0
    assert held >= 2 and not any(inheritable)


@pytest.mark.slow
def test_fork_leaves_no_process_thread_or_file_open(run_dir: Path, tmp_path: Path) -> None:
    """Case S-1: a hundred children that log and go: descriptors of the parent do not grow, nobody warns."""
    source = """
    run = logclient.init("forks")
    before = len(os.listdir("/proc/self/fd"))
    for child in range(int(sys.argv[1])):
        pid = os.fork()
        if pid == 0:
            run.log(child, {"a": 1.0})
            os._exit(len(os.listdir("/proc/self/fd")) - before > 1)
        assert os.waitpid(pid, 0)[1] == 0
        run.log(child, {"a": 1.0})
    print(json.dumps([before, len(os.listdir("/proc/self/fd")), threading.active_count()]))
    """
    before, after, threads = Script(tmp_path, source, 100).result()
    assert before == after and threads == 1
    assert len(lane_files()) == 101


@pytest.mark.parametrize("kind", ["fork", "spawn", "forkserver"])
def test_multiprocessing_children_with_the_pickled_run(kind: str, run_dir: Path, tmp_path: Path) -> None:
    """Case R2-34: a pickled Run is a handle that re-attaches; children end by return, os._exit and SIGKILL."""
    source = """
    import multiprocessing
    run = None

    def work(run, number):
        for step in range(5):
            run.log(step, {"number": float(number)})
        assert logclient.log(5, {"number": float(number)}) is None
        if number % 3 == 1:
            os._exit(0)
        if number % 3 == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    if __name__ == "__main__":
        run = logclient.init("forks", name="parent")
        context = multiprocessing.get_context(sys.argv[1])
        children = [context.Process(target=work, args=(run, number)) for number in range(6)]
        for child in children: child.start()
        for child in children: child.join()
        run.log(1, {"parent": 1.0})
        print(json.dumps([os.getpid(), [child.exitcode for child in children]]))
    """
    parent, codes = Script(tmp_path, source, kind).result(timeout_s=90)
    assert codes == [0, 0, -9, 0, 0, -9]
    found = by_pid()
    own, records = found.pop(parent)
    assert own.document("state")["state"] == "finished" and len(records) == 1
    assert len(found) == 6
    numbers: list[float] = []
    for file, records in found.values():
        assert [record.step for record in records] == list(range(6))
        assert file.document("start")["role"] == "member" and file.document("state") is None
        assert file.path.parent == own.path.parent
        numbers += {record.values["number"] for record in records}
    assert sorted(numbers) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_pool_workers_log_into_the_run(kind: str, run_dir: Path, tmp_path: Path) -> None:
    """Workers are reused: each has one lane file however many tasks it does."""
    source = """
    import multiprocessing

    def task(number):
        logclient.log(number, {"task": float(number)})
        return os.getpid()

    if __name__ == "__main__":
        run = logclient.init("forks")
        with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
            pids = pool.map(task, range(40), chunksize=1)
        print(json.dumps([os.getpid(), sorted(set(pids))]))
    """
    parent, workers = Script(tmp_path, source, kind).result(timeout_s=90)
    found = by_pid()
    del found[parent]
    assert sorted(found) == workers
    tasks = [record.values["task"] for _, records in found.values() for record in records]
    assert sorted(tasks) == list(range(40))


@pytest.mark.slow
def test_data_loader_workers_log_or_not_and_never_hang(run_dir: Path, tmp_path: Path, pace: Pace) -> None:
    """Case C3-2: rounds of a DataLoader with forked workers while rows flow; no thread, socket or library of ours."""
    pytest.importorskip("torch")
    source = """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Data(Dataset):
        def __len__(self): return 16
        def __getitem__(self, index):
            if noisy:
                logclient.log(index, {"index": float(index)})
            return torch.tensor(index)

    torch.set_num_threads(1)
    run = logclient.init("forks")
    step = 0
    for round_ in range(int(sys.argv[1])):
        noisy = round_ % 2
        for batch in DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
            step += 1
            run.log(step, {"sum": batch.sum()})
    ours = [name for name in sys.modules if name.startswith(("grpc", "google", "logclient_backend"))]
    threads = [thread.name for thread in threading.enumerate() if "QueueFeeder" not in thread.name]
    print(json.dumps([os.getpid(), step, run.status(), threads, ours]))
    """
    rounds = pace.count(200, least=6)
    parent, steps, status, threads, ours = Script(tmp_path, source, rounds).result(timeout_s=300)
    assert steps == 4 * rounds == status["accepted"] and status["refused"] == status["left_out"] == 0
    assert threads == ["MainThread"] and not ours
    found = by_pid()
    _, records = found.pop(parent)
    assert [record.step for record in records] == list(range(1, steps + 1))
    assert len(found) == 2 * (rounds // 2)
    assert sum(len(records) for _, records in found.values()) == 16 * (rounds // 2)


def test_exec_in_a_child_is_no_part_of_the_run(run_dir: Path, tmp_path: Path) -> None:
    """subprocess forks too: its children, and a user's os.wait(), see nothing of us."""
    source = """
    import subprocess
    run = logclient.init("forks")
    run.log(1, {"a": 1.0})
    out = subprocess.run(["true"]).returncode
    try:
        os.wait()
        children = True
    except ChildProcessError:
        children = False
    print(json.dumps([out, children]))
    """
    assert Script(tmp_path, source).result() == [0, False]
    assert len(lane_files()) == 1


def test_spawned_child_finds_the_run_by_itself(run_dir: Path, tmp_path: Path) -> None:
    """A child that never heard of the run object joins it with log(), and with init() that names nothing else."""
    script = """
    import subprocess
    if len(sys.argv) == 1:
        run = logclient.init("forks", name="parent")
        ends = [subprocess.run([sys.executable, __file__, how]).returncode for how in ("log", "init", "other")]
        print(json.dumps([run.id, ends]))
    elif sys.argv[1] == "log":
        logclient.log(1, {"child": 1.0})
    else:
        run = logclient.init("forks" if sys.argv[1] == "init" else "another")
        again = logclient.init("forks" if sys.argv[1] == "init" else "another")
        run.log(1, {"child": 2.0})
        sys.exit(0 if (again is run) == (sys.argv[1] == "init") else 1)
    """
    run_id, codes = Script(tmp_path, script).result()
    assert codes == [0, 0, 0]
    files = [file for file in lane_files() if file.document("start")["run_id"] == run_id]
    assert [file.document("start")["role"] for file in files] == ["owner", "member", "member"]
    assert [len(file.read()) for file in files] == [0, 1, 1]
    assert len(lane_files()) == 5
    assert subprocess.run(["true"], check=False).returncode == 0


def test_child_that_outlives_the_run_is_told_so(run_dir: Path, tmp_path: Path) -> None:
    """Case R2-34: what it logs first once all is stored and removed is refused, counted, and said why."""
    source = """
    import shutil
    run = logclient.init("forks", quiet=True)
    run.log(1, {"a": 1.0})
    answer, told = os.pipe()
    if os.fork() == 0:
        while os.path.exists(run._session.shm_dir.path):
            time.sleep(0.05)
        run.log(2, {"a": 2.0})
        status = run.status()
        os.write(told, json.dumps([status["refused"], status["notices"][0]]).encode())
        os._exit(0)
    run.finish(0)
    shutil.rmtree(run._session.shm_dir.path)  # as the agent does
    print(os.read(answer, 4096).decode())
    """
    refused, notice = Script(tmp_path, source).result()
    assert refused == 1 and "is over" in notice

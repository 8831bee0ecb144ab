"""Hangs that were met in the field: R2-30 (a lock, the GIL, a data-loader child) and R2-58 (a rank that ends badly)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.faults import processes

from ..disturbed import wait_until
from .plant import PATIENCE_S, asked, of, program, settled, why

JOB = """
import ctypes, pathlib, threading
import logclient
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=RANK, world_size=RANKS)
run = logclient.init(project="why", name="job", dir={dir!r}, quiet=True)
for step in range(3):
    dist.all_reduce(torch.ones(1))
    run.log(step, {{"loss": 1.0}})

class Items(Dataset):
    def __len__(self): return 8
    def __getitem__(self, at):
        if at == 5: pathlib.Path("pipe").read_bytes()
        return torch.ones(1)

def loads():
    for _ in DataLoader(Items(), num_workers=1): pass

def waits_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    ready()
    lock.acquire()

def holds_the_gil():
    ready()
    ctypes.PyDLL(None).sleep(10_000)

def is_kept_from_the_gil():
    def hold():
        while not os.path.exists("go"): time.sleep(0.01)
        ctypes.PyDLL(None).sleep(10_000)
    threading.Thread(target=hold, name="helper", daemon=True).start()
    ready()
    while True: sum(range(1000))

def meets():
    dist.all_reduce(torch.ones(1))
"""


def job(tmp_path: Path, run_dir: Path, odd: str) -> str:
    os.mkfifo(tmp_path / "pipe")
    return JOB.format(dir=str(run_dir)) + odd


def late(*words: object) -> tuple[object, ...]:
    return ("job", "--late-after", 1, *words)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ("waits_for_a_lock", "rank 2 waits in user code at waits_for_a_lock ("),
        ("holds_the_gil", "rank 2 waits in user code at holds_the_gil ("),
        ("is_kept_from_the_gil", "rank 2 waits for the GIL, which thread 'helper' holds at "),
    ],
)
def test_rank_in_a_lock_or_in_c_code_that_holds_the_gil(
    tmp_path: Path, run_dir: Path, odd: str, said: str
) -> None:
    """R2-30: four gloo ranks of which three are in a collective; with a thread that holds the GIL as evidence."""
    pytest.importorskip("torch")
    source = job(tmp_path, run_dir, f"\n{odd}() if RANK == 2 else (ready(), meets())\n")
    with program(tmp_path, source, count=4, LOGCLIENT_RUN_ID="job") as begun:
        (tmp_path / "go").touch()
        found, code = settled("user code", *late())
        assert (found["pids"], code) == ([begun[2].pid], 3), found["text"]
        assert found["text"].startswith(said), found["text"]
        assert "rank 0, rank 1, rank 3 wait for their peers" in found["text"]
        if "gil" in odd:
            assert "GIL" in found["text"]
            (rank,) = [each for each in found["processes"] if each["rank"] == 2]
            (holder,) = [thread for thread in rank["threads"] if thread["has_gil"]]
            assert any("hold" in frame for frame in holder["frames"])
        if odd == "is_kept_from_the_gil":
            assert "helper (holds the GIL): " in asked(*late()).stdout
        assert all(process.poll() is None for process in begun)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_data_loader_child_that_hangs_in_a_library(tmp_path: Path, run_dir: Path) -> None:
    """R2-30: its own code that called the library is named, in the child that hangs."""
    pytest.importorskip("torch")
    source = job(tmp_path, run_dir, "\nready()\nloads() if RANK == 2 else meets()\n")
    with program(tmp_path, source, count=4, LOGCLIENT_RUN_ID="job") as begun:
        found, code = settled("data loading", *late())
        assert (found["pids"], code) == ([begun[2].pid], 3), found["text"]
        (rank,) = [each for each in found["processes"] if each["rank"] == 2]
        (child,) = [each for each in rank["children"] if each["state"] != "data loading"]
        assert (
            f"its data-loader child {child['pid']} waits in user code at Items.__getitem__" in found["text"]
        )


BLOCKS = {
    "another exit handler, before ours": "atexit.register(block)",
    "a handler of SIGTERM": "signal.signal(signal.SIGTERM, lambda *_: block())",
    "another exit handler, after ours": "",  # registered before logclient is imported
    "teardown of the process group": "atexit.register(leave_group)",
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", BLOCKS)
def test_rank_that_raised_and_blocks_at_its_end_is_named_with_its_place(
    tmp_path: Path, run_dir: Path, place: str
) -> None:
    """R2-58: and with its exception, where our exit hook ran before."""
    pytest.importorskip("torch")
    before = "import atexit, signal\ndef block():\n    open('blocks', 'w').close()\n    time.sleep(10_000)\n"
    if place == "another exit handler, after ours":
        before += "RANK == 2 and atexit.register(block)\n"
    more = f"""
def leave_group():
    open("blocks", "w").close()
    dist.barrier()

def fails():
    {BLOCKS[place] or "pass"}
    ready()
    if "SIGTERM" in {place!r}: os.kill(os.getpid(), signal.SIGTERM)
    raise ValueError("bad batch")

fails() if RANK == 2 else (ready(), meets())
"""
    source = before + job(tmp_path, run_dir, more)
    with program(tmp_path, source, count=4, LOGCLIENT_RUN_ID="job") as begun:
        wait_until((tmp_path / "blocks").exists, PATIENCE_S, "it blocks")
        kind = "collective or peer" if "group" in place else "user code"
        found, code = settled(kind, *late())
        assert (found["pids"], code) == ([begun[2].pid], 3), found["text"]
        assert ("leave_group" if "group" in place else "block (") in found["text"], found["text"]
        if place == "another exit handler, after ours":
            assert "after the run ended in it (ValueError: bad batch)" in found["text"], found["text"]
        assert processes.is_alive(begun[2].pid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("raise ValueError('bad batch')", "has ended (ValueError: bad batch, exit code 1)"),
        ("sys.exit(0)", "has ended (finished, exit code 0)"),
        ("os.kill(os.getpid(), 9)", "has ended (signal SIGKILL)"),
    ],
)
def test_rank_that_ended_while_its_peers_wait_is_named_with_how(
    tmp_path: Path, run_dir: Path, end: str, said: str
) -> None:
    """By an exception, by its own will (it had fewer batches), by a signal; the others stay where they are."""
    source = f"""
    import logclient
    run = logclient.init(project="why", name="ends", dir={str(run_dir)!r}, quiet=True)
    for step in range(3): run.log(step, {{"loss": 1.0}})
    ready()
    if RANK == 1: {end}
    time.sleep(1000)
    """
    with program(tmp_path, source, count=3, LOGCLIENT_RUN_ID="ends") as begun:
        # not waited for, so that the agent sees how it ended
        wait_until(lambda: processes.state_of(begun[1].pid) == "Z", PATIENCE_S, "it has ended")
        texts: list[str] = []

        def is_named() -> bool:
            found, code = why("ends", "--late-after", 1)
            texts.append(found["text"])
            is_gone = (found["verdict"], found["pids"], code) == ("process gone", [begun[1].pid], 3)
            return is_gone and f"rank 1 {said}" in found["text"]

        wait_until(is_named, PATIENCE_S, f"{said!r} is in {texts}")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_in_backward_wait_for_the_one_that_is_elsewhere(tmp_path: Path) -> None:
    """Distributed data parallel: the wait for peers is in C code, and the stack shows `backward` alone."""
    pytest.importorskip("torch")
    source = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=RANK, world_size=RANKS)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    def train():
        model(torch.ones(2, 4)).sum().backward()
        ready()
        if RANK == 2: elsewhere()
        model(torch.ones(2, 4)).sum().backward()
    def elsewhere(): time.sleep(10_000)
    train()
    """
    with program(tmp_path, source, count=4) as begun:
        found, _ = settled("user code", *of(begun))
        assert found["pids"] == [begun[2].pid], found["text"]
        assert "are all at train (" in found["text"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_hook_of_a_sharded_module_is_user_code(tmp_path: Path) -> None:
    """It hangs in a library, and stands within the `forward` of torch's sharding; its peers wait in a collective."""
    pytest.importorskip("torch")
    source = """
    import pathlib, torch, torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=RANK, world_size=RANKS)
    inner = torch.nn.Linear(4, 4)
    def hook(module, given):
        if RANK == 2: ready(); pathlib.Path("pipe").read_bytes()
    inner.register_forward_pre_hook(hook)
    model = FullyShardedDataParallel(torch.nn.Sequential(inner), device_id=torch.device("cpu"))
    model(torch.ones(2, 4))
    ready()
    dist.barrier()
    """
    os.mkfifo(tmp_path / "pipe")
    with program(tmp_path, source, count=4) as begun:
        found, _ = settled("user code", *of(begun))
        assert found["pids"] == [begun[2].pid] and "at hook (" in found["text"], found["text"]
        (rank,) = [each for each in found["processes"] if each["pid"] == begun[2].pid]
        assert any("torch/distributed/fsdp" in frame for frame in rank["frames"])

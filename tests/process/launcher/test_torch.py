"""Launchers that come with torch: torchrun, accelerate launch, torch.multiprocessing. One launch is one run."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .. import scripts
from ..launched import by_rank, ranks, the_runs, writers
from ..recipes import Recipe, recipe

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

BIN = Path(sys.executable).parent
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def start(where: Path, page: Recipe, *more: str, **env: str) -> subprocess.Popen[str]:
    """The command of the page, with more words behind it."""
    page.write(where)
    (command,) = page.commands
    program, *words = shlex.split(command)
    return subprocess.Popen(
        [str(BIN / program), *words, *more],
        cwd=where,
        env=scripts.environment(**ONE_THREAD, **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# no torch in the ranks, which costs each 3 s; torchrun has it
SCENES = """
import os, sys, time
import logclient

def log(first=0):
    for step in range(first, first + 50):
        logclient.log(step, {"loss": step / 2})

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
log()
assert logclient.status()["refused"] == 50  # nobody has called init
if rank == 0:
    logclient.init(project="torchrun", name="zero")
log()
assert logclient.status()["refused"] == (0 if rank == 0 else 100)
logclient.finish()
logclient.init(project="torchrun", name="every")
log()
if attempt == 0 and "--fail" in sys.argv:
    if rank == 0:
        open("logged", "w").close()
    while rank == 0 or not os.path.exists("logged"): time.sleep(0.01)
    raise ValueError("once")
log(50)
"""


def test_torchrun(tmp_path: Path, run_dir: Path) -> None:
    """Gloo as on the page; two side by side, of which one restarts its ranks, and one more: each launch is one run, the
    restart another attempt of it."""
    page = recipe("torchrun")
    scenes = Recipe({"train.py": SCENES}, page.commands)
    twice = scenes._replace(
        commands=[page.commands[0].replace("--standalone", "--standalone --max-restarts 1")]
    )
    fails = start(tmp_path / "fails", twice, "--fail")
    beside = start(tmp_path / "beside", scenes)
    for process in (fails, beside):
        ended = scripts.end(process, 120)
        assert ended.code == 0, ended
    ended = scripts.end(start(tmp_path / "gloo", page), 120)
    assert ended.code == 0, ended
    assert len([line for line in ended.said if " goes to " in line]) == 1, (
        "every rank says where the run goes"
    )
    found = the_runs(run_dir, 5)
    gloo = found.pop()
    assert by_rank(gloo) == ranks(2, range(100))
    assert (gloo.project, writers(gloo), len(gloo.attempts)) == ("torchrun", 2, 1)
    zeros = [run for run in found if run.name == "zero"]
    everies = [run for run in found if run.name == "every"]
    assert (
        sorted(len(run.attempts) for run in zeros) == sorted(len(run.attempts) for run in everies) == [1, 2]
    )
    for run in zeros:
        assert by_rank(run) == {0: [*range(50)] * len(run.attempts)}
    once, again = sorted(everies, key=lambda run: len(run.attempts))
    assert by_rank(once) == ranks(2, range(100))
    assert by_rank(again) == ranks(2, [*range(50), *range(100)])
    assert writers(again) == 4


def test_accelerate_launch(tmp_path: Path, run_dir: Path, home: Path) -> None:
    """As the page shows it: one run, two ranks."""
    pytest.importorskip("accelerate")
    ended = scripts.end(start(tmp_path, recipe("accelerate launch"), HF_HOME=str(tmp_path / "hf")), 180)
    assert ended.code == 0, ended
    (found,) = the_runs(run_dir, 1)
    assert by_rank(found) == ranks(2, range(100))
    assert writers(found) == 2


FORKED = """
import os, sys
import logclient
import torch.distributed as dist
import torch.multiprocessing as mp

def train(rank, init_in):
    store = "file://" + os.path.abspath(f"store-{init_in}")
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    if init_in == "every" or (init_in == "zero" and rank == 0):
        logclient.init(project="forked", name=init_in)
    for step in range(50):
        logclient.log(step, {"loss": step / 2})
    os.write(1, f"{init_in} {rank} {logclient.status()['refused']}\\n".encode())  # whole, whoever writes beside it
    if init_in != "parent":
        logclient.finish()
    dist.barrier()  # a rank that leaves while another still connects ends both
    dist.destroy_process_group()

def fork(init_in):
    mp.start_processes(train, args=(init_in,), nprocs=2, start_method="fork")

with logclient.init(project="forked", name="parent"):
    fork("parent")
fork("zero")
fork("every")
"""


def test_torch_multiprocessing(tmp_path: Path, run_dir: Path) -> None:
    """`spawn` as the page shows it; forked ranks, which their process group tells who they are."""
    page = recipe("torch.multiprocessing")
    spawned = scripts.start(
        tmp_path / "spawned", page.files["train.py"], env=scripts.environment(**ONE_THREAD)
    )
    forked = scripts.start(tmp_path / "forked", FORKED, env=scripts.environment(**ONE_THREAD))
    for process in (spawned, forked):
        ended = scripts.end(process, 180)
        assert ended.code == 0, ended
    refused = dict(line.rsplit(" ", 1) for line in ended.out.splitlines())
    assert {rank for rank, number in refused.items() if number != "0"} == {"zero 1"}, refused
    found = {(run.project, run.name if run.project == "forked" else ""): run for run in the_runs(run_dir, 4)}
    assert by_rank(found["spawned", ""]) == ranks(2, range(100))
    assert by_rank(found["forked", "parent"]) == ranks(2, range(50))
    assert by_rank(found["forked", "every"]) == ranks(2, range(50))
    assert by_rank(found["forked", "zero"]) == {0: list(range(50))}
    assert writers(found["forked", "parent"]) == 3

"""docs/integrations/torch.md: its script for DDP, under torchrun; what `watch` takes there; and sharded values."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import logclient
from tests.process import scripts
from tests.process.launched import by_rank, ranks, the_runs

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PAGE = Path(__file__).parents[2] / "docs" / "integrations" / "torch.md"

STATIC = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import logclient

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)), static_graph=True)
with logclient.init(project="ddp", name="static") as run:
    logclient.watch(model, every=1)
    for step in range(3):
        model.zero_grad()
        model(torch.randn(8, 4)).sum().backward()
        run.log(step, {"averaged": model.module[0].weight.grad.norm()})
dist.destroy_process_group()
"""

SHARDED = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
import logclient

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
local = torch.tensor(1.0 + dist.get_rank())
partial = DTensor.from_local(local, mesh, [Partial()])
row = {
    "replicated": DTensor.from_local(torch.tensor(2.5), mesh, [Replicate()]),
    "parameter": torch.nn.Parameter(distribute_tensor(torch.tensor(7.0), mesh, [Replicate()])),
    "partial": partial,
    "mean": DTensor.from_local(local, mesh, [Partial("avg")]),
    "sharded": distribute_tensor(torch.tensor([7.0, 9.0]), mesh, [Shard(0)]),
    "full": partial.full_tensor(),
}
with logclient.init(project="sharded", name="sharded") as run:
    for step in range(3):
        if dist.get_rank() == 0:  # the other rank is not here: a collective would never end
            run.log(step, row)
            assert run.status()["left_out"] == 3 * (step + 1), run.status()
    run.config["partial"] = partial
    notices = [line for line in run.status()["notices"] if "full_tensor()" in line]
    assert dist.get_rank() or len(notices) == 3, run.status()
dist.barrier()
dist.destroy_process_group()
"""


def torchrun(where: Path, script: str) -> None:
    (where / "train.py").write_text(script)
    command = [
        str(Path(sys.executable).parent / "torchrun"),
        "--standalone",
        "--nproc-per-node",
        "2",
        "train.py",
    ]
    process = subprocess.Popen(
        command,
        cwd=where,
        env=scripts.environment(OMP_NUM_THREADS="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ended = scripts.end(process, 180)
    assert ended.code == 0, ended


def by_rank_and_step(run_dir: Path, key: str) -> dict[tuple[int, int], float]:
    """Values by (rank, step)."""
    (run,) = logclient.read(run_dir)
    series = run.series(key)
    keys = zip(series.rank.tolist(), series.step.tolist(), strict=True)
    return dict(zip(keys, series.value.tolist(), strict=True))


def test_page(tmp_path: Path, run_dir: Path) -> None:
    """Each rank's own losses, and the norms of the gradients that DDP has averaged: the same on both."""
    page = PAGE.read_text()
    torchrun(tmp_path, next(b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "train.py" in b))
    (run,) = the_runs(run_dir, 1)
    assert by_rank(run, "train/loss") == ranks(2, range(50))
    assert by_rank(run, "grad/weight/norm") == ranks(2, range(0, 50, 10))
    norms, losses = by_rank_and_step(run_dir, "grad/norm"), by_rank_and_step(run_dir, "train/loss")
    for step in range(0, 50, 10):
        assert norms[0, step] == pytest.approx(norms[1, step])
    assert losses[0, 0] != losses[1, 0]


def test_static_graph(tmp_path: Path, run_dir: Path) -> None:
    """In its first pass DDP averages at the very end, in two steps."""
    torchrun(tmp_path, STATIC)
    the_runs(run_dir, 1)
    taken, averaged = by_rank_and_step(run_dir, "grad/0.weight/norm"), by_rank_and_step(run_dir, "averaged")
    assert len(taken) == 6
    assert taken == pytest.approx(averaged)


def test_a_part_of_a_value_is_never_stored(tmp_path: Path, run_dir: Path) -> None:
    """A DTensor has one value where every rank holds it whole; else it is left out and named, with no collective."""
    torchrun(tmp_path, SHARDED)
    scripts.wait_gone(60)
    (run,) = logclient.read(run_dir)
    assert sorted(run.keys()) == ["full", "parameter", "replicated"]
    for key, value in (("full", 3.0), ("parameter", 7.0), ("replicated", 2.5)):
        series = run.series(key)
        assert (series.step.tolist(), series.value.tolist()) == ([0, 1, 2], [value] * 3)
    assert "full_tensor()" in run.config["partial"]

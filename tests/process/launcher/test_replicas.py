"""Replicas of four gloo ranks, of which one misses an update of one layer norm, or none does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Pace

from .. import scripts

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[3]
RANKS = 4
EVERY = 5
MISSED_AT = 17  # the update after this backward pass; the fingerprint of pass 20 is the next one
TRAINING = """
import sys
import torch
import torch.distributed as dist
import logclient

kind, steps, odd = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 2))
norm = model[1].weight
if kind == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)
    norm = model[1].weight.to_local()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
run = logclient.init("replicas", name=f"{kind} {odd}", quiet=True)
run.fingerprint(model, every=EVERY, replicas="dp0")
chance = torch.Generator().manual_seed(rank)
for step in range(steps):
    before = norm.detach().clone()
    loss = model(torch.randn(4, 8, generator=chance)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log(step, {"loss": 1.0})
    if rank == odd and step == MISSED_AT:
        with torch.no_grad():
            norm.copy_(before)
assert run.finish(60), run.status()
assert not run.status()["refused"] and not run.status()["left_out"] and not run.status()["notices"]
dist.destroy_process_group()
"""


def trained(folder: Path, kind: str, steps: int, odd: int) -> dict[str, Any]:
    """Train, and compare what was stored."""
    script = folder / "train.py"
    script.write_text(f"EVERY, MISSED_AT = {EVERY}, {MISSED_AT}\n{TRAINING}")
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node", str(RANKS)]
    done = subprocess.run(
        [*torchrun, str(script), kind, str(steps), str(odd)],
        cwd=folder,
        env=scripts.environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    show = [sys.executable, "-m", "logclient_backend", "show", f"{kind} {odd}", "--replicas", "--json"]
    shown = subprocess.run(show, env=scripts.environment(), capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("kind", ["ddp", "sharded"])
def test_rank_that_missed_an_update_is_named_at_the_next_fingerprint(
    kind: str, tmp_path: Path, run_dir: Path
) -> None:
    """Tensor, step and rank; of a model in two parts with two copies each, both ranks that have that part."""
    found = trained(tmp_path, kind, 60, odd=2)
    (first,) = found["differences"]
    assert (first["step"], first["replicas"], first["is_over"]) == (20, "dp0", False)
    if kind == "ddp":
        replay = [sys.executable, str(ROOT / "tools" / "replay.py"), str(run_dir), "ddp 2", "loss", "--json"]
        replayed = subprocess.run(replay, capture_output=True, text=True, timeout=60, check=True).stdout
        (alarm,) = map(json.loads, replayed.splitlines())
        assert alarm["keys"] == {"dp0/1.weight": {"ranks": "2", "others": 3}}
        assert (first["tensor"], first["ranks"], first["is_sure"]) == ("1.weight", [2], True)
    else:
        assert (first["tensor"], first["ranks"], first["is_sure"]) == ("1.weight#0", [0, 2], False)


def test_equal_replicas_give_no_finding(tmp_path: Path, run_dir: Path, pace: Pace) -> None:
    """In 200 fingerprints at full length."""
    count = pace.count(200, least=60)
    found = trained(tmp_path, "ddp", count * EVERY, odd=-1)
    assert found["differences"] == [] and found["late"] == 0
    assert found["compared"] == count * 6

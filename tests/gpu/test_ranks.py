"""Two GPUs under torchrun: every rank logs its own CUDA values, in one run, beside collectives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import logclient

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
    pytest.skip("needs two CUDA devices", allow_module_level=True)

STEPS = 2000
TRAINER = f"""
import os
import torch
import torch.distributed as dist
import logclient

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
run = logclient.init("ranks", name="two", quiet=True)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
run.log(0, {{"own": torch.full((), rank / 2, device="cuda"), "loss": torch.zeros((), device="cuda")}})
for step in range(1, {STEPS}):
    if step == 10:  # what torch does with its first steps may wait
        torch.cuda.set_sync_debug_mode("error")
    loss = model(torch.randn(32, 64, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log(step, {{"own": torch.full((), step + rank / 2, device="cuda"), "loss": loss}})
torch.cuda.set_sync_debug_mode("default")
dist.barrier()
assert run.finish(60), run.status()
status = run.status()
print(rank, {{name: status[name] for name in ("accepted", "durable", "forgotten", "left_out")}}, flush=True)
dist.destroy_process_group()
"""


@pytest.mark.timeout(300)
def test_all_ranks_log_their_own_values(run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRAINER)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        "29713",
    ]
    ended = subprocess.run([*command, str(path)], env=env, cwd=tmp_path, timeout=280, check=False)
    assert ended.returncode == 0
    (found,) = logclient.read(run_dir)
    series = found.series("own")
    stored = dict(
        zip(zip(series.rank.tolist(), series.step.tolist(), strict=True), series.value, strict=True)
    )
    assert all(value == step + rank / 2 for (rank, step), value in stored.items())
    assert len(stored) == len(series.step) >= 0.95 * 2 * STEPS

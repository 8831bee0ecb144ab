"""`fingerprint` on a real GPU: its sums are those of a copy on the CPU, bit for bit, and nothing waits for them.

Skips where there is no CUDA device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logclient
from tests.gpu.waits import no_waits

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

STEPS = 50


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_sums_come_from_the_device_without_a_wait(kind: str, run_dir: Path) -> None:
    dtype = getattr(torch, kind)
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.LayerNorm(700)).to("cuda", dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x = torch.randn(16, 300, device="cuda", dtype=dtype)
    model(x).square().mean().backward()  # what torch does with its first pass may wait
    torch.cuda.synchronize()
    run = logclient.init("fingerprint", quiet=True)
    run.log(-1, {"first": torch.zeros((), device="cuda")})  # memory is locked with the first
    run.fingerprint(model, every=1, replicas="dp0")
    copies = []
    with no_waits():
        for _ in range(STEPS):
            model(x).square().mean().backward()
            copies.append([each.detach().clone() for each in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
    logclient.unwatch(model)
    assert run.finish(60), run.status()
    status = run.status()
    assert (status["refused"], status["left_out"], status["forgotten"]) == (0, 0, 0), status
    (found,) = logclient.read(run_dir)
    whole = torch.int32 if kind == "float32" else torch.int16
    for index, name in enumerate(("0.weight", "0.bias", "1.weight", "1.bias")):
        wanted = [row[index].cpu().view(whole).sum(dtype=torch.int64).item() % (1 << 52) for row in copies]
        series = found.series(f"fingerprint/dp0/{name}/bits")
        assert series.step.tolist() == list(range(STEPS))
        assert series.value.tolist() == wanted
        sizes = [row[index].float().norm().item() for row in copies]
        assert found.series(f"fingerprint/dp0/{name}/norm").value.tolist() == pytest.approx(sizes, rel=1e-2)

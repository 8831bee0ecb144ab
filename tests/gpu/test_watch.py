"""`watch` on a real GPU: norms and histograms of a model that is trained there, without a wait.

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

STEPS = 300


def trained(device: str, watching: bool) -> list[list[float]]:
    """The norm of each gradient, by step, as the training itself finds it at its end."""
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(
        device
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x = torch.randn(128, 32, device=device)
    model(x).square().mean().backward()  # what torch does with its first pass may wait
    optimizer.zero_grad()
    torch.cuda.synchronize()
    if watching:
        logclient.watch(model, every=1, parameters=True, histograms=True)
    norms = []
    with no_waits():
        for _ in range(STEPS):
            model(x).square().mean().backward()
            norms.append([parameter.grad.norm() for parameter in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
    logclient.unwatch(model)
    return [[float(norm) for norm in row] for row in norms]


@pytest.mark.timeout(300)
def test_norms_and_histograms_come_from_the_device_without_a_wait(run_dir: Path) -> None:
    run = logclient.init("watch", quiet=True)
    run.log(-1, {"first": torch.zeros((), device="cuda")})  # memory is locked with the first
    wanted = trained("cuda", watching=True)
    assert run.finish(60), run.status()
    status = run.status()
    assert (status["refused"], status["left_out"], status["forgotten"]) == (0, 0, 0), status
    (found,) = logclient.read(run_dir)
    for index, name in enumerate(("0.weight", "0.bias", "2.weight", "2.bias")):
        series = found.series(f"grad/{name}/norm")
        assert series.step.tolist() == list(range(STEPS))
        assert series.value.tolist() == pytest.approx([row[index] for row in wanted], rel=1e-5)
        assert len(found.series(f"param/{name}/norm").value) == STEPS
        shares = [key for key in found.keys() if key.startswith(f"grad/{name}/share/")]  # noqa: SIM118
        total: Any = sum(found.series(key).value for key in shares)
        assert len(shares) > 5 and total.tolist() == pytest.approx([1.0] * STEPS, abs=1e-5)


@pytest.mark.timeout(300)
def test_a_captured_backward_pass_is_not_added_to(run_dir: Path) -> None:
    run = logclient.init("watch", quiet=True)
    model = torch.nn.Linear(8, 8).cuda()
    x = torch.randn(4, 8, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x).square().mean().backward()
    torch.cuda.current_stream().wait_stream(side)
    logclient.watch(model, every=1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x).square().mean().backward()
    graph.replay()
    torch.cuda.synchronize()
    assert run.status()["accepted"] == 0
    model(x).square().mean().backward()
    assert run.finish(60), run.status()
    assert run.status()["accepted"] == 1

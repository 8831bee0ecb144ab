"""Values of CUDA tensors, on a real GPU: each stored value is that of its step, whatever happened to the tensor.

Skips where there is no CUDA device. Every form logs `--pace`-independent 10,000 steps; what cannot be taken without
waiting is counted, and stored + forgotten + left out is exact.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logclient
from tests.gpu.waits import no_waits

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

STEPS = 10_000
BURST = 250  # so many records have room in the lanes of device values, whatever the agent does meanwhile
DEVICE = "cuda"


def checked(run_dir: Path, run: Any, wanted: int = STEPS, least: float = 0.999) -> None:
    """Every stored value is its step; all others are counted."""
    assert run.finish(120), run.status()
    status = run.status()
    (found,) = logclient.read(run_dir)
    print(
        {name: status[name] for name in ("accepted", "durable", "forgotten", "damaged", "left_out", "device")}
    )
    print(status["notices"], *(path.read_text() for path in run_dir.rglob("agent.log")))
    series = found.series("value")
    assert (series.value == series.step).all()
    assert len(series.step) + status["left_out"] + status["forgotten"] == wanted == status["accepted"]
    assert len(series.step) >= least * wanted


def overwritten(run: Any, step: int, keep: dict[str, Any]) -> None:
    value = torch.full((), float(step), device=DEVICE)
    run.log(step, {"value": value})
    value.add_(1_000_000)


def dropped(run: Any, step: int, keep: dict[str, Any]) -> None:
    value = torch.full((), float(step), device=DEVICE)
    run.log(step, {"value": value})
    del value
    keep["same"] = torch.full((), -1.0, device=DEVICE)
    with torch.cuda.stream(keep["side"]):
        keep["other"] = torch.full((), -2.0, device=DEVICE)


def stalled(run: Any, step: int, keep: dict[str, Any]) -> None:
    if step % 1000 == 0:
        torch.cuda._sleep(100_000_000)  # some 50 ms of cycles
    overwritten(run, step, keep)


def from_side_stream(run: Any, step: int, keep: dict[str, Any]) -> None:
    """Made on the default stream, logged on another that waits for it, dropped at once and its memory reused."""
    value = torch.full((), float(step), device=DEVICE)
    side = keep["side"]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        if step % 100 == 0:
            torch.cuda._sleep(1_000_000)
        run.log(step, {"value": value})
    del value
    keep["same"] = torch.full((), -1.0, device=DEVICE)


def log_in_bursts(run: Any, form: Callable[..., None], keep: dict[str, Any]) -> None:
    """Log all steps as fast as it goes, but never more than the lanes hold: what is forgotten is not tested here."""
    for step in range(1, STEPS):
        form(run, step, keep)
        if step % BURST == 0:
            assert run.flush(60), run.status()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", [overwritten, dropped, stalled, from_side_stream])
def test_each_step_has_its_own_value(form: Callable[..., None], run_dir: Path) -> None:
    run = logclient.init("cuda", quiet=True)
    keep: dict[str, Any] = {"side": torch.cuda.Stream()}
    run.log(0, {"value": torch.zeros((), device=DEVICE)})  # memory is locked with the first
    with no_waits():
        log_in_bursts(run, form, keep)
    assert run.status()["device"]["way"] == "registered", run.status()
    checked(run_dir, run)


ENDING = """
import os, sys
import torch, logclient
run = logclient.init("cuda", quiet=True)
for step in range(1000):
    if step % 100 == 0:
        torch.cuda._sleep(20_000_000)
    value = torch.full((), float(step), device="cuda")
    run.log(step, {"value": value})
    value.add_(1)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("how", "code"), [("sys.exit(0)", 0), ("raise ValueError('told')", 1), ("pass", 0)])
def test_last_values_are_collected_when_the_program_ends_right_after(
    how: str, code: int, run_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(ENDING + textwrap.dedent(how))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    env["LOGCLIENT_FINISH_TIMEOUT_S"] = "60"
    ended = subprocess.run([sys.executable, str(path)], env=env, cwd=tmp_path, timeout=200, check=False)
    assert ended.returncode == code
    (found,) = logclient.read(run_dir)
    series = found.series("value")
    assert series.step.tolist() == list(range(1000))
    assert (series.value == series.step).all()


@pytest.mark.timeout(300)
def test_fork_with_copies_pending(run_dir: Path) -> None:
    run = logclient.init("cuda", quiet=True)
    for step in range(STEPS):
        if step % BURST == 0:
            assert run.flush(60), run.status()
        if step % 2000 == 1000:
            torch.cuda._sleep(100_000_000)
        value = torch.full((), float(step), device=DEVICE)
        run.log(step, {"value": value})
        value.add_(1)
        if step % 2000 == 1001:
            child = os.fork()
            if not child:
                code = 1
                try:
                    run.log(step, {"child": 1.0})
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    checked(run_dir, run, least=0.9)  # a fork of such a process takes as long as a thousand steps


@pytest.mark.timeout(300)
def test_types_shapes_and_graphs(run_dir: Path) -> None:
    """Any dtype, 0-d or one element, with or without history; exact; nothing is kept alive."""
    run = logclient.init("cuda", quiet=True)
    names = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
    row = {name: torch.ones((), device=DEVICE, dtype=getattr(torch, name)) for name in names}
    row["one element"] = torch.full((1, 1), 2.5, device=DEVICE)
    weight = torch.full((), 3.0, device=DEVICE, requires_grad=True)
    row["history"] = weight * 2
    row["parameter"] = torch.nn.Parameter(torch.full((), 0.5, device=DEVICE))
    row["large"] = torch.full((), 2**60 + 1, device=DEVICE, dtype=torch.int64)
    row["nan"] = torch.full((), float("nan"), device=DEVICE)
    run.log(0, {"first": torch.zeros((), device=DEVICE)})
    torch.cuda.synchronize()
    with no_waits():
        run.log(1, {**row, "lr": 0.1, "text": "t", "vector": torch.ones(3, device=DEVICE)})
        before = torch.cuda.memory_allocated()
        for step in range(2, 500):
            loss = (torch.ones(1000, device=DEVICE) * weight).sum()
            run.log(step, {"loss": loss})
            del loss
        assert torch.cuda.memory_allocated() <= before + 4096
    assert run.finish(60), run.status()
    (found,) = logclient.read(run_dir)
    got = {key: found.series(key).value.tolist() for key in found.keys()}  # noqa: SIM118
    for name in names:
        assert got[name] == [1] and type(got[name][0]) is (
            bool if name == "bool" else float if "float" in name else int
        )
    assert (got["one element"], got["history"], got["parameter"]) == ([2.5], [6.0], [0.5])
    assert got["large"] == [2**60 + 1] and got["nan"][0] != got["nan"][0]
    assert (got["lr"], got["text"]) == ([0.1], ["t"])
    assert "vector" not in got and run.status()["left_out"] == 1
    assert got["loss"] == [3000.0] * 498


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["registered", "pinned"])
@pytest.mark.parametrize("first", ["inference", "usual"])
def test_inference_mode_and_default_device_change_nothing(
    first: str, way: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever mode the first value was logged in, values of both are stored."""
    if way == "pinned":
        monkeypatch.setattr(torch.cuda, "cudart", refusing(torch.cuda.cudart()))
    run = logclient.init("cuda", quiet=True)
    torch.set_default_device(DEVICE)
    try:
        for step in range(400):
            with torch.inference_mode(step % 2 == (first == "usual")):
                run.log(step, {"value": torch.full((), float(step)), "other": torch.ones(())})
    finally:
        torch.set_default_device(None)
    assert run.status()["device"]["way"] == way
    checked(run_dir, run, 400)


def refusing(real: Any) -> Any:
    """Told to lock memory that is not there, so that the driver refuses."""

    class Refuses:
        def cudaHostRegister(self, address: int, size: int, flags: int) -> Any:
            return real.cudaHostRegister(4096, size, flags)

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    return Refuses


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["registered", "pinned"])
@pytest.mark.parametrize("is_first", [False, True])
def test_captured_graph_leaves_values_out_and_the_capture_whole(
    is_first: bool, way: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first value of all is logged there, and where copies of earlier ones are pending."""
    if way == "pinned":
        monkeypatch.setattr(torch.cuda, "cudart", refusing(torch.cuda.cudart()))
    run = logclient.init("cuda", quiet=True)
    value = torch.zeros((), device=DEVICE)
    if not is_first:
        torch.cuda._sleep(10_000_000)
        run.log(0, {"value": value})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value.add_(1)
        run.log(1, {"value": value, "host": 1.0})
        run.log(2, {"host": 2.0})
        run.status()
    graph.replay()
    run.log(3, {"value": value})
    assert run.finish(60)
    assert run.status()["left_out"] == 1 and run.status()["device"]["way"] == way
    assert any("graph" in line for line in run.status()["notices"])
    (found,) = logclient.read(run_dir)
    assert found.series("value").value.tolist() == ([1.0] if is_first else [0.0, 1.0])
    assert found.series("host").step.tolist() == [1, 2]


@pytest.mark.timeout(300)
def test_where_memory_cannot_be_locked_a_later_call_completes_the_record(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver refuses (here: it is told to lock memory that is not there); `status` says so."""
    monkeypatch.setattr(torch.cuda, "cudart", refusing(torch.cuda.cudart()))
    run = logclient.init("cuda", quiet=True)
    run.log(0, {"value": torch.zeros((), device=DEVICE)})
    with no_waits():
        log_in_bursts(run, overwritten, {})
    found = run.status()["device"]
    assert found["way"] == "pinned" and "lock" in found["trouble"]
    checked(run_dir, run)


@pytest.mark.timeout(300)
def test_several_devices(run_dir: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    run = logclient.init("cuda", quiet=True)
    for step in range(1000):
        a = torch.full((), float(step), device="cuda:0")
        b = torch.full((), float(step), device="cuda:1")
        run.log(step, {"value": b, "other": a} if step % 2 else {"value": a})
        a.add_(1), b.add_(1)
    checked(run_dir, run, 1000)

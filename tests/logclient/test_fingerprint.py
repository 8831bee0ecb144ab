"""`run.fingerprint`: sums of real tensors of all kinds, taken at the end of backward passes."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.watching.passes import made
from tests.lanes import LaneFile, opened

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def unwatched() -> Iterator[None]:
    yield
    logclient.unwatch()


def rows(file: LaneFile) -> dict[int, dict[str, Any]]:
    """What was logged, by step; records of one step together."""
    found: dict[int, dict[str, Any]] = {}
    for record in file.read():
        found.setdefault(record.step, {}).update(record.values)
    return found


def small() -> Any:
    torch.manual_seed(1)
    nn = torch.nn
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))


def train(model: Any, passes: int = 1) -> None:
    for _ in range(passes):
        for parameter in model.parameters():
            parameter.grad = None
        model(torch.ones(5, 4)).square().sum().backward()


def bits(tensor: Any) -> int:
    """The sum of the bits of 32-bit elements, by Python's own ints."""
    return int(sum(tensor.detach().flatten().view(torch.int32).tolist()) % (1 << 52))


def test_sums_of_each_parameter() -> None:
    """Trained or frozen, at each n-th backward pass; the bits are exact, and another bit is another sum."""
    model = small()
    model[1].weight.requires_grad_(False)
    with opened() as (run, file):
        run.fingerprint(model, every=3, replicas="dp0")
        train(model, 7)
        found = rows(file)
        assert list(found) == [0, 3, 6]
        row = dict(found[6])
        for name, each in model.named_parameters():
            stem = f"fingerprint/dp0/{name}"
            assert row.pop(f"{stem}/bits") == bits(each)
            assert row.pop(f"{stem}/sum") == pytest.approx(each.sum().item(), abs=1e-6)
            assert row.pop(f"{stem}/norm") == pytest.approx(each.norm().item())
        assert not row
        with torch.no_grad():
            last = model[1].weight[-1]
            model[1].weight[-1] = torch.nextafter(last, last + 1)
        train(model, 3)
        (row,) = rows(file).values()
    changed = [key for key, value in row.items() if key.endswith("/bits") and value != found[6][key]]
    assert changed == ["fingerprint/dp0/1.weight/bits"]


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64", "complex64", "int8", "float8_e4m3fn"])
def test_kinds_of_numbers(kind: str) -> None:
    """Whole numbers and 8-bit floats have bits alone; none is left out, nor fails."""
    dtype = getattr(torch, kind)
    model = torch.nn.Linear(4, 1)
    tensor = torch.arange(6).reshape(2, 3).to(torch.float32).to(dtype).t()
    with opened() as (run, file):
        run.fingerprint({"weight": model.weight, "odd": tensor}, replicas="a")
        model(torch.ones(1, 4)).sum().backward()
        (row,) = rows(file).values()
        assert not run.status()["refused"] and not run.status()["left_out"]
    sums = {key.rpartition("/")[2] for key in row if key.startswith("fingerprint/a/odd/")}
    assert sums == ({"bits"} if kind in ("int8", "float8_e4m3fn") else {"bits", "sum", "norm"})
    if "norm" in sums:
        assert row["fingerprint/a/odd/norm"] == pytest.approx(55**0.5)
    if kind == "int8":
        assert row["fingerprint/a/odd/bits"] == 15


@pytest.mark.parametrize("how", ["pairs", "a dict", "tensors", "an iterator", "one tensor"])
def test_tensors_without_a_module(how: str) -> None:
    """Names are those that were given, else numbers."""
    weight, bias = torch.nn.Linear(4, 1).parameters()
    given = {
        "pairs": [("w", weight), ("b", bias)],
        "a dict": {"w": weight, "b": bias},
        "tensors": [weight, bias],
        "an iterator": iter([weight, bias]),
        "one tensor": weight,
    }[how]
    names = {"one tensor": {"0"}}.get(how, {"w", "b"} if how in ("pairs", "a dict") else {"0", "1"})
    with opened() as (run, file):
        run.fingerprint(given)
        torch.nn.functional.linear(torch.ones(1, 4), weight, bias).sum().backward()
        (row,) = rows(file).values()
    assert {key.split("/")[2] for key in row} == names
    assert all(key.startswith("fingerprint/all/") for key in row)


def test_many_parameters() -> None:
    """More values than one record should have come in several, at the same step."""
    model = torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in range(300)])
    with opened() as (run, file):
        run.fingerprint(model)
        model(torch.ones(1, 1)).sum().backward()
        records = file.read()
    assert {record.step for record in records} == {0} and len(records) == 2
    assert sum(len(record.values) for record in records) == 1800


def test_split_tensor_has_its_place_in_its_name() -> None:
    """A DTensor that is split: which part this rank has. One that each rank has whole: nothing."""
    dist = pytest.importorskip("torch.distributed")
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b"))
        split = distribute_tensor(torch.ones(4, 2), mesh, [Replicate(), Shard(0)])
        whole = distribute_tensor(torch.ones(4, 2), mesh, [Replicate(), Replicate()])
        model = torch.nn.Linear(4, 1)
        with opened() as (run, file):
            run.fingerprint([("split", split), ("whole", whole), *model.named_parameters()])
            model(torch.ones(1, 4)).sum().backward()
            (row,) = rows(file).values()
    finally:
        dist.destroy_process_group()
    assert "fingerprint/all/split#0/bits" in row and "fingerprint/all/whole/bits" in row


def test_again_beside_watch_and_unwatch() -> None:
    """The same word and model: replaced. Another word, or `watch`: beside it. `unwatch` ends them all."""
    model = small()
    with opened() as (run, file):
        run.fingerprint(model, every=1, replicas="a")
        run.fingerprint(model, every=2, replicas="a")
        run.fingerprint(model, every=1, replicas="b")
        logclient.watch(model, every=1)
        train(model, 2)
        kinds = [next(iter(record.values)).rpartition("/0.weight")[0] for record in file.read()]
        assert sorted(kinds) == ["fingerprint/a", "fingerprint/b", "fingerprint/b", "grad", "grad"]
        logclient.unwatch(model)
        train(model, 2)
        assert not file.read() and not made


def test_ranks_of_threads() -> None:
    """`as_rank` gives its rank to the records."""
    model = small()
    with opened() as (run, file):
        run.as_rank(5).fingerprint(model)
        train(model)
        assert [record.rank for record in file.read()] == [5]


def test_it_keeps_neither_run_nor_model_alive() -> None:
    """A run that is dropped ends; a model's copies and pickles hold nothing of ours."""
    model = small()
    with opened() as (run, file):
        plain = pickle.dumps(model)
        run.fingerprint(model, every=1)
        assert pickle.dumps(model) == plain
        train(copy.deepcopy(model))
        assert not file.read()
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None and not made
    run = logclient.init("dropped", quiet=True, mode="offline")
    model = small()
    run.fingerprint(model, every=1)
    gone_run = weakref.ref(run)
    del run
    logclient._run = None
    gc.collect()
    assert gone_run() is None
    train(model)  # nothing happens


def test_step_is_given_and_users_failure_passes() -> None:
    model = small()
    with opened() as (run, file):
        run.fingerprint(model, every=2, step=lambda: 40)
        train(model)
        assert list(rows(file)) == [40]
        run.fingerprint(model, step=lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            train(model)


def test_our_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted and said once; the training goes on."""
    model = small()

    def fails(*_: Any) -> None:
        raise RuntimeError("out of kernels")

    monkeypatch.setattr(torch, "_foreach_norm", fails)
    monkeypatch.setattr(torch.linalg, "vector_norm", fails)
    with opened() as (run, file):
        run.fingerprint(model, every=1)
        train(model, 3)
        assert not file.read()
        status = run.status()
    assert status["refused"] == 3
    assert sum("out of kernels" in line for line in status["notices"]) == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"params": object()}, "torch.nn.Module or tensors"),
        ({"params": [1, 2]}, "torch.nn.Module or tensors"),
        ({"params": []}, "torch.nn.Module or tensors"),
        ({"every": 0}, "every"),
        ({"every": True}, "every"),
        ({"replicas": ""}, "replicas"),
        ({"replicas": "a/b"}, "replicas"),
        ({"replicas": 3}, "replicas"),
    ],
    ids=lambda value: re.sub(" at 0x\\w+", "", str(value)),
)
def test_bad_arguments(given: dict[str, Any], why: str, run_dir: Path) -> None:
    """Said once, and nothing is taken; raised in strict mode."""
    given = {"params": small(), **given}
    with opened() as (run, _):
        for _ in range(2):
            run.fingerprint(**given)
        (line,) = run.status()["notices"]
        assert why in line and not made
    with opened(strict=True) as (run, _), pytest.raises(logclient.BadArgument, match=why.split(".")[0]):
        run.fingerprint(**given)


class Broken:
    """Fails when it is read."""

    def items(self) -> Any:
        raise KeyError("lost")


def test_what_fails_when_it_is_read(run_dir: Path) -> None:
    """The user's object raises; the call does not."""
    with opened() as (run, _):
        run.fingerprint(Broken())
        (line,) = run.status()["notices"]
        assert "KeyError" in line and not made


def in_a_process(script: str, *words: str) -> None:
    """Run a script that ends well."""
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_torch_is_not_imported(run_dir: Path) -> None:
    """Where the user has not imported it, there are no tensors: said once."""
    in_a_process(
        "import sys, logclient\n"
        "run = logclient.init('plain', quiet=True, mode='offline')\n"
        "run.fingerprint([1.0])\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "assert any('fingerprint' in line for line in run.status()['notices'])\n"
        "run.finish(60)\n"
    )


LARGE = """
import resource, torch, logclient
big = torch.arange(64 << 20, dtype=torch.int32).view(torch.float32)  # 256 MiB
model = torch.nn.Linear(4, 1)
run = logclient.init("large", quiet=True, mode="offline")
run.log(0, {"first": torch.zeros(())})
run.fingerprint({"big": big, "weight": model.weight}, every=1)
model(torch.ones(1, 4)).sum().backward()  # threads of torch have their memory
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (200 << 20),) * 2)
model(torch.ones(1, 4)).sum().backward()
status = run.status()
assert not status["refused"] and not status["left_out"], status["notices"]
run.finish(60)
(found,) = logclient.read(run.dir)
n = 64 << 20
assert found.series("fingerprint/all/big/bits").value.tolist() == [n * (n - 1) // 2 % (1 << 52)] * 2
"""


def test_large_tensor_needs_little_memory(run_dir: Path) -> None:
    """A tensor of 256 MiB has its bits summed in 200 MiB; widened at once they would take 512."""
    in_a_process(LARGE)


def test_without_a_run_nothing_happens() -> None:
    """Disabled, and after the end of the run."""
    model = small()
    logclient.NullRun("p", {}, ()).fingerprint(model)
    assert not made
    with opened() as (run, _):
        pass
    run.fingerprint(model)
    assert not made

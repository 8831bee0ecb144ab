"""`logclient.watch`: norms and histograms of real models, with whatever autograd and wrappers do meanwhile."""

from __future__ import annotations

import copy
import gc
import pickle
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

NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]


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
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def train(model: Any, passes: int = 1) -> None:
    for _ in range(passes):
        for parameter in model.parameters():
            parameter.grad = None
        model(torch.ones(5, 4)).square().sum().backward()


def test_norms() -> None:
    """Of each gradient and parameter and of all together, as torch has them, at each n-th backward pass."""
    model = small()
    with opened() as (_, file):
        logclient.watch(model, every=3)
        train(model, 7)
        found = rows(file)
    assert list(found) == [0, 3, 6]
    row = found[6]
    kinds = {"grad": [p.grad for p in model.parameters()], "param": list(model.parameters())}
    for kind, tensors in kinds.items():
        for name, tensor in zip(NAMES, tensors, strict=True):
            assert row.pop(f"{kind}/{name}/norm") == pytest.approx(tensor.norm().item())
        together = torch.cat([tensor.flatten() for tensor in tensors]).norm().item()
        assert row.pop(f"{kind}/norm") == pytest.approx(together)
    assert not row


def test_histograms() -> None:
    """Shares of elements by size; they add up to 1, and zeros are in the lowest bucket."""
    model = torch.nn.Linear(4, 1, bias=False)
    model.weight.data = torch.tensor([[0.0, 2e-3, -5e-3, 30.0]])
    with opened() as (_, file):
        logclient.watch(model, gradients=False, histograms=True)
        train(model)
        (row,) = rows(file).values()
    shares = {key.rpartition("/")[2]: value for key, value in row.items() if "/share/" in key}
    assert len(shares) == 11 and sum(shares.values()) == pytest.approx(1)
    assert {bucket: share for bucket, share in shares.items() if share} == {
        "0": 0.25,
        "1e-3": 0.5,
        "1e1": 0.25,
    }


def test_histograms_of_half_precision() -> None:
    """More elements than 16 bits count, and sizes that they only just hold."""
    model = torch.nn.Linear(400, 400, bias=False).half()
    model.weight.data.fill_(2e-7)
    model.weight.data[:100] = 0.5
    with opened() as (_, file):
        logclient.watch(model, gradients=False, histograms=True)
        model(torch.ones(1, 400).half()).sum().backward()
        (row,) = rows(file).values()
    assert row["param/weight/share/1e-1"] == 0.25
    assert row["param/weight/share/1e-7"] == 0.75


def test_what_is_trained() -> None:
    """Frozen parameters, gradients that are None, and passes without gradients leave the rest as it is."""
    model = small()
    model.unused = torch.nn.Linear(2, 2)
    model.forward = lambda x: model[2](model[1](model[0](x)))
    with opened() as (_, file):
        model[0].weight.requires_grad_(False)
        logclient.watch(model)
        with torch.no_grad():
            model(torch.ones(5, 4))
        assert not rows(file)
        train(model, 4)  # the last parameter has no gradient, so that the first one counts
        (row,) = rows(file).values()
    assert {key for key in row if key.startswith("grad")} == {
        "grad/norm",
        *(f"grad/{n}/norm" for n in NAMES[1:]),
    }
    assert "param/unused.weight/norm" in row and "param/0.weight/norm" not in row


@pytest.mark.parametrize("frozen", [0, 2])
def test_frozen_later(frozen: int) -> None:
    """Passes are seen as long as the first or the last parameter is trained."""
    model = small()
    with opened() as (_, file):
        logclient.watch(model, every=2)
        train(model, 2)
        model[frozen].requires_grad_(False)
        train(model, 20)
        assert len(rows(file)) >= 9


def test_nothing_is_trained() -> None:
    model = small().requires_grad_(False)
    with opened() as (run, _):
        logclient.watch(model)
        assert any("no parameter of the model is trained" in line for line in run.status()["notices"])


def test_half_precision() -> None:
    """A sum of squares that 16 bits do not hold."""
    model = torch.nn.Linear(64, 64, bias=False).half()
    model.weight.data.fill_(100)
    with opened() as (_, file):
        logclient.watch(model, gradients=False)
        model(torch.ones(1, 64).half()).sum().backward()
        (row,) = rows(file).values()
    assert row["param/weight/norm"] == pytest.approx(6400)


def test_sparse_gradient() -> None:
    """Left out, and said."""
    model = torch.nn.Embedding(5, 2, sparse=True)
    with opened() as (run, file):
        logclient.watch(model)
        model(torch.tensor([1, 2])).sum().backward()
        (row,) = rows(file).values()
        assert list(row) == ["param/weight/norm", "param/norm"]
        assert any("sparse" in line for line in run.status()["notices"])


def test_many_parameters() -> None:
    """More values than one record should have come in several, at the same step."""
    model = torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in range(700)])
    with opened() as (_, file):
        logclient.watch(model)
        model(torch.ones(1, 1)).sum().backward()
        records = file.read()
    assert [record.step for record in records] == [0, 0, 0]
    assert sum(len(record.values) for record in records) == 2802


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed(reentrant: bool) -> None:
    """A backward pass that runs others inside is one, and what is logged is that of its end."""
    from torch.utils.checkpoint import checkpoint

    model = small()
    with opened() as (_, file):
        logclient.watch(model, every=1)
        for _ in range(8):
            model.zero_grad()
            inner = checkpoint(model[0], torch.ones(5, 4, requires_grad=True), use_reentrant=reentrant)
            model[2](model[1](inner)).square().sum().backward()
        found = rows(file)
    assert list(found) == [*range(8)]
    assert found[7]["grad/0.weight/norm"] == pytest.approx(model[0].weight.grad.norm().item())


def test_step_is_given() -> None:
    model, at = small(), 40
    with opened() as (_, file):
        logclient.watch(model, every=2, step=lambda: at)
        train(model)
        at = 42
        train(model, 2)
        assert list(rows(file)) == [40, 42]


def test_compiled() -> None:
    """Names are those of the model, watched before it is compiled or afterwards."""
    for before in (True, False):
        model = small()
        compiled = torch.compile(model, backend="eager")
        with opened() as (_, file):
            logclient.watch(model if before else compiled)
            train(compiled)
            (row,) = rows(file).values()
            assert [key for key in row if key.startswith("grad/0")] == [
                "grad/0.weight/norm",
                "grad/0.bias/norm",
            ]
            logclient.unwatch(compiled if before else model)
            train(compiled)
            assert not rows(file)


def test_again_and_unwatch() -> None:
    """A second `watch` replaces the first; `unwatch` ends it, for one model or for all."""
    one, other = small(), small()
    with opened() as (_, file):
        logclient.watch(one)
        logclient.watch(one, every=2)
        logclient.watch(other)
        train(one)
        assert len(file.read()) == 1
        logclient.unwatch(one)
        train(one, 2)
        assert not file.read()
        logclient.unwatch()
        train(other)
        assert not file.read()


def test_copies_hold_nothing() -> None:
    """A model that is watched can be copied and pickled as before, and goes when its user lets go of it."""
    model = small()
    with opened() as (_, file):
        plain = pickle.dumps(model)
        logclient.watch(model, every=1)
        assert pickle.dumps(model) == plain
        train(copy.deepcopy(model))
        train(pickle.loads(plain))
        assert not file.read()
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None and not made


def test_disabled() -> None:
    """Not even a hook."""
    model = small()
    logclient.watch(model, run=logclient.NullRun("p", {}, ()))
    assert not made
    assert not model[2].bias._post_accumulate_grad_hooks


def test_run_of_its_own() -> None:
    """What is given goes before the current run; one that is over gets nothing and refuses nothing."""
    model = small()
    with opened() as (run, file):
        logclient.watch(model, every=1, run=run)
        train(model)
        assert len(file.read()) == 1
    train(model)
    assert run.status()["refused"] == 0


def test_our_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted and said once; the training goes on, and its gradients are there."""
    model = small()

    def fails(*_: Any) -> None:
        raise RuntimeError("out of kernels")

    monkeypatch.setattr(torch, "_foreach_norm", fails)
    with opened() as (run, file):
        logclient.watch(model, every=1)
        train(model, 3)
        assert not file.read()
        status = run.status()
    assert status["refused"] == 3
    assert sum("out of kernels" in line for line in status["notices"]) == 1
    assert model[0].weight.grad is not None


def test_users_failure() -> None:
    """What the user's `step` raises is the user's."""
    model = small()
    with opened() as (_, _file):
        logclient.watch(model, step=lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            train(model)


@pytest.mark.parametrize("arguments", [(object(),), (None,)], ids=["an object", "None"])
def test_no_module(arguments: tuple[Any], run_dir: Path) -> None:
    """Said once, and no training ends; raised in strict mode."""
    with opened() as (run, _):
        for _ in range(2):
            logclient.watch(*arguments, run=run)
            logclient.unwatch(*arguments)
        (line,) = run.status()["notices"]
        assert "torch.nn.Module" in line
    with opened(strict=True) as (run, _), pytest.raises(logclient.BadArgument, match=r"torch\.nn\.Module"):
        logclient.watch(*arguments, run=run)


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "3"], ids=str)
def test_bad_every(every: Any, run_dir: Path) -> None:
    """The same."""
    with opened() as (run, _):
        logclient.watch(small(), every=every, run=run)
        assert ["every" in line for line in run.status()["notices"]] == [True]
    with opened(strict=True) as (run, _), pytest.raises(logclient.BadArgument, match="every"):
        logclient.watch(small(), every=every, run=run)


def test_without_torch() -> None:
    """Said as it is, and torch is not imported for it."""
    script = """
import sys, logclient
logclient.watch(3)
assert "torch" not in sys.modules
logclient.unwatch()
print("said")
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "said\n", done.stderr

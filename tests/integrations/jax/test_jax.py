"""JAX arrays given to `log`: the right value or a counted omission, and nobody waits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import logclient

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "integrations" / "jax.md"
SCRIPTS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


def read(run_dir: Path, key: str) -> tuple[list[int], list[Any]]:
    (run,) = logclient.read(run_dir)
    series = run.series(key)
    return series.step.tolist(), series.value.tolist()


def test_each_step_has_its_own_value(run_dir: Path) -> None:
    """A loop whose state is donated to the next step, as fast as it goes; compared with a reference that waits."""

    @jax.jit
    def train(weights: Any) -> Any:
        weights = weights * 0.999 + 1
        return weights, {"sum": weights.sum(), "deep": {"first": weights[0]}}

    train = jax.jit(train, donate_argnums=0)
    weights = jnp.zeros(1000)
    run = logclient.init("jax", quiet=True)
    kept = []
    for step in range(500):
        weights, metrics = train(weights)
        run.log(step, metrics)
        kept.append(metrics)
    assert run.finish(120), run.status()
    status = run.status()
    assert (status["accepted"], status["refused"], status["left_out"]) == (500, 0, 0)
    assert read(run_dir, "sum") == (list(range(500)), [float(row["sum"]) for row in kept])
    assert read(run_dir, "deep::first") == (list(range(500)), [float(row["deep"]["first"]) for row in kept])


def test_value_that_is_not_computed_is_not_waited_for(run_dir: Path) -> None:
    """`log` returns while the device is still at it; the value comes later."""

    @jax.jit
    def slow(rounds: Any) -> Any:
        matrix = jax.lax.fori_loop(0, rounds, lambda _, m: jnp.tanh(m @ m), jnp.eye(300))
        return matrix[0, 0] * 0 + rounds

    run = logclient.init("jax", quiet=True)
    slow(0).block_until_ready()  # compiled
    rounds, logged, was_away = 16, [], False
    while not was_away:
        assert rounds < 1 << 20, "`log` never returned before the value was there"
        rounds *= 2
        x = slow(rounds)
        before = x.is_ready()
        run.log(rounds, {"x": x})
        was_away = not before and not x.is_ready()
        logged.append(rounds)
    assert run.status()["accepted"] == len(logged)
    assert run.finish(120), run.status()
    assert read(run_dir, "x") == (logged, logged) and run.status()["left_out"] == 0


KINDS = {
    "float32": lambda: jnp.float32(1.5),
    "float16": lambda: jnp.float16(1.5),
    "bfloat16": lambda: jnp.bfloat16(1.5),
    "weak": lambda: jnp.asarray(1.5),
    "int32": lambda: jnp.int32(-3),
    "uint8": lambda: jnp.uint8(200),
    "bool": lambda: jnp.bool_(True),
    "one element": lambda: jnp.ones((1, 1)) * 1.5,
    "replicated": lambda: jax.device_put(
        jnp.float32(1.5), NamedSharding(Mesh(np.array(jax.devices()), "d"), PartitionSpec())
    ),
    "second device": lambda: jax.device_put(jnp.float32(1.5), jax.devices()[1]),
}


@pytest.mark.parametrize("is_ready", [True, False], ids=["computed", "at once"])
def test_types(is_ready: bool, run_dir: Path) -> None:
    """Ints stay ints and bools bools."""
    assert len(jax.devices()) == 2
    run = logclient.init("jax", quiet=True)
    row = {name: make() for name, make in KINDS.items()}
    wanted = {name: array.reshape(()).item() for name, array in row.items()}
    if is_ready:
        jax.block_until_ready(row)
    else:
        row = {name: make() for name, make in KINDS.items()}
    run.log(1, row)
    assert run.finish(120), run.status()
    for name, value in wanted.items():
        ((found,)) = read(run_dir, name)[1]
        assert found == value and type(found) is type(value), name


LEFT_OUT = {
    "several values": lambda: jnp.ones(3),
    "complex": lambda: jnp.complex64(1j),
    "key": lambda: jax.random.key(0),
    "deleted": lambda: deleted(),
}


def deleted() -> Any:
    array = jnp.float32(1) + 1
    array.delete()
    return array


@pytest.mark.parametrize("what", LEFT_OUT)
def test_what_is_no_value_is_left_out(what: str, run_dir: Path) -> None:
    """Counted and said once; the values beside it are stored."""
    run = logclient.init("jax", quiet=True)
    for step in range(2):
        run.log(step, {"x": LEFT_OUT[what](), "good": jnp.float32(step)})
    assert run.finish(120), run.status()
    status = run.status()
    assert status["left_out"] == 2 and len(status["notices"]) == 1
    assert read(run_dir, "good") == ([0, 1], [0.0, 1.0])


def test_tracer_is_left_out(run_dir: Path) -> None:
    """Inside `jit` there is no value, and the function is compiled as without us."""
    run = logclient.init("jax", quiet=True)

    @jax.jit
    def train(x: Any) -> Any:
        run.log(1, {"x": x, "host": 0.5})
        return x + 1

    assert train(jnp.float32(1)) == 2
    assert run.finish(120)
    assert run.status()["left_out"] == 1 and read(run_dir, "host") == ([1], [0.5])


def test_debug_callback_logs_from_inside_jit(run_dir: Path) -> None:
    """The way that the page tells."""
    run = logclient.init("jax", quiet=True)

    @jax.jit
    def train(step: Any, x: Any) -> Any:
        jax.debug.callback(lambda step, x: run.log(int(step), {"x": x.item()}), step, x)
        return x * 2

    x = jnp.float32(1)
    for step in range(5):
        x = train(step, x)
    jax.effects_barrier()
    assert run.finish(120)
    assert sorted(zip(*read(run_dir, "x"), strict=True)) == [(step, 2.0**step) for step in range(5)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(len(SCRIPTS)), ids=["plain loop", "TrainState"])
def test_script_of_the_page(number: int, run_dir: Path, tmp_path: Path) -> None:
    """As it stands there; all values are there and the loss goes down."""
    (tmp_path / "script.py").write_text(SCRIPTS[number])
    done = subprocess.run(
        [sys.executable, "-W", "error", "script.py"],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'backend'}"},
    )
    assert done.returncode == 0, done.stderr
    (run,) = logclient.read(run_dir)
    assert run.state == "finished"
    keys = run.keys()
    assert keys and all(len(run.series(key)) == 300 for key in keys)
    loss = run.series("train::loss" if "train::loss" in keys else "loss")
    assert loss.value[-50:].mean() < loss.value[:10].mean() / 2

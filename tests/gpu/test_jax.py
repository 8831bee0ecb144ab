"""Values of JAX arrays on a real GPU: each stored value is that of its step, and no call waits for it.

Skips where JAX has no GPU.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import logclient

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch's tests want memory, too
jax: Any = pytest.importorskip("jax")
try:
    gpu = jax.devices("gpu")[0]
except RuntimeError:
    pytest.skip("needs a GPU that JAX sees", allow_module_level=True)

STEPS = 300


@pytest.mark.timeout(300)
def test_each_step_has_its_own_value_and_nothing_waits(run_dir: Path) -> None:
    """The state is given away to the next step (donated), as in a training; each step is some 10 ms of work."""
    jnp = jax.numpy

    def update(state: Any, step: Any) -> tuple[Any, Any]:
        weights = jax.lax.fori_loop(0, 20, lambda _, x: jnp.tanh(x @ x), state)
        return weights, step + 0 * jnp.sum(jnp.nan_to_num(weights))

    step_of = jax.jit(update, donate_argnums=0)
    state = jax.device_put(jnp.full((2048, 2048), 1e-3), gpu)
    state, value = step_of(state, jnp.float32(0))
    value.block_until_ready()
    run = logclient.init("jax", quiet=True)
    took = []
    begin = time.perf_counter()
    for step in range(STEPS):
        state, value = step_of(state, jnp.float32(step))
        before = time.perf_counter()
        run.log(step, {"value": value, "host": float(step)})
        took.append(time.perf_counter() - before)
    queued = time.perf_counter() - begin
    value.block_until_ready()
    whole = time.perf_counter() - begin
    print(
        f"log: median {1e6 * median(took):.0f} us, most {1e3 * max(took):.1f} ms; {queued:.2f} of {whole:.2f} s"
    )
    if queued < whole / 2:  # the device was far behind: a call that waited would have taken that long
        assert sum(took) < whole / 4
    assert run.finish(60), run.status()
    status = run.status()
    (found,) = logclient.read(run_dir)
    for key in ("value", "host"):
        series = found.series(key)
        assert (series.value == series.step).all(), key
    assert len(found.series("value").step) + status["left_out"] == STEPS
    assert status["left_out"] == 0, status
    assert found.series("host").step.tolist() == list(range(STEPS))
    assert status["device"]["way"] == "later call"


@pytest.mark.timeout(300)
def test_state_that_is_given_away_at_once_is_left_out_or_right(run_dir: Path) -> None:
    """The logged array itself is donated to the next step: its value is its own, or counted as gone."""
    step_of = jax.jit(lambda value: value + 1, donate_argnums=0)
    value = jax.device_put(jax.numpy.float32(0), gpu)
    run = logclient.init("jax", quiet=True)
    for step in range(STEPS):
        run.log(step, {"value": value, "host": float(step)})
        value = step_of(value)
    assert run.finish(60), run.status()
    (found,) = logclient.read(run_dir)
    assert found.series("host").step.tolist() == list(range(STEPS))
    stored = found.series("value") if "value" in found.keys() else None  # noqa: SIM118
    amount = 0 if stored is None else len(stored.step)
    assert stored is None or (stored.value == stored.step).all()
    assert amount + run.status()["left_out"] == STEPS

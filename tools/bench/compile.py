"""Cost of `log` in a `torch.compile` region: of the call itself, and of the region; in one run, interleaved.

    python tools/bench/compile.py [--rounds N] [--backend eager|inductor] [--values floats|tensors]

*inside* is the time in `log` when a compiled function calls it, *outside* when its caller does, right behind a compiled
function of the same size, so that caches are as cold: at most 1.2 x. *hot* is a loop of nothing else.
*region* is the time of the compiled function, *empty* that of one with an empty function under
`torch.compiler.disable` in place of `log`: at most 1.2 x. *spin* is that with a function that only lets as much time go
by as `log` takes inside: what a region of this size cannot be below. Ratios are medians over rounds, each of two times
that were measured one after the other; the spread is *empty* against itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import logclient
from logclient.guest import dynamo

_CALLS = 300  # of one round and way
_WARM = 50
_spent_ns: list[int] = []


def _timed(step: int, metrics: dict[str, Any]) -> None:
    start = time.perf_counter_ns()
    logclient.log(step, metrics)
    _spent_ns.append(time.perf_counter_ns() - start)


dynamo.keep_out(_timed)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _empty(step: int, metrics: dict[str, Any]) -> None:
    pass


_spin_ns = 0


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _spin(step: int, metrics: dict[str, Any]) -> None:
    until = time.perf_counter_ns() + _spin_ns
    while time.perf_counter_ns() < until:
        pass


def _bodies(values: str) -> dict[str, Callable[[Any, int], Any]]:
    """Functions to compile: the same arithmetic around another call."""
    calls = {"empty": _empty, "region": logclient.log, "again": _empty, "spin": _spin, "inside": _timed}

    def body(call: Callable[[int, dict[str, Any]], None]) -> Callable[[Any, int], Any]:
        def of_tensors(x: Any, step: int) -> Any:
            y = (x * 2).square().mean()
            call(step, {"loss": y, "lr": 0.1})
            return y + 1

        def of_floats(x: Any, step: int) -> Any:
            y = (x * 2).square().mean()
            call(step, {"loss": 0.5, "lr": 0.1})
            return y + 1

        return of_tensors if values == "tensors" else of_floats

    return {name: body(call) for name, call in calls.items()}


def _per_call_ns(call: Callable[[Any, int], Any], x: Any) -> tuple[float, float]:
    """Medians: (time of the call, time inside `_timed`)."""
    _spent_ns.clear()
    whole = []
    for step in range(_CALLS):
        start = time.perf_counter_ns()
        call(x, step)
        whole.append(time.perf_counter_ns() - start)
    return statistics.median(whole), statistics.median(_spent_ns or [0])


def main() -> int:
    global _spin_ns
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--backend", choices=("eager", "inductor"), default="eager")
    parser.add_argument("--values", choices=("floats", "tensors"), default="tensors")
    options = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.ones(64)
    loss = x.mean()
    value: Any = loss if options.values == "tensors" else 0.5
    costs: dict[str, list[float]] = {
        name: [] for name in ("empty", "region", "again", "spin", "inside", "outside", "hot")
    }
    with tempfile.TemporaryDirectory() as folder:
        run = logclient.init(dir=folder, quiet=True)
        compiled: dict[str, Any] = {}
        for name, body in _bodies(options.values).items():
            torch._dynamo.reset()
            compiled[name] = torch.compile(body, backend=options.backend)

        plain: Any = compiled["empty"]

        def outside(x: Any, step: int) -> None:
            y = plain(x, step)
            _timed(step, {"loss": y if options.values == "tensors" else 0.5, "lr": 0.1})

        ways = {
            **compiled,
            "outside": outside,
            "hot": lambda x, step: _timed(step, {"loss": value, "lr": 0.1}),
        }
        for call in ways.values():
            for step in range(_WARM):
                call(x, step)
        for _ in range(options.rounds):
            for name, call in ways.items():
                whole, inside = _per_call_ns(call, x)
                costs[name].append(inside if name in ("inside", "outside", "hot") else whole)
            _spin_ns = round(statistics.median(costs["inside"]))
        run.finish()
    found = {name: statistics.median(some) for name, some in costs.items()}

    def ratio(one: str, other: str) -> float:
        return round(statistics.median(a / b for a, b in zip(costs[one], costs[other], strict=True)), 3)

    print(
        json.dumps(
            {
                "backend": options.backend,
                "values": options.values,
                **{f"{name}_ns": round(value) for name, value in found.items()},
                "inside_over_outside": ratio("inside", "outside"),
                "region_over_empty": ratio("region", "empty"),
                "spin_over_empty": ratio("spin", "empty"),
                "empty_against_itself": ratio("again", "empty"),
                "bar": 1.2,
            }
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

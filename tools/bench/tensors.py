"""Cost of `log` with CPU tensors: against `.item()` by hand on each and `log` of the floats, in one run, interleaved.

    python tools/bench/tensors.py [--rounds N] [--values 5] [--dtype float32]

Each round times both ways in turn; the ratio is that of the medians, and the smallest ratio of two halves of the same
way is printed beside it, as the spread of this machine. The bar: at most 1.5.
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

_CALLS = 2_000  # of one round and way; the rings forget, which is part of the cost
_DTYPES = ("float32", "float64", "bfloat16", "int64", "mixed")


def _tensors(count: int, dtype: str) -> dict[str, Any]:
    kinds = ("float32", "int64") if dtype == "mixed" else (dtype,)
    return {
        f"loss/{number}": torch.tensor(number + 1, dtype=getattr(torch, kinds[number % len(kinds)]))
        for number in range(count)
    }


def _time_ns(call: Callable[[int], None]) -> float:
    start = time.perf_counter_ns()
    for step in range(_CALLS):
        call(step)
    return (time.perf_counter_ns() - start) / _CALLS


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--values", type=int, default=5)
    parser.add_argument("--dtype", choices=_DTYPES, default="float32")
    options = parser.parse_args()
    values = _tensors(options.values, options.dtype)
    with tempfile.TemporaryDirectory() as folder:
        run = logclient.init(dir=folder, quiet=True)

        def ours(step: int) -> None:
            run.log(step, {**values})

        def by_hand(step: int) -> None:
            run.log(step, {key: value.item() for key, value in values.items()})

        costs: dict[str, list[float]] = {"ours": [], "by_hand": []}
        for call in (ours, by_hand):
            _time_ns(call)
        for _ in range(options.rounds):
            costs["ours"].append(_time_ns(ours))
            costs["by_hand"].append(_time_ns(by_hand))
        run.finish()
    ours_ns, by_hand_ns = (statistics.median(costs[way]) for way in ("ours", "by_hand"))
    half = options.rounds // 2
    again = statistics.median(costs["by_hand"][:half]) / statistics.median(costs["by_hand"][half:])
    print(
        json.dumps(
            {
                "ours_ns": round(ours_ns),
                "by_hand_ns": round(by_hand_ns),
                "ratio": round(ours_ns / by_hand_ns, 3),
                "by_hand_against_itself": round(again, 3),
                "bar": 1.5,
            }
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What logging five CUDA scalars costs a training loop: time in the call, and step time, by way and model.

    python tools/bench/device.py [--steps N] [--pairs N] [--json FILE]

Ways: nothing, `.item()` per value, one stacked `.tolist()`, pinned buffer plus event (as `logclient` does where memory
cannot be locked), and `run.log`. Each at three sizes of model, with the device idle (waited for before the call) and
busy: some steps of work queued, but not as much as the queue takes, for then whoever asks for a kernel next waits for
a place in it, the training itself included. A bare `Event.record()` in the same loop is what the bars are ratios to.
Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [
    str(Path(__file__).resolve().parents[2]),
    str(Path(__file__).resolve().parents[2] / "backend"),
]

MODELS = {"small (64)": (64, 64), "medium (2048)": (2048, 2048), "large (4096)": (4096, 2048)}
STEPS_BEHIND = 5  # pairs of steps: on an H200 21 ms of the medium model, 134 ms of the large one
MIN_QUEUED_US = 1000
MAX_P50, MAX_P99, MIN_BELOW_ITEM, MAX_STEP = 3.0, 10.0, 100.0, 1.005


class Pinned:
    """A pinned buffer and an event per call; what is done is read by later calls."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.buffers = torch.empty((256, 5), dtype=torch.float32, pin_memory=True)
        self.pending: deque[tuple[int, int, Any]] = deque()
        self.kept: dict[int, list[float]] = {}

    def __call__(self, step: int, values: dict[str, Any]) -> None:
        while self.pending and self.pending[0][2].query():
            number, row, _ = self.pending.popleft()
            self.kept[number] = self.buffers[row].tolist()
        if len(self.pending) < 256:
            self.buffers[step % 256].copy_(self.torch.stack(list(values.values())), non_blocking=True)
            event = self.torch.cuda.Event()
            event.record()
            self.pending.append((step, step % 256, event))


class Loop:
    """A small training loop on the device, five scalars a step."""

    def __init__(self, torch: Any, width: int, batch: int) -> None:
        self.torch = torch
        layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
        self.model = torch.nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.x = torch.randn(batch, width, device="cuda")

    def step(self) -> dict[str, Any]:
        out = self.model(self.x)
        loss = out.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with self.torch.no_grad():
            rest = {"mean": out.mean(), "max": out.max(), "min": out.min(), "std": out.std()}
        return {"loss": loss.detach(), **rest}


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def time_in_call(
    loop: Loop, ways: dict[str, Callable[[int, dict[str, Any]], Any]], steps: int, *, busy: bool, waits: bool
) -> dict[str, dict[str, float]]:
    """Microseconds of each way's call; the ways take turns, step by step, in an order that moves on.

    `waits`: these ways wait for the device, so that as much as lies before the others is queued anew for each call.
    """
    torch, clock = loop.torch, time.perf_counter_ns
    took: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    behind: deque[Any] = deque()
    for number in range(steps * len(names)):
        name = names[(number + number // len(names)) % len(names)]
        for _ in range(2 * STEPS_BEHIND - 2 if waits and busy else 0):
            loop.step()
        values = loop.step()
        if not busy:
            torch.cuda.synchronize()
        else:
            loop.step()  # there is always work queued behind the values
            behind.append(torch.cuda.Event())
            behind[-1].record()
            if len(behind) > STEPS_BEHIND:
                behind.popleft().synchronize()
        before = clock()
        ways[name](number, values)
        took[name].append((clock() - before) / 1e3)
    torch.cuda.synchronize()
    return {
        name: {"p50_us": quantile(some[20:], 0.5), "p99_us": quantile(some[20:], 0.99)}
        for name, some in took.items()
    }


def step_ratio(loop: Loop, way: Callable[[int, dict[str, Any]], Any], steps: int, pairs: int) -> float:
    """Median over interleaved pairs of (time of so many steps with it) / (without)."""
    torch = loop.torch

    def block(call: Callable[[int, dict[str, Any]], Any] | None) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for number in range(steps):
            values = loop.step()
            if call is not None:
                call(number, values)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    block(way), block(None)
    ratios = []
    for number in range(pairs):
        first = block(way if number % 2 else None)
        second = block(None if number % 2 else way)
        ratios.append(first / second if number % 2 else second / first)
    return median(ratios)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a case, by the start of its name")
    parser.add_argument("--steps", type=int, default=1000, help="calls of each way and case")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    import torch

    import logclient

    if not torch.cuda.is_available():
        print("This bench needs a CUDA device.")
        return 2
    where = tempfile.mkdtemp()
    run = logclient.init("bench", dir=where, quiet=True)
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ways: dict[str, Callable[[int, dict[str, Any]], Any]] = {
        "Event.record()": lambda step, values: event.record(),
        "run.log": lambda step, values: run.log(step, values),
        "pinned buffer + event": Pinned(torch),
        "stacked tolist": lambda step, values: torch.stack(list(values.values())).tolist(),
        "item() per value": lambda step, values: [value.item() for value in values.values()],
    }
    quiet = {name: ways[name] for name in ("Event.record()", "run.log", "pinned buffer + event")}
    waiting = {name: way for name, way in ways.items() if name not in quiet}
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cases": {},
    }
    failed = []
    for name, (width, batch) in MODELS.items():
        if not name.startswith(given.only):
            continue
        loop = Loop(torch, width, batch)
        for _ in range(20):
            loop.step()
        run.log(0, loop.step())
        for busy in (False, True):
            # waits of some ways would empty the queue for the others
            amount = given.steps if busy else max(100, given.steps // 5)  # idle, nothing is judged
            some = time_in_call(loop, quiet, amount, busy=busy, waits=False)
            some |= time_in_call(loop, waiting, max(60, amount // 20), busy=busy, waits=True)
            case = f"{name}, {'busy' if busy else 'idle'}"
            results["cases"][case] = some
            bare, ours, item = some["Event.record()"], some["run.log"], some["item() per value"]
            for way, found in some.items():
                print(f"{case:24} {way:24} p50 {found['p50_us']:10.1f} us   p99 {found['p99_us']:10.1f} us")
            ratios = ours["p50_us"] / bare["p50_us"], ours["p99_us"] / bare["p99_us"]
            print(f"{case:24} p50 {ratios[0]:.2f} x, p99 {ratios[1]:.2f} x of a bare record")
            print(f"{case:24} item() / ours {item['p50_us'] / ours['p50_us']:.0f} x")
            below = item["p50_us"] / ours["p50_us"]
            if busy and item["p50_us"] < MIN_QUEUED_US:
                print(f"{case:24} the CPU is the limit, the device is not busy: calls are not judged")
            elif busy and (ratios[0] > MAX_P50 or ratios[1] > MAX_P99 or below < MIN_BELOW_ITEM):
                failed.append(case)
        ratio = step_ratio(loop, run.log, 60, given.pairs)
        results["cases"][name] = {"step_ratio": ratio}
        print(f"{name:24} step time {ratio:.4f} x of no logging (median of {given.pairs} pairs)")
        if ratio > MAX_STEP:
            failed.append(f"{name}: step time")
    loop = Loop(torch, 64, 64)
    for number in range(20):
        run.log(number, loop.step())
    torch.cuda.set_sync_debug_mode("error")
    for number in range(10_000):
        run.log(number, loop.step())
    torch.cuda.set_sync_debug_mode("default")
    print("10,000 steps with set_sync_debug_mode('error'): silent")
    assert run.finish(60), run.status()
    results["status"] = run.status()
    print({key: results["status"][key] for key in ("accepted", "durable", "left_out", "forgotten", "device")})
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1))
    print("over the bar:", failed or "nothing")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

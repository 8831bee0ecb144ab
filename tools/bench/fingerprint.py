"""Cost of run.fingerprint: a backward pass between two turns, one with a turn, and the memory of a turn.

    python tools/bench/fingerprint.py [--quick] [--layers N] [--width N] [--passes N]

A model of linear layers and layer norms is trained on a batch of one, on the first CUDA device in bfloat16 where there
is one, else on the CPU in float32. Passes with and without fingerprints take turns. Host time is the time of
`backward()`; device time includes what it has put into the device's queue. No figure has a bar: they depend on the
size of the model. What is reported as left out or refused has one: none.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

WARM_UP = 2
NEVER = 1 << 40  # passes: only the first one is a turn


def run(report: harness.Report, given: argparse.Namespace) -> None:
    import torch

    is_cuda = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if is_cuda else ("cpu", torch.float32)
    layers: list[Any] = []
    for _ in range(given.layers):
        layers += [torch.nn.LayerNorm(given.width), torch.nn.Linear(given.width, given.width)]
    model = torch.nn.Sequential(*layers).to(device, dtype)
    x = torch.ones(1, given.width, device=device, dtype=dtype)
    elements = sum(each.numel() for each in model.parameters())
    report.notes["model"] = f"{4 * given.layers} tensors, {elements:,} elements of {dtype} on {device}"

    def synchronize() -> None:
        if is_cuda:
            torch.cuda.synchronize()

    def passed() -> tuple[float, float]:
        """Return seconds of the host, and until the device is through."""
        model.zero_grad()
        loss = model(x).square().mean()
        synchronize()
        begun = time.perf_counter()
        loss.backward()
        returned = time.perf_counter()
        synchronize()
        return returned - begun, time.perf_counter() - begun

    with harness.place() as place:
        harness.enter(place)
        import logclient

        run = logclient.init("bench")
        run.log(-1, {"first": torch.zeros((), device=device)})
        ways: dict[str, Callable[[], None]] = {
            "without": lambda: None,
            "between two turns": lambda: run.fingerprint(model, every=NEVER),
            "with a turn": lambda: run.fingerprint(model, every=1),
        }
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        peaks: dict[str, float] = {}
        for number in range(WARM_UP + given.passes):
            for name, begin in ways.items():
                begin()
                if name == "between two turns":
                    passed()
                if is_cuda:
                    torch.cuda.reset_peak_memory_stats()
                found = passed()
                if is_cuda:
                    peaks[name] = torch.cuda.max_memory_allocated()
                logclient.unwatch()
                if number >= WARM_UP:
                    took[name].append(found)
            time.sleep(0.02)
        for name, each in took.items():
            for at, what in enumerate(("host", "device")):
                floor = harness.median([pair[at] for pair in took["without"]]) * 1e3
                value = harness.median([pair[at] for pair in each]) * 1e3
                report.figure(f"backward {name}, {what}", value, "ms", floor=floor)
        if is_cuda:
            most = (peaks["with a turn"] - peaks["without"]) / (1 << 20)
            report.figure("memory of a turn, above the peak of a pass", most, "MiB")
        run.finish(60)
        status = run.status()
        lost = sum(int(status[name]) for name in ("refused", "left_out", "forgotten"))
        report.figure("records or values refused, left out, forgotten", lost, "of all", most=0)
        place.wait_empty()


if __name__ == "__main__":
    harness.use_environment()
    sys.exit(
        harness.main(
            __doc__, run, layers=(75, 75, "of four tensors each"), width=(512, 256, "of a layer"),
            passes=(20, 10, "measured, of each kind"),
        )
    )  # fmt: skip

"""Cost of media values in the call of log, and what a frozen disk costs: images beyond the budget, and no scalar.

    python tools/bench/media.py [--quick] [--calls N] [--seconds N] [--frozen N]

The calls: an image of 224 x 224 x 3, and histograms of 1,000,000 floats of 32 and 64 bits, each beside a copy of as
many bytes into shared memory in the same loop. Then 200 images/s of 64 KiB beside 1,000 records/s; as root on a disk
that is frozen for a while in between, else on one that is not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness
from tools.bench.harness import ROOT, Report, say
from tools.faults import frozen

if __name__ == "__main__":
    harness.use_environment()

MAX_IMAGE_US, MAX_HISTOGRAM_US = 300.0, 1000.0

CALLS = """
import json, mmap, sys, time
import numpy as np
import logclient
from statistics import median

calls = int(sys.argv[1])
run = logclient.init(project="media", quiet=True)
random, clock, found = np.random.default_rng(1), time.perf_counter_ns, {}
shared = memoryview(mmap.mmap(-1, 16 << 20))
shared[:] = bytes(16 << 20)
cases = {
    "image of 224 x 224 x 3": (logclient.Image, random.integers(0, 255, (224, 224, 3), dtype="u1")),
    "histogram of 1,000,000 floats of 32 bits": (logclient.Histogram, random.random(1_000_000, dtype="f4")),
    "histogram of 1,000,000 floats of 64 bits": (logclient.Histogram, random.random(1_000_000)),
}
for name, (kind, array) in cases.items():
    took, floor = [], []
    data = memoryview(array.reshape(-1).view("u1"))
    run.log(0, {"media": kind(array)})
    for step in range(calls):
        value = kind(array)
        begin = clock()
        run.log(step, {"media": value})
        middle = clock()
        shared[step % 2 * (8 << 20) : step % 2 * (8 << 20) + len(data)] = data
        took.append(middle - begin)
        floor.append(clock() - middle)
        time.sleep(0.01)
    found[name] = [median(took) / 1e3, sorted(took)[int(0.99 * len(took))] / 1e3, median(floor) / 1e3]
run.finish(60)
print(json.dumps(found))
"""

LOAD = """
import json, os, sys, time
import logclient

seconds = float(sys.argv[1])
run = logclient.init(project="media", id="load", quiet=True)
begun, images = time.perf_counter(), 0
step, longest = 0, 0.0
pixels = os.urandom(64 << 10)
while time.perf_counter() - begun < seconds:
    metrics = {"loss": float(step)}
    if step % 5 == 0:
        images += 1
        metrics["image"] = logclient.Image(b"\\x89PNG\\r\\n\\x1a\\n" + images.to_bytes(4, "big") + pixels[12:])
    before = time.perf_counter()
    run.log(step, metrics)
    longest = max(longest, time.perf_counter() - before)
    step += 1
    time.sleep(max(0.0, begun + step / 1000 - time.perf_counter()))
done = run.finish(120)
status = run.status()
print(json.dumps({"steps": step, "images": images, "longest": longest, "done": done, "left_out": status["left_out"]}))
"""


def environment(folder: Path) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "backend")])
    return {
        **os.environ,
        "PYTHONPATH": paths,
        "LOGCLIENT_DIR": str(folder / "runs"),
        "LOGCLIENT_SYSTEM": "off",
    }


def bench_calls(report: Report, calls: int, folder: Path) -> None:
    """Measure the calls."""
    command = [sys.executable, "-c", CALLS, str(calls)]
    out = subprocess.run(command, env=environment(folder), cwd=folder, check=True, stdout=subprocess.PIPE)
    for name, (usual, late, floor) in json.loads(out.stdout).items():
        most = MAX_IMAGE_US if name.startswith("image") else MAX_HISTOGRAM_US
        report.figure(f"log() with an {name}".replace("an h", "a h"), usual, "us", floor=floor, most=most)
        report.figure(f"the same, p99: {name}", late, "us")


@contextlib.contextmanager
def a_disk(folder: Path) -> Iterator[Any]:
    """A disk that can be frozen, as root; else None."""
    if reason := frozen.why_not():
        say(f"the disk is not frozen: {reason}")
        yield None
        return
    with frozen.LoopExt4(4096) as disk:
        yield disk


def bench_load(report: Report, seconds: float, frozen_s: float, folder: Path) -> None:
    """Log images beside records, and account for each of both."""
    import logclient
    from logclient_backend.wal.reader import WalReader

    with a_disk(folder) as disk:
        where = folder if disk is None else Path(disk.path)
        command = [sys.executable, "-c", LOAD, str(seconds)]
        process = subprocess.Popen(command, env=environment(where), cwd=folder, stdout=subprocess.PIPE)
        time.sleep((seconds - frozen_s) / 2)
        if disk is not None:
            with disk.frozen():
                time.sleep(frozen_s)
        out, _ = process.communicate()
        told = json.loads(out)
        deadline = time.monotonic() + 60
        (run,) = logclient.read(where / "runs")
        while run.state == "running" and time.monotonic() < deadline:
            time.sleep(0.5)
            (run,) = logclient.read(where / "runs")
        media = list(run.media)
        spans = [
            span
            for path in (where / "runs").glob("*/*")
            for span in WalReader(str(path)).spans().values()
            if span.stream.startswith(b"lcmedia_")
        ]
        forgotten = sum(len(span.forgotten) + len(span.missing()) for span in spans)
        blobs = sum(1 for each in media if int.from_bytes(each.bytes()[8:12], "big") > 0)
        scalars = len(run.series("loss"))
    missing = told["images"] - len(media) - forgotten - told["left_out"]
    report.figure("scalars lost", told["steps"] - scalars, "records", most=0)
    report.figure("images neither stored nor counted", abs(missing), "images", most=0)
    report.figure("references without their bytes", len(media) - blobs, "images", most=0)
    report.figure("images logged", told["images"], "images")
    report.figure("images forgotten, counted", forgotten, "images")
    report.figure("records logged", told["steps"], "records")
    report.figure("longest call of log()", told["longest"] * 1e3, "ms")
    report.notes |= {"frozen_s": frozen_s if disk is not None else 0.0, "finish": told["done"]}


def run(report: Report, options: argparse.Namespace) -> None:
    """Measure all of it."""
    folder = Path(tempfile.mkdtemp(prefix="logclient-media-"))
    try:
        bench_calls(report, options.calls, folder)
        bench_load(report, options.seconds, options.frozen, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(
        harness.main(
            __doc__,
            run,
            calls=(300, 60, "calls of each kind"),
            seconds=(60.0, 12.0, "seconds of images beside records"),
            frozen=(20.0, 3.0, "seconds of them with a frozen disk"),
        )
    )

"""A training loop to be disturbed: logs records at a rate and keeps the truth in a file of its own.

Run by tests and benches as ``python -m tests.process.trainer '{"records": ...}'``; with `until_told` it logs until
SIGUSR1. The truth file is mapped: what was
written into it survives SIGKILL of this process. Words: 0 records whose log() returned, 1 records begun, 2 longest
call in ns, 3 the agent's shm directory is known (run id behind the words), 4 finished.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import time
from typing import Any

WORDS = 8
RUN_AT = 8 * WORDS
BYTES = 4096


def main(plan: dict[str, Any]) -> None:
    import logclient

    told: list[int] = []
    if plan.get("until_told"):
        signal.signal(signal.SIGUSR1, lambda number, frame: told.append(number))
    fd = os.open(plan["truth"], os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, BYTES)
    truth = mmap.mmap(fd, BYTES)
    words = memoryview(truth)[:RUN_AT].cast("Q")
    run = logclient.init("disturbed", quiet=plan.get("quiet", True), **plan.get("init", {}))
    assert isinstance(run, logclient.Run), "no shared memory for the test"
    about = f"{run.id}\n{run._session.shm_dir.path}".encode() if run.id else b"\n"
    truth[RUN_AT : RUN_AT + len(about)] = about
    words[3] = 1
    keys = [f"m{i}" for i in range(plan.get("values", 10))]
    log, clock = run.log, time.perf_counter_ns
    pause = 1e9 / plan["rate"] if plan.get("rate") else 0
    start, longest = clock(), 0
    seconds, burst = plan.get("seconds"), plan.get("burst")
    step = 0
    records = plan.get("records", 1 << 62)
    while step < records and not told:
        metrics = {key: step + index / 16 for index, key in enumerate(keys)}
        words[1] = step + 1
        before = clock()
        log(step, metrics)
        took = clock() - before
        step += 1
        words[0] = step
        if took > longest:
            longest = words[2] = took
        if pause:
            behind = start + step * pause - clock()
            if behind > 1e6:
                time.sleep(behind / 1e9)
        if burst and not step % burst:
            time.sleep(plan["rest_s"])
        if seconds and clock() - start > seconds * 1e9:
            break
    if plan.get("hold"):
        time.sleep(plan["hold"])
    if plan.get("finish", True):
        run.finish(plan.get("finish_timeout_s", 60.0))
    status = run.status()
    words[4] = 1
    print(json.dumps(status), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

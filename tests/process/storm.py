"""A training process in a storm: threads, forked children, finalizers, and two signals that a neighbour sends each ms.

Run as ``python -m tests.process.storm '{"seconds": ..., "threads": ..., "children": ..., "folder": ...}'``. Every
process writes what it did to ``<folder>/<pid>.json``: calls that returned and exceptions, by source.

One signal's handler logs. The other's raises, if it interrupts a frame of logclient: then and only then the exception
must come out of the very `log()` call that it interrupted, and each is counted where it is raised and where it arrives.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

LANES = 4
TICK_S = 0.001
HANDLER, FINALIZER, MAIN = 101, 102, 100  # besides the threads 0, 1, ...
SOURCES = (*range(16), MAIN, HANDLER, FINALIZER)


class Tick(Exception):
    """Raised by the handler of the second signal."""

    is_counted = False


class Storm:
    """What one process does and counts."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.is_over = False
        self.start_counting()

    def start_counting(self) -> None:
        """All by `next` of a counter: it is one step for threads and handlers."""
        self.begun = {source: count(1) for source in SOURCES}
        self.returned = {source: count(1) for source in SOURCES}
        self.interrupted = count(1)
        self.raised = count(1)
        self.caught = count(1)

    def log(self, source: int) -> None:
        """One row of `source`, numbered; its values can be told from its number."""
        number = next(self.begun[source])
        row: dict[str, Any] = {"source": float(source), "number": float(number), "double": 2.0 * number}
        if number % 5 == 0:
            row = {**row, "int": number, "text": str(number)}  # not the fast path
        try:
            self.run.log(number, row)
        except Tick as tick:
            next(self.interrupted)
            self.count(tick)
            return
        row.clear()
        next(self.returned[source])

    def count(self, error: BaseException | None) -> None:
        """Each once; one that came while another was on its way carries that as its context."""
        while error is not None:
            if isinstance(error, Tick) and not error.is_counted:
                error.is_counted = True
                next(self.caught)
            error = error.__context__

    def on_log(self, number: int, frame: FrameType | None) -> None:
        self.log(HANDLER)

    def on_raise(self, number: int, frame: FrameType | None) -> None:
        if frame is not None and str(frame.f_globals["__name__"]).startswith("logclient."):
            next(self.raised)
            raise Tick

    def listen(self) -> None:
        signal.signal(signal.SIGUSR1, self.on_log)
        signal.signal(signal.SIGUSR2, self.on_raise)

    def loop(self, source: int) -> None:
        while not self.is_over:
            for _ in range(20):
                self.log(source)
            Litter(self)
            time.sleep(0.0001)

    def report(self, folder: str) -> None:
        lanes = self.run._session.lanes
        lanes.find_lost()
        facts = {
            "begun": {source: next(counter) - 1 for source, counter in self.begun.items()},
            "returned": {source: next(counter) - 1 for source, counter in self.returned.items()},
            "interrupted": next(self.interrupted) - 1,
            "raised": next(self.raised) - 1,
            "caught": next(self.caught) - 1,
            "lanes_back": len(lanes.first) + len(lanes.others),
            "status": self.run.status(),
        }
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(facts))


class Litter:
    """Garbage in a cycle: its finalizer logs, whenever the collector comes by."""

    def __init__(self, storm: Storm) -> None:
        self.itself = self
        self.storm = storm

    def __del__(self) -> None:
        if not self.storm.is_over:
            self.storm.log(FINALIZER)


def send_signals() -> int:
    """Fork a neighbour that sends both signals each ms until we are gone or kill it."""
    target = os.getpid()
    ready, told = os.pipe()
    neighbour = os.fork()
    if neighbour:
        os.close(told)
        os.read(ready, 1)
        os.close(ready)
        return neighbour
    try:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        os.write(told, b"1")
        while os.getppid() == target:
            os.kill(target, signal.SIGUSR1)
            time.sleep(TICK_S / 2)
            os.kill(target, signal.SIGUSR2)
            time.sleep(TICK_S / 2)
    finally:
        os._exit(0)


def weather(storm: Storm, deadline: float) -> None:
    """The main thread in the storm."""
    neighbour = send_signals()
    while time.monotonic() < deadline:
        for _ in range(50):
            storm.log(MAIN)
        Litter(storm)
    os.kill(neighbour, signal.SIGKILL)
    os.waitpid(neighbour, 0)


def child(storm: Storm, deadline: float, folder: str, how: int) -> None:
    """A forked child: a storm of its own, an end by each way there is."""
    storm.start_counting()
    weather(storm, deadline)
    storm.is_over = True
    storm.report(folder)
    if how % 2:
        os._exit(0)
    sys.exit(0)


def main(plan: dict[str, Any]) -> None:
    import logclient

    run = logclient.init("storm", lanes=LANES)
    storm = Storm(run)
    storm.listen()
    deadline = time.monotonic() + plan["seconds"]
    threads = [threading.Thread(target=storm.loop, args=(n,)) for n in range(plan["threads"])]
    for thread in threads:
        thread.start()
    children = []
    for how in range(plan["children"]):
        pid = os.fork()
        if pid == 0:
            child(storm, deadline, plan["folder"], how)
        children.append(pid)
    weather(storm, deadline)
    storm.is_over = True
    for thread in threads:
        thread.join()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    storm.report(plan["folder"])
    print(json.dumps({"pid": os.getpid(), "codes": codes}), flush=True)
    run.finish(0)


if __name__ == "__main__":
    from logclient.spawn import agent as spawn
    from tests.lanes import start_no_agent

    spawn.start_agent = start_no_agent
    main(json.loads(sys.argv[1]))

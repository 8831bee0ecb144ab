"""A trainer on one simulated host and a collector on another, and whether all that was logged got across.

What is at the collector is read from its store, after it has ended, and compared with what was logged and with what
lies in the run folder: to the record, the value and the step, each once.
"""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from logclient_backend.collector.data_folder import DataFolder
from tools.collector import Collector
from tools.faults import processes
from tools.faults.network import NAME, Network

from . import agents, disturbed
from .disturbed import Stored, Trainer, wait_until

PATIENCE_S = 60.0  # of a test, on a machine that does much else
PATIENT = {  # waits of the product that are not the fault's
    "LOGCLIENT_START_TIMEOUT_S": "60",
    "LOGCLIENT_STALL_S": "30",
}


def assert_few_words(trainer: Trainer, said: str, about: str) -> None:
    """At most one line a minute says that something is wrong with what is `about`, and one that it is over."""
    lines = [line for line in said.splitlines() if about in line]
    minutes = (time.monotonic() - trainer.begun_at) / 60
    assert len(lines) <= 3 + 2 * minutes, lines  # connected; what is wrong; over


def stop(pid: int) -> None:
    """SIGSTOP, and it stands still."""
    agents.kill(pid, signal.SIGSTOP)
    wait_until(
        lambda: processes.state_of(pid) in ("T", "Z", processes.GONE), PATIENCE_S, f"process {pid} stops"
    )


def go_on(pid: int) -> None:
    agents.kill(pid, signal.SIGCONT)


class Hosts:
    """The network between them, and the collector on the right one."""

    def __init__(self, net: Network, collector: Collector, folder: Path) -> None:
        self.net = net
        self.collector = collector
        self._folder = folder

    def trainer(
        self, env: dict[str, str] | None = None, *, by_name: bool = False, stderr: Any = None, **plan: Any
    ) -> Trainer:
        """Started on the left host; its agent runs there too."""
        wanted = {**PATIENT, **self.collector.env, **(env or {})}
        if by_name:
            wanted["LOGCLIENT_SERVER"] = wanted["LOGCLIENT_SERVER"].replace(self.net.right.address, NAME)
        start = functools.partial(self.net.left.start, stderr=stderr)
        return Trainer(self._folder, wanted, start, **plan)

    def logclient(
        self, *words: str, env: dict[str, str] | None = None, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """A command of ours, on the left host."""
        assignments = [f"{name}={value}" for name, value in {**self.collector.env, **(env or {})}.items()]
        command = ["env", *assignments, sys.executable, "-m", "logclient_backend", *words]
        given: Any = {"capture_output": True, "text": True, "timeout": timeout_s, "check": False}
        return subprocess.run(self.net.left.words(*command, cwd=self._folder), **given)


def at_collector(data: Path, run_id: str) -> Stored:
    """What is in its store; it must have ended."""
    from logclient_backend.collector.store.open import open_store  # with numpy, which few tests need

    store = open_store(DataFolder(str(data)).store)
    try:
        found = Stored()
        reader = store.reader
        run = reader.run(run_id)
        if run is None:
            return found
        for span in reader.contents(run_id).values():
            seq = 1
            while seq:
                items, seq = reader.records(run_id, span.stream, seq)
                for item in items:
                    found.take(item)
            found.forgotten += len(span.forgotten) + len(span.trimmed) + len(span.missing())
            found.damaged += len(span.damaged)
        assert run.records == found.records, "its list of runs says otherwise"
        counted = {key.name: key.points for key in reader.keys(run_id).keys}
        assert set(counted.values()) <= {found.records}, (
            f"{found.records} records, points of each key: {counted}"
        )
    finally:
        store.close()
    return found


def assert_whole(found: Stored, logged: int) -> None:
    """All that was logged, each record once, with its values and steps."""
    assert found.wrong == 0, f"{found.wrong} records have other values than were logged"
    for seqs in found.seqs.values():
        assert all(a < b for a, b in pairwise(seqs)), "a record is there twice"
    assert (found.records, found.forgotten, found.damaged) == (logged, 0, 0)
    steps = sorted(step for steps in found.steps.values() for step in steps)
    assert steps == list(range(logged))


def assert_same(data: Path, run_dir: Path, logged: dict[str, int]) -> None:
    """Collector and run folder hold the same, and that is what was logged, by run."""
    here = disturbed.stored(run_dir)
    for run_id, count in logged.items():
        there = at_collector(data, run_id)
        assert_whole(there, count)
        for stream, seqs in there.seqs.items():
            assert here.seqs.pop(stream) == seqs
            assert here.steps.pop(stream) == there.steps[stream]
    assert not here.seqs, "streams in the run folder that are not at the collector"

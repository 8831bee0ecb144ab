"""What the tests of live shipping share: a collector in memory, and what it must have in the end."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from logclient.shm import layout
from tests.collectors import MemoryCollector

from .disturbed import ROOT, Stored

PATIENCE_S = 60.0
SHIPPER = layout.AGENT_SHIPPER


def address_of(port: int) -> dict[str, str]:
    """The settings of a trainer that ships there."""
    return {"LOGCLIENT_SERVER": f"grpc://127.0.0.1:{port}"}


@contextmanager
def black_hole() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen(64)
        yield int(made.getsockname()[1])


class Outside:
    """A collector that is a process of its own, to be stopped and killed."""

    def __init__(self, port: int = 0) -> None:
        command = [sys.executable, "-m", "tests.collectors", str(port)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def __enter__(self) -> Outside:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()


def at(collector: MemoryCollector, accepted: int) -> Stored:
    """What it has: all that was logged, each record once, with its values and steps."""
    found = Stored()
    with collector.lock:
        for node in collector.nodes.values():
            for item in node.items:
                found.take(item)
    assert found.wrong == 0, f"{found.wrong} records have other values than were logged"
    assert found.records == accepted
    for seqs in found.seqs.values():
        assert all(a < b for a, b in pairwise(sorted(seqs))), "a record is there twice"
    steps = sorted(step for steps in found.steps.values() for step in steps)
    assert steps == list(range(accepted))
    return found

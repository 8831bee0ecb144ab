"""What clients without a token do to those who have one: acks, /healthz and memory of a collector that is crowded.

    python tools/bench/strangers.py [--quick] [--seconds N]

2,000 silent connections, 300 silent streams and 60 hellos of 15 MiB, all at once and again when they are closed, first
from 127.0.0.2 to .9, then from 127.0.0.1, from where the agent comes too. The collector may open 1,024 files. Meanwhile
an agent ships a parcel every 0.1 s in one conversation, another one connects anew for each, and /healthz is asked on a
new connection every 0.2 s. Each figure is the worst of its kind.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

if __name__ == "__main__":
    harness.use_environment()

import requests

from logclient_backend.wire import address
from logclient_backend.wire.client import Patience, Session
from logclient_backend.wire.credentials import Access
from logclient_backend.wire.messages import Hello, NotTaken, Parcel
from tests.ingest import records
from tools.collector import Collector, collector
from tools.faults import strangers

ACK_BAR_S, HEALTH_BAR_S, MEMORY_BAR = 2.0, 1.0, 1.5
DESCRIPTORS = 1024
OTHERS = tuple(f"127.0.0.{at}" for at in range(2, 10))
OWN = ("127.0.0.1",)


class Watch:
    """Does something again and again in a thread, and keeps how long each took."""

    def __init__(self, what: Callable[[], None], pause_s: float) -> None:
        self.took_s: list[float] = []
        self.troubles: list[str] = []
        self._what = what
        self._pause_s = pause_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join(60.0)

    def _work(self) -> None:
        while not self._end.is_set():
            begin = time.monotonic()
            try:
                self._what()
            except (NotTaken, OSError, requests.RequestException) as error:
                self.troubles.append(f"{type(error).__name__}: {error}"[:200])
            self.took_s.append(time.monotonic() - begin)
            self._end.wait(self._pause_s)


class Agent:
    """Ships one record at a time."""

    def __init__(self, server: str, token: str, node: str) -> None:
        self._access = Access(address.parse(server), token)
        self._node = node
        self._session: Session | None = None
        self.records = 0

    def ship(self) -> None:
        """One record in the conversation that is open, until it is acknowledged."""
        if self._session is None:
            session = Session(self._access, Hello("strangers", self._node), Patience(20.0, 20.0))
            session.open()
            self._session = session
        self.records += 1
        self._session.send(Parcel(0, [records(self.records, 1, stream=self._node.encode() * 16)]))
        try:
            while self._session.under_way:
                self._session.poll(0.5)
        except NotTaken:
            self._session = None
            raise

    def ship_anew(self) -> None:
        """The same in a conversation of its own."""
        try:
            self.ship()
        finally:
            self.close()

    def close(self) -> None:
        if self._session is not None:
            self._session.close(5.0)
            self._session = None


def peak_kib(pid: int) -> int:
    """VmHWM."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0])


def healthz(url: str) -> None:
    with requests.Session() as session:
        session.trust_env = False
        answer = session.get(f"{url}/healthz", timeout=20)
        if answer.status_code != 200:
            raise OSError(f"/healthz answered {answer.status_code}")


def crowded(
    to: Collector, sources: tuple[str, ...], of: strangers.Crowd, seconds: float
) -> tuple[dict[str, Watch], float]:
    """What those who watch saw, and by how much the peak of memory grew."""
    ports = int(to.address.rpartition(":")[2]), int(to.url.rpartition(":")[2])
    old, new = Agent(to.address, to.token, "a"), Agent(to.address, to.token, "b")
    for warm in (old.ship, new.ship_anew, lambda: healthz(to.url)):
        warm()
    before = peak_kib(to.pid)
    watches = {
        "ack": Watch(old.ship, 0.1),
        "ack of a new conversation": Watch(new.ship_anew, 0.5),
        "/healthz": Watch(lambda: healthz(to.url), 0.2),
    }
    with ExitStack() as watching:
        for watch in watches.values():
            watching.enter_context(watch)
        watching.enter_context(strangers.present(*ports, sources, of, seconds + 60.0))
        time.sleep(seconds)
    old.close()
    return watches, peak_kib(to.pid) / before


def run(report: harness.Report, given: argparse.Namespace) -> None:
    for name, sources in (("127.0.0.2 to .9", OTHERS), ("the agent's own address", OWN)):
        with collector(descriptors=DESCRIPTORS) as to:
            watches, growth = crowded(to, sources, strangers.Crowd(), given.seconds)
        for what, watch in watches.items():
            bar_s = HEALTH_BAR_S if what == "/healthz" else ACK_BAR_S
            report.figure(f"{what}, strangers from {name}", max(watch.took_s), "s", most=bar_s)
            report.figure(f"{what} that failed, strangers from {name}", len(watch.troubles), "", most=0)
            for trouble in sorted(set(watch.troubles))[:3]:
                harness.say(trouble)
        report.figure(f"VmHWM, strangers from {name}", growth, "x of before", most=MEMORY_BAR)


if __name__ == "__main__":
    sys.exit(harness.main(__doc__, run, seconds=(20.0, 5.0, "of each crowd")))

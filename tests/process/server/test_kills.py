"""A collector that is killed, stopped, filled up and crowded while it takes data in."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from logclient_backend.wire.address import parse
from logclient_backend.wire.messages import NotTaken
from tests.conftest import Pace
from tests.ingest import STREAM, Client, records
from tools.collector import Collector

from ..disturbed import wait_until

A_PARCEL = 50  # records


class Feeder(threading.Thread):
    """Ships one stream for as long as it is wanted: over again from what was not acknowledged, as a shipper does."""

    def __init__(self, server: Collector, run: str, *, parcel: int = A_PARCEL, keys: int = 1) -> None:
        """`parcel`: records in each."""
        super().__init__(name=f"feed {run}", daemon=True)
        self.run_id = run
        self.acked = 0  # records
        self.refusals: list[NotTaken] = []
        self.failure = ""
        self._server = server
        self._parcel = parcel
        self._names = ("loss", *(f"key{number}" for number in range(1, keys)))
        self._is_wanted = threading.Event()
        self._is_wanted.set()

    def wait_more(self) -> None:
        """Until more is acknowledged than now."""
        before = self.acked
        wait_until(lambda: self.acked > before or self.failure, 60, "something is acknowledged")

    def end(self) -> int:
        """Records that were acknowledged."""
        self._is_wanted.clear()
        self.join(60)
        assert not self.is_alive() and not self.failure, self.failure
        return self.acked

    def run(self) -> None:
        try:
            while self._is_wanted.is_set():
                try:
                    self._converse()
                except NotTaken as trouble:
                    self.refusals.append(trouble)
                    time.sleep(0.02)
        except Exception as error:  # noqa: BLE001  # told by `end`
            self.failure = repr(error)

    def _converse(self) -> None:
        client = Client(parse(self._server.address), self._server.token, run=self.run_id)
        try:
            held = client.welcome.held.get(STREAM)
            stored = held.stored.ranges() if held is not None else []
            have = stored[0][1] if stored else 0
            if len(stored) > 1 or have < self.acked:
                self.failure = f"{self.acked} records were acknowledged, and stored are {stored}"
                self._is_wanted.clear()
            base, sent = have, 0
            while self._is_wanted.is_set():
                while client.session.has_room and client.session.under_way < 20:
                    client.send(records(base + sent * self._parcel + 1, self._parcel, names=self._names))
                    sent += 1
                for answer in client.session.poll(0.5):
                    if isinstance(answer, NotTaken):
                        raise answer
                    self.acked = max(self.acked, base + answer.upto * self._parcel)
        finally:
            client.session.close(0.0)


def check(server: Collector, run: str, at_least: int) -> None:
    """Each record once, in order, with its value; none that was acknowledged is missing."""
    values: list[float] = []
    after = ""
    while True:
        page = server.get(f"/api/v1/run/series?run={run}&key=loss&limit=100000&after={after}").json()
        values += page["value"]
        after = page["next"]
        if page["is_all"]:
            break
    assert len(values) >= at_least
    assert values == [float(number) for number in range(1, len(values) + 1)]


@pytest.mark.slow
def test_kill_at_any_moment_loses_nothing_that_was_acknowledged(server: Collector, pace: Pace) -> None:
    """SIGKILL in mid-ingest, again and again; what was sent twice is stored once."""
    server.start("--limit", "parcels_per_s=1000")
    feeders = [Feeder(server, f"run{number}") for number in range(2)]
    for feeder in feeders:
        feeder.start()
    moments = random.Random(7)
    for _ in range(pace.count(100, least=5)):
        feeders[0].wait_more()
        time.sleep(moments.random() / 4)  # any moment will do
        server.kill()
        server.start()
    for feeder in feeders:
        check(server, feeder.run_id, feeder.end())


@pytest.mark.slow
def test_sigterm_in_mid_ingest_commits_what_it_took(server: Collector) -> None:
    """Clients are told to come again, and it ends well."""
    server.start()
    feeder = Feeder(server, "mlp")
    feeder.start()
    wait_until(lambda: feeder.acked > 20 * A_PARCEL or feeder.failure, 60, "data flows")
    assert server.stop(signal.SIGTERM) == 0
    wait_until(lambda: feeder.refusals, 60, "the client is told")
    assert feeder.refusals[0].reason in ("stopping", "unreachable") and not feeder.refusals[0].is_final
    server.start()
    feeder.wait_more()
    check(server, "mlp", feeder.end())


@pytest.mark.slow
def test_first_start_that_was_killed_can_be_repeated(server: Collector, pace: Pace) -> None:
    """At any byte of it: the folder is fine, and a token can be made."""
    moments = random.Random(11)
    words = ["--data", str(server.data), "--listen", "127.0.0.1:0", "--json"]
    for _ in range(pace.count(60, least=2)):
        process = subprocess.Popen(
            [sys.executable, "-m", "logclient_backend", "server", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until((server.data / "store").exists, 60, "it begins")
            time.sleep(moments.random() / 10)  # any moment will do
        finally:
            process.kill()
            process.wait(60)
    server.start()
    token = server.command("token", "add", "again", "--role", "admin").stdout.strip()
    assert server.get("/api/v1/info", token).json()["role"] == "admin"


@pytest.mark.root
def test_full_disk_is_refused_with_a_time_and_readers_go_on(server: Collector, tmp_path: Path) -> None:
    """And when there is room again, all of it comes."""
    server.data.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs", str(server.data)]
    subprocess.run(mount, check=True, timeout=60)
    try:
        server.start("--limit", "parcels_per_s=1000")
        feeder = Feeder(server, "mlp")
        feeder.start()
        wait_until(lambda: feeder.refusals or feeder.failure, 100, "the disk is full")
        refused = feeder.refusals[0]
        assert (refused.reason, refused.is_final) == ("disk", False) and refused.retry_after_s
        have = feeder.acked
        assert have > 0
        assert server.get("/api/v1/runs").json()["total"] == 1
        assert server.get("/healthz").status_code == 200
        wait_until(lambda: server.get("/readyz", "").status_code == 503, 60, "it says so")
        assert (
            "disk" in server.get("/readyz", "").text
            and str(server.data) not in server.get("/readyz", "").text
        )
        subprocess.run(["mount", "-o", "remount,size=64m", str(server.data)], check=True, timeout=60)
        feeder.wait_more()
        wait_until(lambda: server.get("/readyz").status_code == 200, 60, "it is ready again")
        check(server, "mlp", feeder.end())
        server.stop()
    finally:
        server.kill()
        subprocess.run(["umount", "-l", str(server.data)], check=True, timeout=60)


@pytest.mark.slow
def test_memory_is_bounded_whoever_comes(server: Collector, pace: Pace) -> None:
    """Fifty clients that send all they may, and answer to nothing: some half of them are more than it has room for."""
    limits = {"queue_bytes": 8 << 20, "under_way_bytes": 8 << 20, "conversations": 40, "wait_s": 1.0}
    server.start(*[word for pair in limits.items() for word in ("--limit", f"{pair[0]}={pair[1]}")])
    feeders = [Feeder(server, f"run{number}", parcel=500, keys=10) for number in range(50)]
    for feeder in feeders:
        feeder.start()
    try:
        wait_until(lambda: sum(feeder.acked > 0 for feeder in feeders) > 20, 90, "many are served")
        most = 0
        deadline = time.monotonic() + pace.seconds(60)
        while time.monotonic() < deadline:
            most = max(most, server.rss_bytes())
            time.sleep(0.05)
        assert {refused.reason for feeder in feeders for refused in list(feeder.refusals)} <= {"busy"}
        print(f"most {most >> 20} MiB")
        assert most < 300 << 20
    finally:
        acked = {feeder.run_id: feeder.end() for feeder in feeders}
    run = max(acked, key=lambda name: acked[name])
    check(server, run, acked[run])

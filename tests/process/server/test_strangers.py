"""Clients without a token crowd both ports of a collector: those who have one are served, and memory stays."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Pace
from tools.bench import strangers as bench
from tools.collector import Collector, collector
from tools.faults import strangers

from ..disturbed import wait_until

DEADLINE_S = 20.0
DESCRIPTORS = 1024
GROWTH = 1.5

NONSENSE = (
    b"\x16\x03\x01\0\5hello",
    b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\xff\xff",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def few_files() -> Iterator[Collector]:
    """A collector that may open 1,024 files."""
    with collector(descriptors=DESCRIPTORS) as to:
        yield to


@pytest.mark.parametrize("sources", [bench.OTHERS, bench.OWN], ids=["others", "own"])
def test_those_with_a_token_are_served_while_strangers_try(
    few_files: Collector, sources: tuple[str, ...], pace: Pace
) -> None:
    """2,000 silent connections, 300 silent streams, 60 hellos of 15 MiB: none costs an ack, nor much memory."""
    count = pace.count
    of = strangers.Crowd(count(2000, 1200), count(0, 0), count(300, 80), count(60, 20))
    watches, growth = bench.crowded(few_files, sources, of, max(5.0, pace.seconds(30)))
    for what, watch in watches.items():
        assert watch.took_s and not watch.troubles, (what, watch.troubles)
        assert max(watch.took_s) < DEADLINE_S, (what, max(watch.took_s))
    assert growth < GROWTH


def test_silent_connections_are_closed_and_health_is_answered_meanwhile(
    few_files: Collector, pace: Pace
) -> None:
    """On the HTTP port, whether they say nothing or half of a line; and those that speak slowly, too."""
    host, _, port = few_files.url.rpartition("://")[2].partition(":")
    bench.healthz(few_files.url)
    opened = []
    try:
        for number in range(pace.count(2000, 600)):
            opened.append(socket.create_connection((host, int(port)), DEADLINE_S))
            if number % 2:
                opened[-1].sendall(b"GET /healthz HT")
        bench.healthz(few_files.url)
        for each in opened:
            each.setblocking(False)
        wait_until(lambda: all(map(_is_closed, opened)), 60, "all are closed")
    finally:
        for each in opened:
            each.close()


def test_log_is_not_flooded_and_descriptors_are_left(few_files: Collector) -> None:
    """A line a minute of each cause at most, however many try."""
    of = strangers.Crowd(silent=1500, streams=100, hellos=5, again_per_s=2000)
    grpc, http = (int(each.rpartition(":")[2]) for each in (few_files.address, few_files.url))
    before = len(few_files.said().splitlines())
    with strangers.present(grpc, http, bench.OTHERS, of, 60.0):
        end = time.monotonic() + 4
        while time.monotonic() < end:
            bench.healthz(few_files.url)
            assert len(os.listdir(f"/proc/{few_files.pid}/fd")) < DESCRIPTORS - 50
    assert len(few_files.said().splitlines()) - before <= 5, few_files.said()


def test_garbage_fills_no_log(few_files: Collector, pace: Pace) -> None:
    """Neither of the two ports writes a line for each client that speaks nonsense."""
    before = len(few_files.said().splitlines())
    for each in (few_files.address, few_files.url):
        host, _, port = each.rpartition("://")[2].partition(":")
        for said in (
            b"\x16\x03\x01\0\5hello",
            b"GET / HTTP/1.1\r\n: x\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\xff\xff",
        ):
            for _ in range(pace.count(1000, 50)):
                with socket.create_connection((host, int(port)), DEADLINE_S) as made:
                    made.sendall(said)
    bench.healthz(few_files.url)
    assert len(few_files.said().splitlines()) - before <= 5, few_files.said()


def test_soft_limit_of_descriptors_is_raised(tmp_path: Path) -> None:
    """The hard one is what the administrator meant."""
    made = Collector(tmp_path / "data")
    made.start()
    try:
        limits = Path(f"/proc/{made.pid}/limits").read_text().split("Max open files")[1].split()
        assert limits[0] == str(min(int(limits[1]), 65_536))
    finally:
        made.kill()


def _is_closed(made: socket.socket) -> bool:
    try:
        return made.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True

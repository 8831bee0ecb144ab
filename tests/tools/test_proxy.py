"""What the proxy is told to be is what a client meets."""

from __future__ import annotations

import base64
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.tools import echo
from tests.tools.traces import line_of
from tools.faults import processes
from tools.faults.proxy import Proxy

pytestmark = pytest.mark.timeout(120)
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    given: Any = {"stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, echo.FILE, "serve", "127.0.0.1"], **given) as server:
        try:
            yield f"127.0.0.1:{line_of(server)}"
        finally:
            server.kill()


@pytest.fixture
def proxy(target: str) -> Iterator[Proxy]:
    with Proxy(target) as made:
        yield made


def connect(proxy: Proxy, timeout_s: float = PATIENCE_S) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout_s)


def read(connection: socket.socket, size: int) -> bytes:
    """So many bytes, fewer where it ends before."""
    data = b""
    while len(data) < size and (more := connection.recv(65536)):
        data += more
    return data


def test_passes_both_ways_and_counts(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        connection.sendall(b"x" * 300_000)
        assert read(connection, 300_000) == b"x" * 300_000
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"", "an end of one side arrives at the other"
    facts = proxy.facts()
    assert (facts["connections"], facts["up"], facts["down"]) == (1, 300_000, 300_000)


def test_delay_is_per_byte_and_costs_no_throughput(proxy: Proxy) -> None:
    """There and back takes twice the delay, for one byte as for many."""
    proxy.be("delayed", seconds=0.3)
    with connect(proxy) as connection:
        begun = time.monotonic()
        connection.sendall(b"x" * 2_000_000)
        assert len(read(connection, 2_000_000)) == 2_000_000
        assert time.monotonic() - begun >= 0.6


def test_stalled_connection_goes_on_where_it_was(proxy: Proxy) -> None:
    """Silence while it is stalled; nothing is missing afterwards."""
    with connect(proxy) as connection:
        connection.sendall(b"a")
        assert read(connection, 1) == b"a"
        proxy.be("stalled")
        connection.sendall(b"b")
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(PATIENCE_S)
        proxy.be("passing")
        assert read(connection, 1) == b"b"


def test_half_open_lets_the_client_speak_only(proxy: Proxy) -> None:
    proxy.be("half_open")
    with connect(proxy, 0.5) as connection:
        connection.sendall(b"x" * 1000)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        processes.wait_until(lambda: proxy.facts()["up"] == 1000, PATIENCE_S)
    assert proxy.facts()["down"] == 0


def test_cuts_after_so_many_bytes(proxy: Proxy) -> None:
    proxy.be("cutting", after=1000)
    with connect(proxy) as connection:
        connection.sendall(b"x" * 500)
        assert len(read(connection, 500)) == 500
        connection.sendall(b"x" * 501)
        with pytest.raises(ConnectionError):
            while True:
                if not connection.recv(65536):
                    pytest.fail("an orderly end instead of a reset")


@pytest.mark.parametrize(
    ("what", "begin", "size"),
    [("garbage", b"", 65536), ("portal", b"HTTP/1.1 200", 100), ("big_error", b"HTTP/1.1 500", 1 << 20)],
)
def test_speaks_itself(proxy: Proxy, what: str, begin: bytes, size: int) -> None:
    """Connections that are open are cut; new ones hear what it has to say."""
    with connect(proxy) as before:
        before.sendall(b"x")
        assert read(before, 1) == b"x"
        proxy.be(what, size=size)
        with pytest.raises(ConnectionError):
            before.recv(1)
    with connect(proxy) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert connection.recv(12, socket.MSG_WAITALL)[: len(begin)] == begin
        assert len(read(connection, size)) >= size - 12


def test_login_is_asked_for_and_told(proxy: Proxy) -> None:
    """A wrong one gets 407 and nothing else; the right one a tunnel."""
    proxy.be("login", login="me:p@ss")
    for login, status in ((b"me:wrong", b"407"), (b"me:p@ss", b"200")):
        with connect(proxy) as connection:
            word = base64.b64encode(login)
            connection.sendall(b"CONNECT far:1 HTTP/1.1\r\nProxy-Authorization: Basic " + word + b"\r\n\r\n")
            assert connection.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 " + status
    facts = proxy.facts()
    assert facts["logins"] == ["me:wrong", "me:p@ss"]
    assert facts["asked_for"] == "far:1"


def test_unknown_wish_is_refused(proxy: Proxy) -> None:
    with pytest.raises(ValueError, match="cannot be 'nice'"):
        proxy.be("nice")

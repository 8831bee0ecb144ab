"""Two simulated hosts, the faults between them, and nothing left of them whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools import echo
from tests.tools.traces import ROOT, line_of, python, traces_of
from tools.faults import kernel, network, processes
from tools.faults.network import NAME, Network

WHY_NOT = network.why_not()
pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(120),
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
]

GONE_S = 30.0


class Link:
    """An echo server on the right host, and whoever asks it from the left one."""

    def __init__(self, net: Network, port: int) -> None:
        self.net = net
        self.port = port

    def ask(self, name: str = NAME, size: int = 1, timeout_s: float = 30) -> str:
        words = (sys.executable, echo.FILE, "ask", name, str(self.port), str(size), str(timeout_s))
        return self.net.left.run(*words, timeout_s=100).strip()


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    """One pair of hosts for all that mend what they break."""
    with Network() as net:
        given: Any = {"stdout": subprocess.PIPE, "text": True}
        server = net.right.start([sys.executable, echo.FILE, "serve", net.right.address], **given)
        with server:
            try:
                yield Link(net, int(line_of(server)))
            finally:
                server.kill()


def left_of(net_name: str) -> list[str]:
    """Traces, and processes on its hosts."""
    traces = traces_of(net_name, Path(tempfile.gettempdir()))
    return traces + [f"process {pid} on a host" for pid in kernel.living_on(net_name)]


def test_hosts_are_two_and_know_each_other(link: Link) -> None:
    """Host names, addresses and names differ; outside there is no such network."""
    assert link.net.left.run("hostname").strip() == "left.test"
    assert link.net.right.run("hostname").strip() == "right.test"
    assert link.ask() == link.ask(link.net.right.address) == "ok"
    outside = subprocess.run(["ip", "route", "show"], capture_output=True, text=True, timeout=30, check=True)
    assert "10.77." not in outside.stdout


@pytest.mark.parametrize(
    ("fault", "answer"),
    [
        ("black_hole", "silence"),
        ("reset", "refused"),
        ("cable_out", "unreachable"),
        ("no_name", "unknown"),
    ],
)
def test_fault_is_felt_and_is_over(link: Link, fault: str, answer: str) -> None:
    """New connections end as the fault says, and work again after it."""
    with getattr(link.net, fault)():
        assert link.ask(timeout_s=1) == answer
    assert link.ask() == "ok"


def test_names_may_be_answered_by_silence(link: Link) -> None:
    """A silent name server lets the one who asks wait; whoever knows the address gets through."""
    with link.net.no_name(silent=True):
        with pytest.raises(subprocess.TimeoutExpired):
            link.net.left.run("getent", "ahostsv4", NAME, timeout_s=1)
        assert link.ask(link.net.right.address) == "ok"


OPEN = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 60) as connection:
    connection.sendall(b"1")
    connection.recv(1)
    print("open", flush=True)
    sys.stdin.readline()
    try:
        connection.sendall(b"2")
        print("answered" if connection.recv(1) else "closed", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


@pytest.mark.parametrize(
    ("fault", "ends"), [("reset", "ConnectionResetError"), ("cable_out", "answered"), ("loss", "answered")]
)
def test_open_connection_ends_or_outlives_the_fault(link: Link, fault: str, ends: str) -> None:
    """A reset kills what is open; a cable that comes back and lost packets do not."""
    words = [sys.executable, "-c", OPEN, NAME, str(link.port)]
    given: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with link.net.left.start(words, **given) as client:
        try:
            assert line_of(client) == "open"
            with getattr(link.net, fault)():
                assert client.stdin is not None
                client.stdin.write("\n")
                client.stdin.flush()
                if fault != "cable_out":
                    assert line_of(client) == ends
            if fault == "cable_out":
                assert line_of(client) == ends
        finally:
            client.kill()


def test_slow_link_passes_what_its_rate_allows(link: Link) -> None:
    """At 400 kbit/s 100 kB take two seconds: they are not there after one, but in the end."""
    with link.net.slow(kbit=400):
        with pytest.raises(subprocess.TimeoutExpired):
            words = (sys.executable, echo.FILE, "ask", NAME, str(link.port), "100000", "60")
            link.net.left.run(*words, timeout_s=1)
        assert link.ask(size=100_000, timeout_s=60) == "ok"


def test_several_faults_hold_at_once(link: Link) -> None:
    """One that ends leaves the others."""
    with link.net.no_name():
        with link.net.black_hole(), link.net.loss(50):
            assert link.ask(link.net.right.address, timeout_s=1) == "silence"
        assert link.ask(link.net.right.address) == "ok"
        assert link.ask() == "unknown"


def test_whoever_lives_on_a_host_ends_with_it() -> None:
    """Processes that were forgotten there are killed at the end; a folder of their own is no hiding place."""
    with Network() as net:
        forgotten = net.left.start(["setsid", "sleep", "600"], cwd=tempfile.gettempdir())
        processes.wait_until(lambda: forgotten.pid in kernel.living_on(net.name), GONE_S)
    assert forgotten.wait(GONE_S) == -signal.SIGKILL
    assert left_of(net.name) == []


OWNER = """
import signal
from tools.faults.network import Network
with Network() as net, net.black_hole():
    sleeper = net.right.start(["sleep", "600"])
    print(net.name, net.guard_pid, flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("victim", ["owner", "guard"])
def test_nothing_is_left_when_someone_is_killed(victim: str) -> None:
    """SIGKILL of the test: its guard cleans up. SIGKILL of the guard too: a sweep does."""
    with python(OWNER) as owner:
        name, _, guard = line_of(owner).partition(" ")
        processes.wait_until(lambda: len(kernel.living_on(name)) == 3, GONE_S, what="two hosts and a sleeper")
        if victim == "guard":
            os.kill(int(guard), signal.SIGKILL)
        owner.kill()
        owner.wait(10)
        if victim == "guard":
            processes.wait_until(lambda: not processes.is_alive(int(guard)), GONE_S)
            words = [sys.executable, "-m", "tools.faults.sweep", str(Path(tempfile.gettempdir()) / name)]
            subprocess.run(words, cwd=ROOT, timeout=60, check=True)
        processes.wait_until(lambda: not left_of(name), GONE_S, what="nothing is left")


def test_command_line_runs_on_the_left_host() -> None:
    """From a shell: the command lives on the left host, in this folder, and its exit code is passed on."""
    tool = [sys.executable, "-m", "tools.faults.network", "--how", "cable-out", "--"]
    script = "hostname; pwd; while ip link show veth up | grep -q veth; do sleep 0.05; done; exit 7"
    done = subprocess.run(
        [*tool, "sh", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 7, done.stderr
    assert done.stdout.split() == ["left.test", str(ROOT)]
    assert left_of(Path(done.stderr.splitlines()[0]).name) == []

"""`logclient server` as a process of a test's or bench's own; it can be killed, stopped and started again."""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import requests
from click.testing import CliRunner, Result

from logclient_backend.cli import cli
from logclient_backend.collector import data_folder as folders
from logclient_backend.collector.tokens import Tokens
from logclient_backend.wire import address
from tests.ingest import Client
from tools.faults import network, processes

ROOT = Path(__file__).resolve().parents[1]
READY_S, END_S = 90.0, 90.0
PORT = 7788  # on a simulated host, which has all ports to itself


class Collector:
    """One data folder, and the `logclient server` that runs on it now."""

    def __init__(
        self,
        data: Path,
        *options: str,
        host: network.Host | None = None,
        descriptors: int = 0,
        roles: Sequence[str] = ("ingest", "read"),
    ) -> None:
        """`token` has these roles; with none of them it is the administrator's, from the first start on.

        `host`: a simulated one, else loopback. `descriptors`: so many files may it open; 0: as many as we may.
        """
        self.data = data
        self.options = options
        self.port = 0  # the HTTP API has the next one
        self.token = Tokens(folders.make(str(data)).path).add("test", roles) if roles else ""
        self.facts: dict[str, Any] = {}  # what it says of itself
        self.log = data.with_name(f"{data.name}.log")
        self.process: subprocess.Popen[bytes] | None = None
        self._host = host
        self._descriptors = descriptors

    def start(self, *options: str) -> dict[str, Any]:
        """What it says of itself, once it listens. Later starts take the ports of the first."""
        words = [sys.executable, "-m", "logclient_backend", "server"]
        words += ["--data", str(self.data), "--json", *self.options, *options]
        if "--listen" not in words:
            self.port = self.port or (free_port() if self._host is None else PORT)
            words += ["--listen", f"{'127.0.0.1' if self._host is None else self._host.address}:{self.port}"]
        if self._descriptors:
            words = ["sh", "-c", f'ulimit -n {self._descriptors}; exec "$@"', "sh", *words]
        with open(self.log, "ab") as log:
            given: Any = {
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": log,
                "cwd": ROOT,
            }
            start: Any = subprocess.Popen if self._host is None else self._host.start
            self.process = start(words, **given)
        assert self.process is not None
        line = _first_line(self.process, READY_S)
        assert line, f"the collector did not start:\n{self.said()[-4000:]}"
        self.facts = json.loads(line)
        self.token = self.facts.get("admin_token", self.token)
        return self.facts

    @property
    def address(self) -> str:
        """The address that agents ship to."""
        return str(self.facts["grpc"])

    @property
    def url(self) -> str:
        """The address of the HTTP API."""
        return str(self.facts["http"])

    @property
    def env(self) -> dict[str, str]:
        """The environment with which a trainer's records go there."""
        return {"LOGCLIENT_SERVER": self.address, "LOGCLIENT_TOKEN": self.token}

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def said(self, since: int = 0) -> str:
        """Its log, all starts together."""
        return self.log.read_bytes()[since:].decode(errors="replace")

    def client(self, token: str | None = None, **hello: Any) -> Client:
        return Client(address.parse(self.address), self.token if token is None else token, **hello)

    def get(self, path: str, token: str | None = None, **given: Any) -> requests.Response:
        """Ask the HTTP API."""
        return self.ask("GET", path, token, **given)

    def ask(self, method: str, path: str, token: str | None = None, **given: Any) -> requests.Response:
        token = self.token if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with requests.Session() as session:
            session.trust_env = False
            return session.request(method, self.url + path, headers=headers, timeout=60, **given)

    def command(self, *words: str, code: int = 0) -> Result:
        """`logclient server WORDS --data ...`, inside this process: for what does not serve."""
        done = CliRunner().invoke(cli, ["server", *words, "--data", str(self.data)], prog_name="logclient")
        assert done.exit_code == code, (done.exit_code, done.output, done.exception)
        return done

    def kill(self) -> None:
        """SIGKILL; nothing where none runs."""
        if self.process is not None:
            self.process.kill()
            self.wait()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait until it has ended; its exit code."""
        process, self.process = self.process, None
        assert process is not None
        try:
            return process.wait(END_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(END_S)
            assert process.stdout is not None
            process.stdout.close()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP inside the `with`."""
        with processes.stopped(self.pid):
            yield

    @property
    def cpu_s(self) -> float:
        """User and system time of this start, so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cmdline(self) -> bytes:
        return Path(f"/proc/{self.pid}/cmdline").read_bytes() + Path(f"/proc/{self.pid}/comm").read_bytes()


@contextlib.contextmanager
def collector(*options: str, descriptors: int = 0) -> Iterator[Collector]:
    """Start one on loopback, its data in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="logclient-bench-") as folder:
        made = Collector(Path(folder) / "data", *options, descriptors=descriptors)
        try:
            made.start()
            yield made
        finally:
            made.kill()


_RESERVED: list[socket.socket] = []  # until this process ends


def free_port() -> int:
    """One that is free, and the next one too, that the system gives nobody who connects somewhere, and no other test.

    Else the port could be taken while the collector is down, by its own client too: one that connects to a port of
    this machine where nobody listens may be given that very port, and then speaks to itself. Tests that run at the
    same time reserve theirs by a name that belongs to one process, and do not draw from `random`: frameworks seed it,
    after which two processes draw the same ports.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    first = min(20_000, low // 2) & ~1
    for port in random.SystemRandom().sample(range(first, low - 1, 2), 500):
        reserved = socket.socket(socket.AF_UNIX)
        try:
            reserved.bind(f"\0logclient-test-port-{port}")
            for each in (port, port + 1):
                with socket.socket() as tried:
                    tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    tried.bind(("127.0.0.1", each))
        except OSError:
            reserved.close()
            continue
        _RESERVED.append(reserved)
        return port
    raise RuntimeError("no port is free")


def _first_line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """Empty where it ends without one, or by the deadline."""
    assert process.stdout is not None
    found = b""
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not found.endswith(b"\n") and (left := deadline - time.monotonic()) > 0:
            if selector.select(left):
                part = os.read(process.stdout.fileno(), 65536)
                if not part:
                    return b""
                found += part
    return found

"""A collector as a process of its own, started, killed, stopped and started again; and a client that feeds it.

For benches, and for tests that break it. Loopback, or a host of `tools.faults.network`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.bench import harness
from tools.faults import network, processes

READY_S, END_S = 60.0, 60.0
PORT = 7788  # on a simulated host; on loopback a free one
A_PARCEL = 10_000  # points
_LISTENS = re.compile(r"collecting on grpc://(\S+):(\d+), HTTP API on http://(\S+):(\d+),")


class Collector:
    """One `logclient server`, which may be started several times on one data folder, always on the same ports."""

    def __init__(
        self, data: Path, host: network.Host | None = None, *options: str, descriptors: int = 0
    ) -> None:
        """`descriptors`: so many files may it open, and no more; 0: as many as we may."""
        from logclient_backend.collector import data as folders
        from logclient_backend.collector.tokens import Tokens

        self.data = data
        self.token = Tokens(folders.make(str(data)).path).add("bench", ["ingest", "read"])
        self.log = data.with_name(f"{data.name}.log")
        self.process: subprocess.Popen[bytes] | None = None
        self._host = host
        self._options = options
        self._descriptors = descriptors
        name = "127.0.0.1" if host is None else host.address
        port = 0 if host is None else PORT
        self._listen, self._http = f"{name}:{port}", f"{name}:{port and port + 1}"

    @property
    def address(self) -> str:
        return f"grpc://{self._listen}"

    @property
    def url(self) -> str:
        return f"http://{self._http}"

    @property
    def env(self) -> dict[str, str]:
        """With which a trainer's records go there."""
        return {"LOGCLIENT_SERVER": self.address, "LOGCLIENT_TOKEN": self.token}

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Until it listens."""
        before = self.log.stat().st_size if self.log.exists() else 0
        words = [sys.executable, "-m", "logclient_backend", "server", "--data", str(self.data)]
        words += ["--listen", self._listen, "--http", self._http, *self._options]
        if self._descriptors:
            words = ["sh", "-c", f'ulimit -n {self._descriptors}; exec "$@"', "sh", *words]
        with open(self.log, "ab") as log:
            given: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "cwd": harness.ROOT}
            if self._host is None:
                self.process = subprocess.Popen(words, **given)
            else:
                self.process = self._host.start(words, **given)
        deadline = time.monotonic() + READY_S
        while (found := _LISTENS.search(self.said(before))) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"The collector is not ready:\n{self.said(before)[-4000:]}")
            time.sleep(0.02)
        self._listen, self._http = f"{found[1]}:{found[2]}", f"{found[3]}:{found[4]}"

    def said(self, since: int = 0) -> str:
        """Its log, all starts together."""
        return self.log.read_bytes()[since:].decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL, in mid-sentence."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(END_S)

    def stop(self) -> int:
        """SIGTERM, and what it ended with."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(END_S)
        finally:
            self.kill()

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


@contextlib.contextmanager
def collector(*options: str, descriptors: int = 0) -> Iterator[Collector]:
    """One on loopback, its data in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="logclient-bench-") as folder:
        made = Collector(Path(folder) / "data", None, *options, descriptors=descriptors)
        try:
            made.start()
            yield made
        finally:
            made.kill()


class Feed:
    """A client that sends parcels as fast as they are taken; the values are noise, made once."""

    def __init__(self, to: Collector, *, run: str, values: int = 10) -> None:
        from logclient.shm.record import Shape

        self._to = to
        self._run = run
        self._shape = Shape(tuple(f"metric{at}" for at in range(values)), "d" * values)
        self._records = A_PARCEL // values
        self._stream = os.urandom(16)
        self._seq = 1
        # nobody logs at an even pace
        self._times = [at * 1_000_000 + at * at % 9973 for at in range(self._records)]
        self._cells: list[Any] = [array("Q", os.urandom(8 * self._records)) for _ in range(values)]

    def _parcel(self) -> Any:
        from logclient.shm.columns import Columns
        from logclient_backend.wal.encoded import StreamColumns
        from logclient_backend.wire.messages import Parcel

        seqs = range(self._seq, self._seq + self._records)
        self._seq += self._records
        seq, step = array("Q", seqs), array("q", seqs)
        now = time.time_ns()
        times = array("q", [now + at for at in self._times])
        columns = Columns(self._shape, None, seq, seq, step, times, self._cells)
        return Parcel(0, [StreamColumns(self._stream, self._stream, 0, columns)])

    def for_seconds(self, seconds: float) -> float:
        """Points per second that were acknowledged, until all that was sent is."""
        end = time.monotonic() + seconds
        parcels, took_s = self._send(lambda sent: time.monotonic() < end)
        return parcels * A_PARCEL / took_s

    def all_of(self, records: int) -> float:
        """Seconds until so many records (rounded up to parcels) are acknowledged."""
        parcels = -(-records // self._records)
        return self._send(lambda sent: sent < parcels)[1]

    def _send(self, has_more: Callable[[int], bool]) -> tuple[int, float]:
        """(parcels, seconds from the hello to the last ack); `has_more` is asked with how many were sent."""
        from logclient_backend.wire import address
        from logclient_backend.wire.client import Session
        from logclient_backend.wire.credentials import Access
        from logclient_backend.wire.messages import Ack, Hello

        access = Access(address.parse(self._to.address), self._to.token)
        session = Session(access, Hello(self._run, "bench"))
        begin = time.monotonic()
        session.open()
        sent = acked = 0
        try:
            while acked < sent or has_more(sent):
                while session.has_room and has_more(sent):
                    session.send(self._parcel())
                    sent += 1
                for answer in session.poll(0.1):
                    if not isinstance(answer, Ack):
                        raise RuntimeError(f"The collector refused a parcel: {answer}")
                    acked = answer.upto
            return sent, time.monotonic() - begin
        finally:
            session.close(5.0)

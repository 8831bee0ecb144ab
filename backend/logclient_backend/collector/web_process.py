"""A web process: answers over HTTP beside the committing process, and reads the store for itself.

`python -m logclient_backend answer-web FD`, started by `web_processes.py`; FD is its end of the lifeline. What only the
committing process has is asked there, with a deadline (`committing.py`): while that is busy or hangs, every other
question is answered.

Threads: `main` at the lifeline; `http` and the acceptor's (`http.py`); workers of FastAPI; `live` (`web/live.py`).

Ends: when it is told to, letting requests end; at once when the lifeline is closed; by SIGKILL when the committing
process is gone, also where this one is stopped. Signals for the whole group are left to the committing process.
"""

from __future__ import annotations

import ctypes
import io
import os
import resource
import signal
import socket
import threading
import time
from typing import Any

from ..admission.connections import ConnectionLimits
from .blobs import Blobs
from .catalog import state_now
from .committing import Committing, RemoteReports, RemoteRequests
from .data_folder import DataFolder
from .descriptor_limits import AdmittedCallers, raise_limit
from .eventlog import EventLog
from .http import HttpServer
from .lifeline import Gone, Lifeline
from .sessions import Sessions
from .site import Site
from .store.interface import FedStore
from .store.open import read_store
from .tokens import Tokens

BEAT_S = 1.0
GRACE_S = 8.0
_BEGIN_S = 30.0
_DEATH_SIGNAL = 1  # linux/prctl.h: PR_SET_PDEATHSIG


class _LineLog(io.TextIOBase):
    """The way of the log: over the line, so that one process alone writes it."""

    def __init__(self, line: Lifeline) -> None:
        self._line = line

    def write(self, text: str) -> int:
        self._line.send({"log": text.rstrip("\n")})
        return len(text)


class WebProcess:
    """Made of what came over the line."""

    def __init__(self, line: Lifeline, given: dict[str, Any]) -> None:
        self._line = line
        self._given = given
        self.log = EventLog(_LineLog(line))  # type: ignore[arg-type]
        self.log.take_over()
        self.data = DataFolder(given["data"])
        self.store: FedStore = read_store(self.data.store)
        self.store.take_seen(given["seen"])
        self.tokens = Tokens(self.data.path, no_auth=given["no_auth"])
        self.sessions = Sessions(self.data.path, self.tokens.is_valid)
        tls = given["tls"]
        self.server = HttpServer(
            [socket.socket(fileno=fd) for fd in given["listening"]],
            self.log,
            ConnectionLimits(**given["limits"]),
            tls=(tls[0], tls[1]) if tls else None,
        )

    def run(self, came: list[dict[str, Any]]) -> int:
        """Serve until told to end; the exit code. `came`: over the line, already."""
        raise_limit()
        self.server.start(self._make_app)
        beat_at = 0.0
        while True:
            if not came:
                self._line.wait(max(0.0, beat_at + BEAT_S - time.monotonic()))
            for each in [*came, *self._line.take()]:
                if "seen" in each:
                    self.store.take_seen(each["seen"])
                if "stop" in each:
                    return self._stop()
            came = []
            if time.monotonic() - beat_at >= BEAT_S:
                beat_at = time.monotonic()
                self._beat()
            if self.server.failure:
                self.log.event(f"warning: {self.server.failure}")
                return 1

    def _beat(self) -> None:
        self._line.send(
            {
                "is_well": self.server.is_well,
                "beat": {
                    "is_serving": self.server.is_serving,
                    "turned_away": self.server.turned_away,
                    "resident_bytes": resident_bytes(),
                    "cpu_seconds": time.process_time(),
                },
            }
        )

    def _stop(self) -> int:
        done: list[bool] = []
        stopping = threading.Thread(target=lambda: done.append(self.server.stop(GRACE_S)), daemon=True)
        stopping.start()
        while stopping.is_alive():
            self._beat()
            stopping.join(0.1)
        self._line.flush()
        return 0 if done == [True] else 1

    def _make_app(self) -> Any:
        from .web.app import make_app
        from .web.context import Backing

        given = self._given
        committing = Committing(self.data, given["version"])
        return make_app(
            Backing(
                store=self.store,
                check=self.tokens.check,
                state=lambda run, now_ns: state_now(
                    run, now_ns, late_s=given["late_s"], lost_s=given["lost_s"]
                ),
                delete=committing.delete,
                undelete=committing.undelete,
                edit=committing.edit,
                sessions=self.sessions,
                stop_requests=RemoteRequests(committing),
                node_reports=RemoteReports(committing),
                blobs=Blobs(self.data.path),
                metrics=committing.metrics,
                not_ready=committing.not_ready,
                facts=committing.facts,
                callers=AdmittedCallers(self.server.acceptor, self.tokens, self.sessions),
                names=frozenset(given["names"]),
                site=Site(**given["site"]),
                is_over_folder=given["is_over_folder"],
            )
        )


def main(fd: str) -> int:
    """Be a web process; the exit code."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    line = Lifeline(socket.socket(fileno=int(fd)))
    try:
        given, *came = _first(line)
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != given["parent"]:
            return 1
        code = WebProcess(line, given).run(came)
    except Gone:
        code = 1
    os._exit(code)  # threads may wait for a disk


def _first(line: Lifeline) -> list[dict[str, Any]]:
    """Return what comes first, and what came with it."""
    until = time.monotonic() + _BEGIN_S
    while (left := until - time.monotonic()) > 0:
        line.wait(left)
        if came := line.take():
            return came
    raise Gone


def resident_bytes() -> float:
    """Return the memory of this process."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

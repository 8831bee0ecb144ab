"""The web processes of a collector, as the committing process sees them: started, watched, started again.

They answer over HTTP, so that no question waits for what arrives. The port's listening sockets are made here and
inherited: while a process is started again, who connects waits in their queue. Each has an acceptor of its own, with
its share of the limits; each reads the store for itself (`store.open.read_store`).

One thread, `web`, which lives as long as they do: the kernel kills them when it ends, however that comes about.

Invariants:

- a process that ends is started again, at once at first, then with growing pauses;
- one whose event loop does not turn, or that was stopped, is killed and started again after `HUNG_S`;
- no process outlives this one.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ..admission.connections import ConnectionLimits
from ..admission.listening import listen
from ..wire.address import Address
from .eventlog import EventLog
from .http import HttpServer
from .lifeline import Gone, Lifeline
from .store.interface import SeenFeed

HUNG_S = 15.0  # without a beat; two are a second apart
MAX_PROCESSES = 16
_LOOK_S = 0.25
_LIVED_S = 10.0  # a process that lived so long is started again at once
_PAUSES_S = (0.0, 0.1, 0.5, 2.0, 5.0)  # before each start after a short life
_FAILED = 3  # short lives in a row, after which the API does not work
_END_S = 2.0


class WebPort:
    """The port of the HTTP API, which listens when it is made; `OSError` where that cannot be."""

    def __init__(self, address: Address, *, tls: tuple[str, str] | None = None) -> None:
        """`tls`: files with certificate and key."""
        self.sockets = listen(address.host, address.port)
        self.address = Address(address.host, self.sockets[0].getsockname()[1], tls is not None)
        self.tls = tls

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.address.target}"

    def close(self) -> None:
        for each in self.sockets:
            each.close()


class OwnServer:
    """The HTTP API in a thread of the committing process itself: no process more, and questions wait for it."""

    def __init__(self, port: WebPort, server: HttpServer, make_app: Callable[[], Any]) -> None:
        self.port = port
        self.server = server
        self._make_app = make_app

    @property
    def failure(self) -> str:
        return self.server.failure

    @property
    def turned_away(self) -> int:
        return self.server.turned_away

    def figures(self) -> Mapping[str, float]:
        """Memory and CPU time of web processes: there are none."""
        return {"processes": 0, "resident_bytes": 0, "cpu_seconds": 0}

    def start(self) -> None:
        self.server.start(self._make_app)

    def stop(self, timeout_s: float) -> bool:
        return self.server.stop(timeout_s)


class _Process:
    """One web process."""

    def __init__(self, port: WebPort, given: Mapping[str, Any], feed: SeenFeed, log: EventLog) -> None:
        """Start it."""
        ours, theirs = socket.socketpair()
        self.line = Lifeline(ours)
        self.feed = feed
        self.started_at = self.beat_at = time.monotonic()
        self.facts: dict[str, Any] = {}  # of its last beat
        self._log = log
        listening = [each.fileno() for each in port.sockets]
        words = [sys.executable, "-P", "-m", "logclient_backend", "answer-web", str(theirs.fileno())]
        try:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *listening],
                start_new_session=True,
            )
        except BaseException:
            self.line.close()
            raise
        finally:
            theirs.close()
        self.line.send({**given, "parent": os.getpid(), "listening": listening, "seen": feed.take()})

    def look(self) -> str:
        """Take what came and give what is new; why it is over, empty while it is not."""
        code = self.process.poll()
        try:
            for each in self.line.take():
                self._take(each)
        except Gone:
            if code is None:
                return "closed its line"
        if code is not None:
            return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if time.monotonic() - self.beat_at > HUNG_S:
            return f"has not answered for {HUNG_S:g} s"
        self.line.flush()
        if self.line.has_room:
            news = self.feed.take()
            if news["runs"]:
                self.line.send({"seen": news})
        return ""

    def _take(self, content: dict[str, Any]) -> None:
        if "log" in content:
            self._log.pass_on(str(content["log"]))
        if content.get("is_well"):
            self.beat_at = time.monotonic()
        if "beat" in content:
            self.facts = content["beat"]

    def end(self) -> None:
        """Kill it where it still runs."""
        self.feed.end()
        self.process.kill()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            pass  # in the kernel, for a disk; the signal is there
        self.line.close()


class WebProcesses:
    """All of them. `start` once, `stop` once."""

    def __init__(
        self,
        count: int,
        port: WebPort,
        given: Mapping[str, Any],
        limits: ConnectionLimits,
        feed: Callable[[], SeenFeed],
        log: EventLog,
    ) -> None:
        """`given`: what `web_process.main` needs to know."""
        self.port = port
        self.failure = ""  # why nothing is served
        self._given = {**given, "limits": asdict(_share(limits, count)), "tls": port.tls}
        self._feed = feed
        self._log = log
        self._places: list[_Process | None] = [None] * count
        self._short_lives = [0] * count
        self._start_at = [0.0] * count
        self._past = {"turned_away": 0, "cpu_seconds": 0.0}  # of those that are gone
        self._stop_by = 0.0
        self._is_stopped = False
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._work, name="web", daemon=True)

    @property
    def turned_away(self) -> int:
        """Connections that were closed without having shown a token, some of the last second left out."""
        return int(self._past["turned_away"] + self._sum("turned_away"))

    def figures(self) -> Mapping[str, float]:
        """Count, memory and CPU time."""
        return {
            "processes": sum(each is not None for each in self._places),
            "resident_bytes": self._sum("resident_bytes"),
            "cpu_seconds": self._past["cpu_seconds"] + self._sum("cpu_seconds"),
        }

    def pids(self) -> list[int]:
        return [each.process.pid for each in self._places if each is not None]

    def _sum(self, name: str) -> float:
        return sum(float(each.facts.get(name, 0)) for each in self._places if each is not None)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Let questions be answered, then end them; False where one had to be killed."""
        self._stop_by = time.monotonic() + timeout_s
        if self._thread.ident is None:
            self.port.close()
            return True
        os.eventfd_write(self._woken, 1)
        self._thread.join(timeout_s + 2 * _END_S)
        return self._is_stopped

    # ---- the thread -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stop_by:
            for at in range(len(self._places)):
                try:
                    self._look(at)
                except Exception as error:  # noqa: BLE001  # the others, and the next look, may work
                    self._log.fault("the web processes", error)
            self._wait(_LOOK_S)
        self._end()

    def _wait(self, timeout_s: float) -> None:
        watched = select.poll()
        watched.register(self._woken, select.POLLIN)
        for each in self._places:
            if each is not None:
                watched.register(each.line.fileno(), select.POLLIN)
        watched.poll(timeout_s * 1e3)

    def _look(self, at: int) -> None:
        process = self._places[at]
        now = time.monotonic()
        if process is None:
            if now >= self._start_at[at]:
                self._start(at)
            return
        why = process.look()
        if not why:
            if self._short_lives[at] and now - process.started_at > _LIVED_S:
                self._short_lives[at] = 0
            if process.facts.get("is_serving"):
                self.failure = ""
            return
        self._places[at] = None
        self._past["turned_away"] += process.facts.get("turned_away", 0)
        self._past["cpu_seconds"] += process.facts.get("cpu_seconds", 0)
        process.end()
        self._log.write("web process", f"a web process {why}: it is started again")
        self._again(at, why)

    def _start(self, at: int) -> None:
        feed = self._feed()
        try:
            self._places[at] = _Process(self.port, self._given, feed, self._log)
        except OSError as error:
            feed.end()
            self._log.write("web process start", f"a web process cannot be started: {error.strerror}")
            self._again(at, f"cannot be started: {error.strerror}")

    def _again(self, at: int, why: str) -> None:
        lives = self._short_lives[at] = self._short_lives[at] + 1
        self._start_at[at] = time.monotonic() + _PAUSES_S[min(lives, len(_PAUSES_S)) - 1]
        if lives >= _FAILED and not any(self._places):
            self.failure = f"the HTTP API does not work: its process {why}; the log has more"

    def _end(self) -> None:
        self.port.close()
        there = [each for each in self._places if each is not None]
        for each in there:
            each.line.send({"stop": True})
        while time.monotonic() < self._stop_by and any(each.process.poll() is None for each in there):
            for each in there:
                each.look()
            time.sleep(0.02)
        self._is_stopped = all(each.process.poll() is not None for each in there)
        for each in there:
            each.end()
        self._places = [None] * len(self._places)


def _share(limits: ConnectionLimits, count: int) -> ConnectionLimits:
    """Return the limits of one of so many processes."""
    named = asdict(limits)
    for name in ("outside", "inside", "known"):
        named[name] = max(8, -(-named[name] // count))
    return ConnectionLimits(**named)

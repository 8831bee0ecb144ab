"""The process that sends a collector's alerts (`alerts/sender.py`), as the thread `alerts` sees it.

A collector has many threads and must not fork, so delivery, which forks for each attempt, is a process of its own.
It is started again when it ends, and goes on from its last report. Nothing here waits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from typing import Any

from ..alerts.event import Event
from ..alerts.saved import MAX_EVENTS, Saved
from .eventlog import EventLog

_AGAIN_S = 5.0
_MAX_BYTES = 4 << 20  # that wait for the process


class AlertProcess:
    """Owns the process. `look` by one thread."""

    def __init__(self, path: str, log: EventLog, before: Saved | None) -> None:
        """`before`: what was known when the collector stopped."""
        self._path = path
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._out: deque[bytes] = deque()
        self._in = b""
        self._events: deque[tuple[int, Event]] = deque(before.events if before else (), maxlen=MAX_EVENTS)
        self.report: dict[str, Any] = before.part("delivery") if before is not None else {}
        self.rules: tuple[dict[str, Any], ...] = ()  # those of the file

    @property
    def trouble(self) -> str:
        """Why some alerts do not get anywhere; empty where all do."""
        file = self.report.get("file") or {}
        if file.get("trouble"):
            return f"alerts: {file['trouble']}"
        targets = self.report.get("targets") or {}
        wrong = [f"target {name}: {each['trouble']}" for name, each in targets.items() if each.get("trouble")]
        return f"alerts: {'; '.join(wrong)}" if wrong else ""

    @property
    def waiting(self) -> int:
        """Alerts that some target does not have yet."""
        return sum(int(each.get("waiting", 0)) for each in (self.report.get("targets") or {}).values())

    def start(self) -> None:
        """Start it, for the first time or again."""
        self._started_at = time.monotonic()
        self._in = b""
        self._out.clear()
        words = [sys.executable, "-P", "-m", "logclient_backend", "send-alerts", self._path]
        try:
            self._process = made = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._log.write("alerts", f"the process that sends alerts cannot be started: {error.strerror}")
            return
        assert made.stdin is not None and made.stdout is not None
        for pipe in (made.stdin, made.stdout):
            os.set_blocking(pipe.fileno(), False)
        known = [{"number": number, "event": event.document()} for number, event in self._events]
        self._queue({"restore": self.report, "events": known})

    def send(self, number: int, event: Event) -> None:
        """Hand an event over."""
        self._events.append((number, event))
        self._queue({"number": number, "event": event.document()})

    def _queue(self, content: dict[str, Any]) -> None:
        if sum(map(len, self._out)) < _MAX_BYTES:  # else it hangs: it is started again and gets the newest
            self._out.append(json.dumps(content).encode() + b"\n")

    def look(self) -> None:
        """Give and take what is there; start the process again where it has ended."""
        process = self._process
        if process is None or process.poll() is not None:
            if process is not None:
                self._close(process)
                self._process = None
                self._log.write("alerts", f"the process that sends alerts ended ({process.returncode})")
            if time.monotonic() - self._started_at >= _AGAIN_S:
                self.start()
            return
        self._write(process)
        self._read(process)

    def _write(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        while self._out:
            try:
                written = os.write(process.stdin.fileno(), self._out[0])
            except (BlockingIOError, BrokenPipeError):
                return
            if written == len(self._out[0]):
                self._out.popleft()
            else:
                self._out[0] = self._out[0][written:]

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        while True:
            try:
                part = os.read(process.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                break
            if not part:
                break
            self._in += part
        *lines, self._in = self._in.split(b"\n")
        if lines:
            self.report = json.loads(lines[-1])
            self.rules = tuple(self.report.pop("rules", ()))
            if self.trouble:
                self._log.write("alerts", self.trouble)

    def stop(self, timeout_s: float) -> bool:
        """Let it send what it has; False where it had to be killed."""
        process = self._process
        if process is None:
            return True
        self._write(process)
        self._process = None
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5.0)
            return False
        finally:
            self._read(process)
            self._close(process)
        return True

    @staticmethod
    def _close(process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

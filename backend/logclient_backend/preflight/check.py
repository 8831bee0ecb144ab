"""`Check`: a forked child that makes one check and reports over a socket, and the deadline that ends it.

A child that waits in the kernel beyond any signal is left alone: it holds nothing but its own socket and null streams,
so that whoever reads the output of this program does not wait for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import time
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from .lines import Line, Message

_DEATH_SIGNAL = 1  # linux/prctl.h: PR_SET_PDEATHSIG
_MAX_ERROR = 400  # characters
_OPEN_MAX = 1 << 16

Function = Callable[[Line, dict[str, Any]], Message]


class Check:
    """One check that runs. Its messages come from `line`; `ended` is how it ended, once it has."""

    def __init__(self, number: int, function: Function, given: dict[str, Any], deadline_s: float) -> None:
        self.number = number
        self.deadline = time.monotonic() + deadline_s
        self.ended = ""
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # threads of numerical libraries, which they restart
            self.pid = os.fork()
        if not self.pid:
            _be_child(function, given, theirs, parent)
        theirs.close()
        self.line = Line(ours)

    def poll(self) -> list[Message]:
        """Return its new messages; past its deadline it is killed."""
        found = self.line.receive()
        if not self.ended and time.monotonic() > self.deadline:
            self.kill("deadline")
        elif not self.ended and self.line.is_closed:
            self._reap()
        return found

    def kill(self, why: str) -> None:
        """End it; `why` becomes `ended`."""
        if self.ended:
            return
        self.ended = why
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # our own child, not reaped yet
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)  # else it is reaped by init, once we are gone
        self.line.close()

    def _reap(self) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return
        number = os.waitstatus_to_exitcode(status)
        self.ended = "done" if not number else f"signal {-number}" if number < 0 else f"exit code {number}"
        self.line.close()


def _be_child(function: Function, given: dict[str, Any], sock: socket.socket, parent: int) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a launcher's, for the whole group: the rank decides
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        kept = sock.fileno()
        os.closerange(3, kept)
        os.closerange(kept + 1, _OPEN_MAX)
        line = Line(sock)
        try:
            line.send({"result": function(line, given)})
        except Exception as error:  # noqa: BLE001 - whatever a library or a driver raises is what the check found
            line.send({"error": _text(error)})
        line.wait_sent()
        code = 0
    finally:
        os._exit(code)


def _text(error: Exception) -> str:
    """Return its first lines: torch appends a C++ stack."""
    text = str(error).partition("\nException raised from")[0].strip()
    kind = (
        "" if isinstance(error, OSError) and error.errno is None else f"{type(error).__name__}: "
    )  # our own text
    return f"{kind}{' '.join(text.split())[:_MAX_ERROR]}"

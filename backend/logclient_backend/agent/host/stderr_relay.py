"""The trainer's standard error, where that is a file: written to by children, since its disk may be frozen.

Runs in launcher and supervisor. Nothing else of the agent ever writes to where the user looks; a terminal, pipe or
socket with room the trainer writes to itself.
"""

from __future__ import annotations

import os
import time

from logclient.shm.regular import read_regular
from logclient.shm.shm_dir import STDERR_LINE, ShmDir

DESCRIPTOR = 3  # where the launcher finds it
WRITE_WAIT_S = 0.2


class Terminal:
    """`fd` is the open file; -1: there is none."""

    def __init__(self, shm_dir: ShmDir, fd: int) -> None:
        self._request = shm_dir.file(STDERR_LINE)
        self._fd = fd
        self._child = 0  # that writes now, or hangs

    def descriptors(self) -> list[int]:
        """Return the descriptor of the open file, if there is one."""
        return [self._fd] if self._fd >= 0 else []

    def write(self, line: str) -> None:
        """Write a line, waiting a moment for it."""
        self._write(f"logclient: {line}\n".encode("utf-8", "backslashreplace"))
        deadline = time.monotonic() + WRITE_WAIT_S
        while self._is_busy() and time.monotonic() < deadline:
            time.sleep(0.002)

    def look(self) -> None:
        """Write what a trainer left for us (`logclient.spawn.agent.write_line`), unless an earlier line still hangs."""
        if self._fd < 0 or self._is_busy() or not os.path.exists(self._request):
            return
        try:
            line = read_regular(self._request, max_bytes=1 << 20)
        except OSError:
            return
        self._write(line)

    def _write(self, data: bytes) -> None:
        self._child = os.fork()
        if self._child == 0:
            try:
                os.write(self._fd, data)
                os.unlink(self._request)  # the trainer sees by that that it is written
            finally:
                os._exit(0)

    def _is_busy(self) -> bool:
        if self._child:
            try:
                if os.waitpid(self._child, os.WNOHANG)[0]:
                    self._child = 0
            except ChildProcessError:  # started by the supervisor before this one
                self._child = 0
        return self._child != 0

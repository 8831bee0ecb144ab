"""Why a process ended, asked from outside: exit code or signal, without being its parent.

Two places know: /proc/PID/stat while nobody has reaped it, and a pidfd opened while it lived, afterwards
(PIDFD_GET_INFO with exit information: Linux 6.15). On older kernels the cause is known only if it is seen in time.

Runs in supervisor and worker. Opens nothing outside /proc.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
from typing import NamedTuple

from logclient.owner import start_ticks

_INFO = struct.Struct("<QQ11Ii")  # mask, cgroup, 11 ids, exit status: struct pidfd_info, first version
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_WITH_EXIT = 1 << 3


class Cause(NamedTuple):
    """Exactly one is not None."""

    exit_code: int | None
    signal: int | None


_known: dict[
    tuple[int, int], int
] = {}  # (PID, start) -> pidfd opened while that process lived; inherited by fork


def watch_from_now_on(pid: int) -> int:
    """Whatever becomes of this process, a later `Watch` knows why; the descriptor, or -1."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return -1
    _known[pid, start_ticks(pid)] = fd
    return fd


class Watch:
    """A pidfd of one process, if it is the one that started at `ticks`."""

    def __init__(self, pid: int, ticks: int) -> None:
        self.pid = pid
        self._ticks = ticks
        self._cause: Cause | None = None
        try:
            if (pid, ticks) in _known:
                self._fd = os.dup(_known[pid, ticks])
                return
            self._fd = os.pidfd_open(pid)
        except OSError:
            self._fd = -1
        if self._fd >= 0 and (not ticks or start_ticks(pid) != ticks):
            self.close()

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def has_ended(self) -> bool:
        """True as soon as the process is dead, reaped or not."""
        if self._fd < 0:
            return start_ticks(self.pid) != self._ticks
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(0))

    def cause(self) -> Cause | None:
        """Why it ended; None where it has not, or nobody can tell (yet: it may be asked again)."""
        if self._cause is None:
            status = self._zombie_status()
            if status is None:
                status = self._reaped_status()
            if status is not None:
                signal = status & 0x7F
                self._cause = Cause(None, signal) if signal else Cause(status >> 8 & 0xFF, None)
        return self._cause

    def _zombie_status(self) -> int | None:
        try:
            with open(f"/proc/{self.pid}/stat", "rb", buffering=0) as file:
                fields = file.read(4096).rsplit(b")", 1)[1].split()
        except (OSError, IndexError):
            return None
        is_it = len(fields) >= 50 and fields[0] in (b"Z", b"X") and int(fields[19]) == self._ticks
        return int(fields[49]) if is_it else None

    def _reaped_status(self) -> int | None:
        if self._fd < 0:
            return None
        info = bytearray(_INFO.size)
        _INFO.pack_into(info, 0, _WITH_EXIT, *([0] * 13))
        try:
            fcntl.ioctl(self._fd, _GET_INFO, info)
        except OSError:
            return None
        found = _INFO.unpack(info)
        return int(found[-1]) if found[0] & _WITH_EXIT else None

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

"""Another process, by a pidfd: has it ended, and why (exit code or signal), asked without being its parent.

Two places know the cause: /proc/PID/stat while nobody has reaped it, and a pidfd opened while it lived, afterwards
(PIDFD_GET_INFO with exit information: Linux 6.15). On older kernels it is known only if it is seen in time; without
pidfd at all (before 5.3) the process is told from a newcomer with its PID by its start time.

Runs in supervisor and worker. Opens nothing outside /proc.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
from typing import NamedTuple

from logclient.owner import STAT_START, STAT_STATE, stat_fields

_INFO = struct.Struct("<QQ11Ii")  # mask, cgroup, 11 ids, exit status: struct pidfd_info, first version
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_WITH_EXIT = 1 << 3
_MOST_PID = 1 << 22
_EXIT = 49  # a further field of /proc/PID/stat


class Cause(NamedTuple):
    """Exactly one is not None."""

    exit_code: int | None
    signal: int | None

    def __str__(self) -> str:
        return f"signal {self.signal}" if self.signal is not None else f"exit code {self.exit_code}"


_known: dict[
    tuple[int, int], int
] = {}  # (PID, start) -> pidfd opened while that process lived; inherited by fork


def watch_from_now_on(pid: int) -> int:
    """Whatever becomes of this process, a later `Watch` knows why; the descriptor, or -1."""
    watch = Watch(pid)
    if not watch.is_open:
        return -1
    _known[pid, watch.ticks] = fd = os.dup(watch.fd)
    return fd


class Watch:
    """The process that has this PID and started at `ticks` (0: whichever has the PID now)."""

    def __init__(self, pid: int, ticks: int = 0) -> None:
        self.pid = pid
        self.fd = -1
        self._cause: Cause | None = None
        if (pid, ticks) in _known:
            self.fd = os.dup(_known[pid, ticks])
            self.ticks = ticks
            return
        if 0 < pid < _MOST_PID:
            try:
                self.fd = os.pidfd_open(pid)
            except (OSError, AttributeError):
                pass
        found = stat_fields(pid)
        self.ticks = ticks or (int(found[STAT_START]) if found else 0)
        if self.fd >= 0 and (not found or int(found[STAT_START]) != self.ticks):
            self.close()

    def __del__(self) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Is there a pidfd: was it there when we looked first?"""
        return self.fd >= 0

    def has_ended(self) -> bool:
        """True as soon as its last thread is dead, reaped or not."""
        return self.wait(0) if self.fd >= 0 else self._leader() is None

    def wait(self, timeout_s: float) -> bool:
        """The same, waited for; only where there is a pidfd."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(1000 * timeout_s))

    def has_stopped_working(self) -> bool:
        """True also if only its main thread is dead, and another one hangs in a system call."""
        return self.has_ended() or self._leader() is None

    def _leader(self) -> list[bytes] | None:
        """Fields of the main thread while that lives; None where it is dead, or another process has the PID."""
        found = stat_fields(self.pid)
        alive = found and found[STAT_STATE] not in b"ZX" and int(found[STAT_START]) == self.ticks
        return found if alive else None

    def cause(self) -> Cause | None:
        """Why it ended; None where it has not, or nobody can tell (yet: it may be asked again)."""
        if self._cause is None and self.has_ended():
            status = self._zombie_status()
            if status is None:
                status = self._reaped_status()
            self._cause = self._told(status)
        return self._cause

    def decision(self) -> Cause | None:
        """The same, known as soon as it called `exit`, though a thread that hangs may keep it from ending."""
        return self._told(self._zombie_status()) or self.cause()

    def _zombie_status(self) -> int | None:
        found = stat_fields(self.pid)
        is_it = (
            found
            and len(found) > _EXIT
            and found[STAT_STATE] in b"ZX"
            and int(found[STAT_START]) == self.ticks
        )
        return int(found[_EXIT]) if is_it else None

    def _told(self, status: int | None) -> Cause | None:
        if status is None:
            return None
        signal = status & 0x7F
        return Cause(None, signal) if signal else Cause(status >> 8 & 0xFF, None)

    def _reaped_status(self) -> int | None:
        if self.fd < 0:
            return None
        info = bytearray(_INFO.size)
        _INFO.pack_into(info, 0, _WITH_EXIT, *([0] * 13))
        try:
            fcntl.ioctl(self.fd, _GET_INFO, info)
        except OSError:
            return None
        found = _INFO.unpack(info)
        return int(found[-1]) if found[0] & _WITH_EXIT else None

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

"""Another process, by a pidfd: has it ended, and why (exit code or signal), asked without being its parent.

Two places know the cause: /proc/PID/stat while nobody has reaped it, and a pidfd opened while it lived, afterwards
(PIDFD_GET_INFO with exit information: Linux 6.15). On older kernels it is known only if it is seen in time; without
pidfd at all (before 5.3) the process is told from a newcomer with its PID by its start time.

Runs in supervisor and worker. Opens nothing outside /proc.

Invariant: nothing is concluded from a stranger that has the PID in the /proc of another PID namespace
(`logclient.shm.proc`). Of a process that /proc does not show, a pidfd tells, or being its parent.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
from typing import NamedTuple

from logclient.shm.proc import STAT_START, STAT_STATE, entry_of, stat_of

_INFO = struct.Struct("<QQ11Ii")  # mask, cgroup, 11 ids, exit status: struct pidfd_info, first version
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_WITH_EXIT = 1 << 3
_MAX_PID = 1 << 22
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
        self.is_known = (pid, ticks) in _known  # its pidfd was opened while it lived for sure
        if self.is_known:
            self.fd = os.dup(_known[pid, ticks])
            self.entry = entry_of(pid, self.fd)
            self._is_unseen = False
            self.ticks = ticks
            return
        if _is_pid(pid):
            try:
                self.fd = os.pidfd_open(pid)
            except (OSError, AttributeError):
                pass
        self.entry = entry_of(pid, self.fd)
        found = stat_of(self.entry)
        # an ended child that is not reaped still has its PID, and tells why
        self._is_unseen = not found and (_is_there(pid) or _child_status(pid) is not None)
        self.ticks = ticks or (int(found[STAT_START]) if found else 0)
        if self.fd >= 0 and not self._is_unseen and (not found or int(found[STAT_START]) != self.ticks):
            self.close()

    def __del__(self) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Is there a pidfd: was it there when we looked first?"""
        return self.fd >= 0

    @property
    def is_sure(self) -> bool:
        """Is this the process that was meant: did its start tell, or was it gone?"""
        return not self._is_unseen

    def has_ended(self) -> bool:
        """True as soon as its last thread is dead, reaped or not."""
        if self.fd >= 0:
            return self.wait(0)
        return not _is_there(self.pid) if self._is_unseen else self._leader() is None

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process; True once its last thread is dead. Only where there is a pidfd."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(1000 * timeout_s))

    def has_stopped_working(self) -> bool:
        """True also if only its main thread is dead, and another one hangs in a system call."""
        return self.has_ended() or (not self._is_unseen and self._leader() is None)

    def kill(self) -> None:
        """SIGKILL to this process, never to a newcomer with its PID."""
        if self.has_ended():
            return
        try:
            if self.fd >= 0:
                signal.pidfd_send_signal(self.fd, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)
        except OSError:
            pass  # it ended in this moment

    def reap(self) -> bool:
        """Reap it if it has ended; True once it is reaped, by us or by whoever is its parent now."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    def _leader(self) -> list[bytes] | None:
        """Fields of the main thread while that lives; None where it is dead, or another process has the PID."""
        found = stat_of(self.entry)
        alive = found and found[STAT_STATE] not in b"ZX" and int(found[STAT_START]) == self.ticks
        return found if alive else None

    def cause(self) -> Cause | None:
        """Why it ended; None where it has not, or nobody can tell (yet: it may be asked again)."""
        if self._cause is None and self.has_ended():
            status = self._zombie_status()
            if status is None:
                status = self._reaped_status()
            self._cause = self._cause_of(status)
        return self._cause

    def decision(self) -> Cause | None:
        """Return the cause of the end as soon as `exit` was called, though a thread that hangs may delay the end."""
        return self._cause_of(self._zombie_status()) or self.cause()

    def _zombie_status(self) -> int | None:
        if self._is_unseen:
            return _child_status(self.pid)
        found = stat_of(self.entry)
        is_it = (
            found
            and len(found) > _EXIT
            and found[STAT_STATE] in b"ZX"
            and int(found[STAT_START]) == self.ticks
        )
        return int(found[_EXIT]) if is_it else None

    def _cause_of(self, status: int | None) -> Cause | None:
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


def _is_pid(pid: int) -> bool:
    return 0 < pid < _MAX_PID


def _is_there(pid: int) -> bool:
    """Does a process that has not ended bear this PID? Of a zombie that is no child of ours too."""
    if not _is_pid(pid) or _child_status(pid) is not None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _child_status(pid: int) -> int | None:
    """The wait status of a child that has ended and is not reaped; it stays so."""
    if not _is_pid(pid):
        return None
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if found is None:
        return None
    return found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status & 0x7F

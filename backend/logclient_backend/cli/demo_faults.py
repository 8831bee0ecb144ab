"""Faults that `logclient demo` makes, of its own agent and disk only: PIDs come from the run's status page.

Invariants:

- the disk that freezes is an ext4 in a file of the demo's own, mounted where no other process sees it (a mount
  namespace); it is gone with the last process of the demo, however that ends;
- whoever freezes it is a process of its own that thaws it after its time, whatever becomes of us;
- a stopped process is always told to go on.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from logclient.shm import layout
from logclient.shm.proc import entry_of, start_ticks
from logclient.shm.shm_dir import ShmDir
from logclient.spawn.agent import map_status

_CLONE_NEWNS = 0x20000  # linux/sched.h
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000  # linux/mount.h
_MNT_DETACH = 2
_DISK_MIB = 96
_CALL_S = 20.0  # for mkfs and mount
_CAP_SYS_ADMIN = 21

# FIFREEZE, a pause, FITHAW (linux/fs.h). Nothing but this: it must not need any file while the disk is frozen.
_FREEZE = """
import fcntl, os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
folder = os.open(sys.argv[1], os.O_RDONLY)
fcntl.ioctl(folder, 0xC0045877, 0)
frozen = time.monotonic()
try:
    time.sleep(float(sys.argv[2]))
finally:
    fcntl.ioctl(folder, 0xC0045878, 0)
print(time.monotonic() - frozen)
"""


class Agent:
    """The agent of one run, as its status page tells."""

    def __init__(self, shm_dir: ShmDir) -> None:
        words = map_status(shm_dir)
        if words is None:
            raise OSError(f"no status page in {shm_dir.path}")
        self._words = words

    @property
    def worker(self) -> int:
        """PID of the worker; 0: none yet."""
        return int(self._words[layout.AGENT_WORKER])

    def signal_worker(self, number: int) -> int:
        """Its PID; 0 where it was gone."""
        pid = self.worker
        try:
            handle = os.pidfd_open(pid) if pid > 0 else -1
        except OSError:
            return 0
        if handle < 0:
            return 0
        try:
            if pid != self.worker:
                return 0
            signal.pidfd_send_signal(handle, number)
        except OSError:
            return 0
        finally:
            os.close(handle)
        return pid

    def beats_since(self, pid: int, at_ns: int) -> bool:
        """Is there another worker than `pid`, which has looked at the lanes since `at_ns` (monotonic)?"""
        return (
            self.worker != pid
            and start_ticks(self.worker) != 0
            and self._words[layout.AGENT_WORKER_BEAT] > at_ns
        )


def states_of(pid: int) -> set[str]:
    """State letters of a process's threads; D is a wait that not even SIGKILL ends."""
    found = set()
    tasks = f"/proc/{entry_of(pid) or pid}/task"
    try:
        for task in os.listdir(tasks):
            with open(f"{tasks}/{task}/stat", "rb") as file:
                found.add(file.read().rpartition(b")")[2].split()[0].decode())
    except (OSError, IndexError):
        return found
    return found


class Disk:
    """An ext4 of our own that can freeze; use `why_not` first."""

    def __init__(self, folder: Path) -> None:
        self._image = folder / "disk.img"
        self.path = folder / "disk"
        self._freezer: subprocess.Popen[str] | None = None

    @staticmethod
    def why_not() -> str | None:
        """Return what is missing here; None where nothing is that can be seen without trying."""
        if os.geteuid() != 0:
            return "root"
        status = Path("/proc/self/status").read_text()
        if not int(status.split("CapEff:")[1].split()[0], 16) >> _CAP_SYS_ADMIN & 1:
            return "root with the right to mount"
        if not os.path.exists("/dev/loop-control"):
            return "loop devices"
        missing = [name for name in ("mkfs.ext4", "mount") if _program(name) is None]
        return " and ".join(missing) or None

    def __enter__(self) -> Self:
        """OSError where it cannot be made; nothing is left then."""
        libc = ctypes.CDLL(None, use_errno=True)
        _check(libc.unshare(_CLONE_NEWNS))
        _check(libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None))
        self.path.mkdir()
        with open(self._image, "wb") as image:
            image.truncate(_DISK_MIB << 20)
        features = ["-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]
        _call("mkfs.ext4", "-q", *features, str(self._image))
        _call("mount", "-o", "loop", str(self._image), str(self.path))
        return self

    def freeze(self, seconds: float) -> None:
        """From now on, for that long, every write to it waits."""
        code = [sys.executable, "-I", "-S", "-c", _FREEZE, str(self.path), str(seconds)]
        self._freezer = subprocess.Popen(
            code, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )

    def is_frozen(self) -> bool:
        return self._freezer is not None and self._freezer.poll() is None

    def wait_thawed(self) -> float:
        """For how long it was frozen; 0.0: it was not."""
        if self._freezer is None:
            return 0.0
        answer, _ = self._freezer.communicate()
        self._freezer = None
        try:
            return float(answer)
        except ValueError:
            return 0.0

    def __exit__(self, *_: object) -> None:
        self.wait_thawed()
        libc = ctypes.CDLL(None, use_errno=True)
        libc.umount2(str(self.path).encode(), _MNT_DETACH)  # what still uses it, keeps it a moment longer


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin")


def _call(name: str, *arguments: str) -> None:
    command = [_program(name) or name, *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_CALL_S)
    if done.returncode != 0:
        raise OSError(f"{name}: {done.stderr.strip()}")


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

"""The kernel calls that faults are made of: mount, unmount, freeze, thaw, shut down, loop devices, abort of FUSE,
namespaces.

Runs in a guard or in a throw-away child of it: several of these calls may hang. Everything is found by the name of
the fault (`logclient-fault-...`), which stands in the source or in the path of each of its mounts. What only looks
(`mounts`, `loop_devices`, `users_of`) reads /proc and /sys and never touches a path inside a mount, which may hang.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FIFREEZE = 0xC0045877  # linux/fs.h
FITHAW = 0xC0045878
EXT4_IOC_SHUTDOWN = 0x8004587D
SHUTDOWN_NO_LOG_FLUSH = 2  # the journal stays as it is on disk, as in a power cut
LOOP_CLR_FD = 0x4C01  # linux/loop.h

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32  # sys/mount.h
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_FORCE, MNT_DETACH = 1, 2

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x20000, 0x4000000, 0x40000000  # linux/sched.h
PR_SET_PDEATHSIG = 1  # linux/prctl.h

CAP_SYS_ADMIN = 21  # bit in /proc/PID/status; root in a plain container lacks it

_libc = ctypes.CDLL(None, use_errno=True)


class Mount(NamedTuple):
    """One line of /proc/self/mountinfo."""

    point: str
    kind: str  # ext4, fuse, tmpfs, ...
    source: str
    minor: int  # of its device number; for FUSE also the number of its connection


def why_no_mounts() -> str | None:
    """Why this process cannot mount; None if it can."""
    if os.geteuid() != 0:
        return "needs root"
    status = Path("/proc/self/status").read_text()
    if not int(status.split("CapEff:")[1].split()[0], 16) >> CAP_SYS_ADMIN & 1:
        return "needs root with the right to mount (CAP_SYS_ADMIN)"
    return None


def is_known(kind: str) -> bool:
    """Whether the running kernel has this kind of file system."""
    return kind in Path("/proc/filesystems").read_text().split()


def _call(result: int, path: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


def mount(source: str, point: str, kind: str, flags: int = 0, options: str = "") -> None:
    words = (source.encode(), point.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _call(_libc.mount(*words), point)


def unmount(point: str, flags: int = 0) -> None:
    _call(_libc.umount2(point.encode(), flags), point)


def unshare(flags: int) -> None:
    """This process, which has one thread, goes on in new namespaces (CLONE_NEW...)."""
    _call(_libc.unshare(flags), "unshare")


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process as soon as the thread that forked it ends."""
    _call(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:  # before the call
        os._exit(1)


def living_on(name: str) -> list[int]:
    """Processes in a mount namespace other than ours that see a file or folder of the fault `name` bound somewhere.

    A namespace's number may be that of an earlier one; the name of a fault is its own for good.
    """
    own = os.readlink("/proc/self/ns/mnt")
    found = []
    for pid in (entry for entry in os.listdir("/proc") if entry.isdecimal()):
        try:
            if os.readlink(f"/proc/{pid}/ns/mnt") == own:
                continue
            lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        except OSError:
            continue  # gone meanwhile, or a kernel thread
        if any(name in _unescape(line.split()[3]) for line in lines):
            found.append(int(pid))
    return found


def _ioctl(point: str, request: int, argument: int = 0) -> None:
    folder = os.open(point, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(folder, request, struct.pack("=I", argument))
    finally:
        os.close(folder)


def freeze(point: str) -> None:
    _ioctl(point, FIFREEZE)


def thaw(point: str) -> None:
    """OSError EINVAL if it was not frozen."""
    _ioctl(point, FITHAW)


def shut_down(point: str) -> None:
    """From now on every call that needs the disk of this ext4 gets EIO, for good."""
    _ioctl(point, EXT4_IOC_SHUTDOWN, SHUTDOWN_NO_LOG_FLUSH)


def _unescape(field: str) -> str:
    """mountinfo writes blanks, tabs, newlines and backslashes as three octal digits."""
    head, *rest = field.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def mounts(name: str = "") -> list[Mount]:
    """Mounts with `name` in their source or path, in the order they were made."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        device, point = before.split()[2], _unescape(before.split()[4])
        kind, source = (_unescape(field) for field in after.split()[:2])
        if name in point or name in source:
            found.append(Mount(point, kind, source, int(device.partition(":")[2])))
    return found


def loop_devices(name: str) -> list[str]:
    """Loop devices (`/dev/loop0`) whose image has `name` in its path."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if name in backing.read_text():
                found.append(f"/dev/{backing.parts[3]}")
        except OSError:
            continue  # detached meanwhile
    return found


def detach_loop_device(device: str) -> None:
    """Let go of the image, now or, if the device is still in use, with its last user."""
    handle = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(handle, LOOP_CLR_FD)
    finally:
        os.close(handle)


def abort_fuse(connection: int, scratch: Path) -> None:
    """Answer every waiting and coming call of a FUSE connection with an error, whatever its server does.

    The kernel's control files for that need a mount of their own, made in `scratch` where nobody has made it.
    """
    usual = Path("/sys/fs/fuse/connections")
    if any(mounted.kind == "fusectl" and mounted.point == str(usual) for mounted in mounts("fusectl")):
        _write_abort(usual, connection)
        return
    scratch.mkdir(exist_ok=True)
    mount("fusectl", str(scratch), "fusectl")
    try:
        _write_abort(scratch, connection)
    finally:
        unmount(str(scratch))
        scratch.rmdir()


def _write_abort(control: Path, connection: int) -> None:
    try:
        (control / str(connection) / "abort").write_text("1")
    except FileNotFoundError:
        pass  # the connection is gone: nobody waits any more


def users_of(point: str) -> list[int]:
    """Processes with a file, folder or program of this mount in use, by the links in /proc."""
    inside = point + "/"
    found = []
    for pid in (entry for entry in os.listdir("/proc") if entry.isdecimal()):
        if any(link == point or link.startswith(inside) for link in _links(pid)):
            found.append(int(pid))
    return found


def _links(pid: str) -> Iterator[str]:
    """Not its mapped files: to list them waits for a lock that a process hung in a page fault may hold."""
    for link in ("cwd", "root", "exe"):
        yield from _link(f"/proc/{pid}/{link}")
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return  # gone meanwhile
    for descriptor in descriptors:
        yield from _link(f"/proc/{pid}/fd/{descriptor}")


def _link(path: str) -> Iterator[str]:
    try:
        yield os.readlink(path)
    except OSError:
        pass  # gone meanwhile, or a kernel thread

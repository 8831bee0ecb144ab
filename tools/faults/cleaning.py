"""How a fault ends: everything that waits is let go, every mount and loop device of its name is removed.

Runs in the guard at its end, and in `sweep` for a guard that was itself killed. Invariants:

- What may hang runs in a throw-away child with a deadline, never in the caller.
- Let go first (flags away, thaw), unmount after it: a process in D state dies only once it is let go.
- Only processes that the owner named are killed, and only where a mount is busy because of them; and whoever lives
  on a simulated host, where there is nobody but what the owner started there.
- The folder is removed only when no mount is left in it.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from tools.faults import control, kernel, processes

PREFIX = "logclient-fault-"


NOT_FROZEN = (errno.EINVAL, errno.EIO)  # what a thaw answers then; EIO: shut down for good
OTHER_ERROR = 255  # exit code of a throw-away child for what is no OSError

THAW_S = 10.0
UNMOUNT_S = 10.0
HOSTS_S = 10.0  # until processes on a simulated host are gone
BUSY_S = 2.0  # how long a busy mount is asked again before anything is killed, and once more after it


class Killable(NamedTuple):
    """A process that the owner named, with its start time, so that a newcomer with its PID is safe."""

    pid: int
    started: int


def in_child(what: str, work: Callable[[], object], timeout_s: float) -> None:
    """Do `work` in a forked child; OSError as it raised, TimeoutError if it hangs. The caller has no threads."""
    pid = os.fork()
    if pid == 0:
        code = OTHER_ERROR
        try:
            work()
            code = 0
        except OSError as error:
            code = error.errno or OTHER_ERROR
        except BaseException:  # noqa: BLE001  not an end of the child, which must not go on as a second caller
            traceback.print_exc()
        finally:
            os._exit(code)
    handle = os.pidfd_open(pid)
    try:
        processes.wait_until(
            lambda: os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG | os.WNOWAIT), timeout_s
        )
    except TimeoutError:
        signal.pidfd_send_signal(handle, signal.SIGKILL)  # it will, when it is let go
        raise TimeoutError(f"{what} still hangs in process {pid} after {timeout_s:g} s") from None
    finally:
        os.close(handle)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == OTHER_ERROR or code < 0:
        raise RuntimeError(f"{what} failed ({code}); see standard error")
    if code != 0:
        raise OSError(code, f"{what}: {os.strerror(code)}")


def let_go(base: Path) -> list[str]:
    """Let every call go that waits for this fault. What could not be let go, a sentence each."""
    problems = []
    shutil.rmtree(base / control.FOLDER, ignore_errors=True)
    for mounted in kernel.mounts(base.name):
        if mounted.kind != "ext4":
            continue
        try:
            in_child("thaw", functools.partial(kernel.thaw, mounted.point), THAW_S)
        except OSError as error:
            if error.errno not in NOT_FROZEN:
                problems.append(f"{mounted.point} could not be thawed: {error}.")
    return problems


def clean(base: Path, killable: Iterable[Killable] = ()) -> list[str]:
    """Undo all of a fault. What is left nevertheless, a sentence each."""
    problems = end_hosts(base.name) + let_go(base)
    killable = tuple(killable)
    for mounted in reversed(kernel.mounts(base.name)):
        problems += _remove_mount(mounted, base, killable)
    problems += _detach(base.name)
    if not kernel.mounts(base.name):
        shutil.rmtree(base, ignore_errors=True)
    return problems


def end_hosts(name: str) -> list[str]:
    """Kill whoever lives on a simulated host (`network`) of this fault; its namespaces end with the last of them."""

    def is_empty() -> bool:
        for pid in kernel.living_on(name):
            processes.send(pid, signal.SIGKILL)
        return not kernel.living_on(name)

    try:
        processes.wait_until(is_empty, HOSTS_S)
    except TimeoutError:
        return [f"Processes {kernel.living_on(name)} of {name} outlive SIGKILL."]
    return []


def _remove_mount(mounted: kernel.Mount, base: Path, killable: tuple[Killable, ...]) -> list[str]:
    if _unmounted(mounted.point, BUSY_S):
        return []
    for process in killable:
        processes.send(process.pid, signal.SIGKILL, process.started)
    if killable and _unmounted(mounted.point, BUSY_S):
        return []
    users = kernel.users_of(mounted.point)
    if mounted.kind == "fuse":
        kernel.abort_fuse(mounted.minor, base / "fusectl")
        if _unmounted(mounted.point, BUSY_S):
            return [f"{mounted.point} was busy, its connection was aborted; used by {users}."]
    kernel.unmount(mounted.point, kernel.MNT_DETACH)
    return [f"{mounted.point} was busy and is detached, not gone; used by {users}."]


def _unmounted(point: str, busy_s: float) -> bool:
    deadline = time.monotonic() + busy_s
    while True:
        try:
            in_child("unmount", functools.partial(kernel.unmount, point), UNMOUNT_S)
        except TimeoutError:
            return False
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return True  # no longer a mount
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        else:
            return True


def _detach(name: str) -> list[str]:
    """An unmount frees its loop device by itself, a moment later; one that never got mounted needs help."""
    try:
        processes.wait_until(lambda: not kernel.loop_devices(name), BUSY_S / 2)
    except TimeoutError:
        for device in kernel.loop_devices(name):
            try:
                kernel.detach_loop_device(device)
            except OSError:
                pass  # free by now, or told below
        try:
            processes.wait_until(lambda: not kernel.loop_devices(name), BUSY_S)
        except TimeoutError:
            return [f"{', '.join(kernel.loop_devices(name))} could not be detached."]
    return []

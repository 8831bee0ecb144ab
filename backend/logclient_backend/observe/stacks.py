"""Python stacks of other processes: `py-spy dump --nonblocking`, one child per process, all at once, with a deadline.

The processes that are observed are read and never stopped, so a stack of one that runs may be torn: py-spy then says
so, and it is tried again. Values of variables are never asked for. What could not be read is a reason, not an
exception.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import ptrace

_TRIES = 3
_PARALLEL = 16
_REAP_S = 0.2
_MAX_LEFT = 64
_kept = -1  # descriptor of the copy of py-spy in memory
_left: list[subprocess.Popen[bytes]] = []  # samplers that were killed and had not ended then


@dataclass(frozen=True, slots=True)
class Frame:
    """One call, as it stands in the source."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Thread:
    """The stack of one thread, innermost frame first."""

    id: int  # of the operating system; the PID for the main thread
    name: str
    is_active: bool
    has_gil: bool
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Stacks:
    """All threads of one process, or the reason why there are none."""

    pid: int
    threads: tuple[Thread, ...] = ()
    reason: str = ""

    @property
    def main(self) -> Thread | None:
        """The main thread; None where nothing could be read."""
        return next((thread for thread in self.threads if thread.id == self.pid), None)

    @property
    def holder(self) -> Thread | None:
        """The thread that holds the GIL; None where none does, or it is not known."""
        return next((thread for thread in self.threads if thread.has_gil), None)


def sampler() -> str:
    """Return the path of py-spy; empty where it is not installed."""
    if _kept >= 0:
        return f"/proc/self/fd/{_kept}"
    here = os.path.join(sysconfig.get_path("scripts"), "py-spy")
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return next((path for path in (here, beside) if os.access(path, os.X_OK)), shutil.which("py-spy") or "")


def keep_sampler() -> None:
    """Copy py-spy into memory: from now on it starts with its disk frozen, here and in forked children."""
    global _kept
    program = sampler()
    if not program or _kept >= 0:
        return
    try:
        with open(program, "rb") as file:
            content = file.read()
        kept = os.memfd_create("py-spy")
        try:
            with open(kept, "wb", closefd=False) as copy:
                copy.write(content)
            # a program that is still open for writing cannot be started
            _kept = os.open(f"/proc/self/fd/{kept}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(kept)
    except OSError:
        return  # the one on the disk is used


def dump(pids: Iterable[int], *, timeout_s: float = 3.0) -> dict[int, Stacks]:
    """Return the stacks of each process, within the time."""
    wanted, deadline = list(dict.fromkeys(pids)), time.monotonic() + timeout_s
    program = sampler()
    if not program:
        reason = "py-spy is not installed: `pip install py-spy`"
        return {pid: Stacks(pid, reason=reason) for pid in wanted}
    found: dict[int, Stacks] = {}
    for _ in range(_TRIES):
        left = [pid for pid in wanted if pid not in found or not found[pid].threads]
        for start in range(0, len(left), _PARALLEL):
            found.update(_dump_some(program, left[start : start + _PARALLEL], deadline))
        if all(each.threads for each in found.values()) or time.monotonic() > deadline:
            break
    return found


def _dump_some(program: str, pids: list[int], deadline: float) -> dict[int, Stacks]:
    begun: dict[int, subprocess.Popen[bytes]] = {}
    found: dict[int, Stacks] = {}
    try:
        for pid in pids:
            if len(_left) > _MAX_LEFT:
                found[pid] = Stacks(pid, reason="its stack was not read: earlier samplers still hang")
                continue
            words = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
            kept = (_kept,) if _kept >= 0 else ()
            begun[pid] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=kept
            )
        for pid, process in begun.items():
            try:
                out, err = process.communicate(timeout=max(0.05, deadline - time.monotonic()))
                found[pid] = _stacks(pid, out, err)
            except subprocess.TimeoutExpired:
                found[pid] = Stacks(pid, reason="its stack could not be read in time")
    except OSError as error:
        for pid in pids:
            found.setdefault(pid, Stacks(pid, reason=f"py-spy cannot be started: {error.strerror}"))
    finally:
        _end([process for process in begun.values() if process.poll() is None])
    return found


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Kill samplers; one that hangs in the kernel is left behind, and its end is looked for later."""
    for process in processes:
        process.kill()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    until = time.monotonic() + _REAP_S
    _left.extend(processes)
    while _left:
        _left[:] = [process for process in _left if process.poll() is None]
        if time.monotonic() > until:
            return
        time.sleep(0.002)


def _stacks(pid: int, out: bytes, err: bytes) -> Stacks:
    try:
        threads = tuple(map(_thread, json.loads(out)))
    except (ValueError, TypeError, KeyError, AttributeError):
        return Stacks(pid, reason=_reason(pid, err.decode("utf-8", "replace")))
    return Stacks(pid, threads) if threads else Stacks(pid, reason="it has no Python thread")


def _thread(found: dict[str, Any]) -> Thread:
    frames = tuple(
        Frame(str(each["name"]), str(each["filename"]), int(each["line"])) for each in found["frames"]
    )
    return Thread(
        int(found["os_thread_id"] or 0),
        str(found["thread_name"] or ""),
        bool(found["active"]),
        bool(found["owns_gil"]),
        frames,
    )


def _reason(pid: int, error: str) -> str:
    """Return the last line of what py-spy wrote, or what to do where that is known."""
    if "Permission denied" in error or "Operation not permitted" in error:
        return ptrace.why_refused(pid)
    if "No such process" in error or ("Failed to find" in error and "process" in error):
        return "it is gone"
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    text = lines[-1].removeprefix("Reason: ").removeprefix("Error: ") if lines else "py-spy gave no answer"
    return "it is no Python process" if "python" in text.lower() and "find" in text.lower() else text

"""A process as /proc shows it. Reads nothing that waits for the process: no command line, no environment, no maps.

The kernel stack and the system call are asked for in a child with a deadline (`deadline.py`), and of processes in
state D alone: the kernel gives them out under a lock, which a process that hangs while it becomes another program
holds. A field that may not be read (another user's process, `hidepid`, a hardened kernel) is empty, and named in
`missing`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from logclient.shm import proc

from . import deadline, mounts
from .mounts import Awaited

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_UTIME, _STIME, _THREADS = 11, 12, 17  # fields of /proc/PID/stat behind the name
_DETAILS_S = 1.0
_MAX_BLOCKED = 4


@dataclass(frozen=True, slots=True)
class Blocked:
    """A thread in state D beside the main thread."""

    thread: int
    wakes: int  # equal at two looks: one and the same wait
    wait_channel: str
    awaited: Awaited | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a process."""

    pid: int
    start_ticks: int  # with the PID: which process it is
    name: str
    state: str  # of the main thread: R running, S sleeping, D not to be interrupted, T or t stopped, Z ended
    parent: int
    cpu_s: float
    wait_channel: str = ""  # function of the kernel in which it sleeps; empty: runs, or not shown
    kernel_stack: tuple[str, ...] = ()  # in state D, innermost first; root may see it
    wakes: int = 0  # how often its main thread slept and woke again, since its start
    missing: tuple[str, ...] = ()  # files of /proc that could not be read
    awaited: Awaited | None = None  # in state D: the mount that it most likely waits for
    blocked: tuple[Blocked, ...] = ()


def look(pid: int) -> Sample | None:
    """Return a sample; None where there is no such process."""
    entry = proc.entry_of(pid)
    fields = proc.stat_of(entry)
    if not fields:
        return None
    missing: list[str] = []
    base = f"/proc/{entry}"
    channel, wakes = _wait_of(base, missing)
    state = fields[proc.STAT_STATE].decode()
    stack: tuple[str, ...] = ()
    awaited: Awaited | None = None
    if state == "D":
        stack, awaited = _details(entry, base, channel, missing)
    return Sample(
        pid,
        int(fields[proc.STAT_START]),
        proc.name_of(entry),
        state,
        int(fields[proc.STAT_PARENT]),
        (int(fields[_UTIME]) + int(fields[_STIME])) * _TICK_S,
        channel,
        stack,
        wakes,
        tuple(missing),
        awaited,
        tuple(_blocked(entry)) if state == "S" and int(fields[_THREADS]) > 1 else (),
    )


def slept_through(first: Sample | None, second: Sample | None) -> bool:
    """Did the main thread sleep from one look to the other? Then its stack has not changed.

    A thread that ran went back to sleep, which the kernel counts.
    """
    if first is None or second is None or first.start_ticks != second.start_ticks:
        return False
    return first.state == second.state and second.state in "SDTt" and 0 < first.wakes == second.wakes


def _wait_of(base: str, missing: list[str]) -> tuple[str, int]:
    """Return the wait channel of a thread, and how often it slept and woke."""
    channel = _text(f"{base}/wchan", missing).strip()
    counts = _fields(_text(f"{base}/status", missing))
    return "" if channel == "0" else channel, counts.get("voluntary_ctxt_switches", 0)


def _blocked(entry: str) -> Iterator[Blocked]:
    try:
        threads = os.listdir(f"/proc/{entry}/task")
    except OSError:
        return
    found = 0
    for thread in threads:
        fields = proc.stat_of(f"{entry}/task/{thread}") if thread != entry else []
        if fields and fields[proc.STAT_STATE] == b"D" and found < _MAX_BLOCKED:
            found += 1
            base = f"/proc/{entry}/task/{thread}"
            channel, wakes = _wait_of(base, [])
            yield Blocked(int(thread), wakes, channel, _details(entry, base, channel, [])[1])


def _details(
    entry: str, base: str, channel: str, missing: list[str]
) -> tuple[tuple[str, ...], Awaited | None]:
    """Return the kernel stack and the mount of a thread in state D."""

    def read() -> list[str]:
        texts = [_text(f"{base}/{name}", missing) for name in ("stack", "syscall")]
        return [*texts, *missing]

    try:
        kernel, syscall, *missing[:] = deadline.ask(read, timeout_s=_DETAILS_S, of=f"{base}/stack")
    except deadline.NoAnswer:
        kernel = syscall = ""
        missing += ["stack", "syscall"]
    stack = tuple(line.partition("] ")[2].partition("+")[0] for line in kernel.splitlines() if "] " in line)
    there = mounts.mounts_of(_text("/proc/self/mountinfo", [], 1 << 22))
    call = mounts.call_of(syscall)
    return stack, mounts.awaited(there, mounts.files_of(entry), call, (*stack, channel))


def children(pid: int) -> list[int]:
    """Return the PIDs of the children of all threads of a process, oldest first; empty where they are not shown."""
    base = f"/proc/{proc.entry_of(pid)}/task"
    found: list[int] = []
    try:
        threads = os.listdir(base)
    except OSError:
        return []
    for thread in threads:
        found += map(int, _text(f"{base}/{thread}/children", []).split())
    return sorted(set(found))


def descendants(pid: int, most: int = 64) -> list[int]:
    """Return the PIDs of the children of a process and of theirs, nearest first; some `most` of them."""
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) < most:
        some = children(waiting.pop(0))
        found += some
        waiting += some
    return found


def _fields(text: str) -> dict[str, int]:
    """Return the lines `name: number`."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            found[name] = int(words[0])
    return found


def _text(path: str, missing: list[str], most: int = 1 << 16) -> str:
    """Return a file of /proc, which the kernel gives out in parts of a few KiB."""
    data = b""
    try:
        with open(path, "rb", buffering=0) as file:
            while len(data) < most and (part := file.read(most)):
                data += part
        return data.decode("utf-8", "replace")
    except OSError:
        missing.append(os.path.basename(path))
        return ""

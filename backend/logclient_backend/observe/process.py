"""A process as /proc shows it. Reads nothing that waits for the process: no command line, no environment, no maps.

A field that may not be read (another user's process, `hidepid`, a hardened kernel) is empty, and named in `missing`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from logclient.shm import proc

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_UTIME, _STIME, _THREADS = 11, 12, 17  # fields of /proc/PID/stat behind the name


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a process."""

    pid: int
    start_ticks: int  # with the PID: which process it is
    name: str
    state: str  # R running, S sleeping, D in an I/O that cannot be interrupted, T or t stopped, Z ended
    parent: int
    threads: int
    cpu_s: float
    wait_channel: str = ""  # function of the kernel in which it sleeps; empty: runs, or not shown
    kernel_stack: tuple[str, ...] = ()  # innermost first; root may see it
    wakes: int = 0  # how often its main thread slept and woke again, since its start
    missing: tuple[str, ...] = field(default=())  # files of /proc that could not be read


def look(pid: int) -> Sample | None:
    """Return a sample; None where there is no such process."""
    fields = proc.stat_of(proc.entry_of(pid))
    if not fields:
        return None
    missing: list[str] = []
    base = f"/proc/{proc.entry_of(pid)}"
    channel = _text(f"{base}/wchan", missing).strip()
    stack = _text(f"{base}/stack", missing)
    status = _fields(_text(f"{base}/status", missing))
    return Sample(
        pid,
        int(fields[proc.STAT_START]),
        proc.name_of(str(pid)),
        fields[proc.STAT_STATE].decode(),
        int(fields[proc.STAT_PARENT]),
        int(fields[_THREADS]),
        (int(fields[_UTIME]) + int(fields[_STIME])) * _TICK_S,
        "" if channel == "0" else channel,
        tuple(line.partition("] ")[2].partition("+")[0] for line in stack.splitlines() if "] " in line),
        status.get("voluntary_ctxt_switches", 0),
        tuple(missing),
    )


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


def _fields(text: str) -> dict[str, int]:
    """Return the lines `name: number`."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            found[name] = int(words[0])
    return found


def _text(path: str, missing: list[str]) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 16).decode("utf-8", "replace")
    except OSError:
        missing.append(os.path.basename(path))
        return ""

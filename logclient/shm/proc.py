"""Processes as /proc shows them, also under the numbers of another PID namespace.

Runs in the training process and in the agent; opens nothing outside /proc.

A PID namespace without a /proc of its own (`unshare --pid`, a sandbox that binds the host's) sees that of a namespace
around it: all its processes are in there, under other numbers, and under their PIDs there are strangers.

Invariant: a PID is a number of this process's own namespace, an entry is a name in /proc, and one becomes the other in
this module alone. What cannot be told is said so (nothing is found), never taken from a stranger.
"""

from __future__ import annotations

import os

STAT_STATE, STAT_PARENT, STAT_START = 0, 1, 19  # fields of /proc/PID/stat behind the name
_MAX_PID = 1 << 22  # linux/threads.h; what is read from a damaged file may be more
_shown = 0  # the process (PID) that has made sure that /proc shows its namespace


def pid_namespace() -> int:
    """Identity of this process's PID namespace; 0 where it cannot be told."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def is_ours() -> bool:
    """Does /proc show the PIDs of this process's namespace?"""
    global _shown
    me = os.getpid()
    if own_entry() != str(me):
        return False
    if _shown != me:
        numbers = _numbers("/proc/self/status", b"NSpid:")
        if len(numbers) > 1:  # the same number there and here, by chance
            return False
        _shown = me
    return True


def is_mounted() -> bool:
    """Is there a /proc at all?"""
    return os.path.exists("/proc/self/stat")


def own_entry() -> str:
    """Return the /proc entry of this process; empty where /proc does not show it."""
    try:
        return os.readlink("/proc/self")
    except OSError:
        return ""


def entry_of(pid: int, handle: int = -1) -> str:
    """Return the /proc entry of a process of this namespace; empty: gone or not shown. `handle`: its pidfd."""
    if not 0 < pid <= _MAX_PID:
        return ""
    if is_ours():
        return str(pid)
    if pid == os.getpid():
        return own_entry()
    opened = -1
    try:
        if handle < 0:
            handle = opened = os.pidfd_open(pid)
        numbers = _numbers(f"/proc/self/fdinfo/{handle}", b"Pid:")
    except (OSError, AttributeError):  # gone; or a kernel before 5.3
        return ""
    finally:
        if opened >= 0:
            os.close(opened)
    return str(numbers[0]) if numbers and numbers[0] > 0 else ""


def pid_of(entry: str) -> int:
    """The PID in this namespace; 0 where that process is gone, or of a namespace around this one."""
    if is_ours():
        return int(entry)
    depth = len(_numbers("/proc/self/status", b"NSpid:"))
    numbers = _numbers(f"/proc/{entry}/status", b"NSpid:")
    return numbers[depth - 1] if 0 < depth <= len(numbers) else 0


def stat_of(entry: str) -> list[bytes]:
    """Fields of /proc/ENTRY/stat behind the name; empty where there is no such process, or it cannot be told."""
    if not entry:
        return []
    try:
        with open(f"/proc/{entry}/stat", "rb", buffering=0) as file:
            fields = file.read(4096).rsplit(b")", 1)[1].split()
    except (OSError, IndexError):
        return []
    return fields if len(fields) > STAT_START else []


def start_ticks(pid: int | None = None) -> int:
    """Return the start time of a process (this one) in clock ticks since boot; 0 where it is gone or cannot be read."""
    fields = stat_of("self" if pid is None else entry_of(pid))
    return int(fields[STAT_START]) if fields else 0


def umask() -> int:
    """Return this process's umask; one that keeps all from others where /proc does not show it.

    `os.umask` would change it for a moment, for all threads of the user's program.
    """
    text = _line("/proc/self/status", b"Umask:")
    return int(text, 8) if text else 0o077


def file_limit() -> int:
    """Return the most bytes that a file of this process may have (`ulimit -f`)."""
    words = _line("/proc/self/limits", b"Max file size").split()
    return int(words[0]) if words and words[0].isdigit() else 1 << 62


def most_files() -> int:
    """Return the most files that a process of ours may have open (`ulimit -Hn`): it may raise its own limit so far."""
    words = _line("/proc/self/limits", b"Max open files").split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 1 << 62


def name_of(entry: str) -> str:
    """Return the command of a process as `ps` shows it; empty where it cannot be read."""
    try:
        with open(f"/proc/{entry}/comm", "rb", buffering=0) as file:
            return file.read(64).rstrip(b"\n").decode("utf-8", "replace")
    except OSError:
        return ""


def has_mapped(entry: str, name: str) -> bool | None:
    """Does that process map a file with `name` in its path? None where it cannot be told, or the process is ending."""
    try:
        with open(f"/proc/{entry}/maps", "rb", buffering=0) as file:
            maps = file.readall()
    except OSError:
        return None
    return name.encode() in maps if maps else None


def _numbers(path: str, label: bytes) -> list[int]:
    """Return the numbers of the line that begins so."""
    return [int(number) for number in _line(path, label).split()]


def _line(path: str, label: bytes) -> bytes:
    """Return the rest of the first line that begins with `label`; empty where there is none."""
    try:
        with open(path, "rb", buffering=0) as file:
            text = b"\n" + file.read(1 << 16)
    except OSError:
        return b""
    return text.partition(b"\n" + label)[2].partition(b"\n")[0].strip()

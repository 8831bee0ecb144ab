"""Bytes that a process read and wrote, and its system call: /proc shows both only to those who may trace it.

The kernel gives both out under a lock that a process holds which hangs while it becomes another program: they are read
in a child with a deadline (`deadline.py`), once for all processes. Where they may not be read, nothing is known.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass

from logclient.shm import proc

from . import deadline

_TIMEOUT_S = 1.0
# (number of the call, its first argument): read of descriptor 0; select and pselect6 of descriptor 0 alone
_INPUT = {
    "x86_64": frozenset({(0, 0), (23, 1), (270, 1)}),
    "aarch64": frozenset({(63, 0), (72, 1)}),
}.get(platform.machine(), frozenset())


@dataclass(frozen=True, slots=True)
class Activity:
    """One look at a process."""

    io_bytes: int | None = None  # read and written since its start, files and pipes
    reads_input: bool = False  # its main thread waits for standard input


def read(pids: Iterable[int]) -> dict[int, Activity]:
    """Return the activity of each process; those of which nothing is known are left out."""
    entries = {pid: entry for pid in pids if (entry := proc.entry_of(pid))}

    def ask() -> dict[str, list[str]]:
        return {
            str(pid): [_text(f"/proc/{entry}/{name}") for name in ("io", "syscall")]
            for pid, entry in entries.items()
        }

    try:
        found = deadline.ask(ask, timeout_s=_TIMEOUT_S, of="/proc") if entries else {}
    except deadline.NoAnswer:
        return {}
    return {int(pid): Activity(_bytes(io), _is_input(call)) for pid, (io, call) in found.items()}


def _bytes(io: str) -> int | None:
    fields = dict(line.split(": ", 1) for line in io.splitlines() if ": " in line)
    try:
        return int(fields["rchar"]) + int(fields["wchar"])
    except (LookupError, ValueError):
        return None


def _is_input(call: str) -> bool:
    words = call.split()
    try:
        return (int(words[0]), int(words[1], 16)) in _INPUT
    except (ValueError, IndexError):
        return False  # it runs, or may not be seen


def _text(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(4096).decode("utf-8", "replace")
    except OSError:
        return ""

"""Processors, memory and system of this host. Runs in a child with a deadline; GPUs are asked apart (`gpu.py`)."""

from __future__ import annotations

import os
from typing import Any

_MAX_READ = 1 << 20


def read(pid: int) -> dict[str, Any]:
    """Return what is known of the host, and what of it the process may use."""
    system = os.uname()
    return {
        "host": system.nodename,
        "system": _os_name() or system.sysname,
        "kernel": system.release,
        "machine": system.machine,
        "processor": _field("/proc/cpuinfo", "model name", "Model", "Hardware"),
        "processors": os.cpu_count() or 0,
        "usable_processors": _usable(pid),
        "processor_quota": _quota(),
        "memory_bytes": 1024 * _number(_field("/proc/meminfo", "MemTotal").partition(" ")[0]),
        "memory_limit_bytes": _number(_text("/sys/fs/cgroup/memory.max").strip()) or None,
    }


def _usable(pid: int) -> int:
    try:
        return len(os.sched_getaffinity(pid))
    except OSError:
        return 0


def _quota() -> float | None:
    """Return the processors that a cgroup allows, by time; None: no limit, or not known."""
    quota, _, period = _text("/sys/fs/cgroup/cpu.max").strip().partition(" ")
    return round(_number(quota) / _number(period), 2) if _number(quota) and _number(period) else None


def _os_name() -> str:
    return _field("/etc/os-release", "PRETTY_NAME", mark="=").strip('"')


def _field(path: str, *names: str, mark: str = ":") -> str:
    """Return the value of the first line with one of these names; empty where there is none."""
    lines = _text(path).splitlines()
    for name in names:
        for line in lines:
            found, separator, value = line.partition(mark)
            if separator and found.strip() == name:
                return value.strip()[:200]
    return ""


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_READ)
    except OSError:
        return ""


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0

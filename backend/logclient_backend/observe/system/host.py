"""CPU, memory, disks and network of this node, and what the cgroup of the run allows it, from /proc and /sys.

`psutil` reads the same files. It is not used: its import takes longer than an agent may take to start, and it would
stay in the memory of each of the agent's processes.

Invariants: a file that is not there, or has another form, costs its metrics alone; counters that went back (a device
that was replaced) give no rate.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_SECTOR = 512  # bytes, in /proc/diskstats, whatever the disk has
_IDLE, _IOWAIT, _STEAL = 3, 4, 7  # fields of the first line of /proc/stat
_MAX_LEVELS = 32
_MAX_BYTES = 1 << 16  # of one read


def text(path: str) -> str:
    """Return a file of the kernel's; empty where it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        found = os.read(fd, _MAX_BYTES)
        while found and (more := os.read(fd, _MAX_BYTES)):
            found += more
        return found.decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def number(path: str) -> int | None:
    """Return the whole number that is all of a file."""
    found = text(path).strip()
    return int(found) if found.isdigit() else None


class Rates:
    """Counters as rates over the time since they were read last."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._at = 0.0

    def of(self, counters: dict[str, float], now: float) -> dict[str, float]:
        """Return those that were there before, per second of `now`, a time in seconds."""
        before, self._before = self._before, counters
        elapsed_s, self._at = now - self._at, now
        return {
            name: (count - before[name]) / elapsed_s
            for name, count in counters.items()
            if name in before and count >= before[name] and elapsed_s > 0
        }


class Host:
    """The node; `proc` and `sys` are where the kernel shows it."""

    def __init__(self, proc: str = "/proc", sys: str = "/sys") -> None:
        self._proc, self._sys = proc, sys
        self._disks: dict[str, bool] = {}  # name: is it a disk, and not a part of one or made of others?
        self._nets: dict[str, bool] = {}  # name: is there a device behind it?
        self._cpu: list[int] = []
        self._rates = Rates()

    def read(self, now: float) -> dict[str, float]:
        """Return what is known; shares and rates are over the time since the last call."""
        found = {**self._cpu_shares(), **self._memory()}
        load = text(f"{self._proc}/loadavg").split()
        if load:
            found["load_1m"] = float(load[0])
        for what in ("cpu", "memory", "io"):
            words = text(f"{self._proc}/pressure/{what}").split()
            if len(words) > 1 and words[1].startswith("avg10="):
                found[f"pressure_{what}_percent"] = float(words[1][6:])
        counters, busy_s = self._disk_counters()
        rates = self._rates.of({**counters, **self._net_counters(), **busy_s}, now)
        busiest = [rates.pop(name) for name in busy_s if name in rates]
        if busiest:
            found["disk_busy_percent"] = min(100.0, 100 * max(busiest))
        return found | {f"{name}_per_s": rate for name, rate in rates.items()}

    def _cpu_shares(self) -> dict[str, float]:
        words = text(f"{self._proc}/stat").partition("\n")[0].split()[1:9]
        before, self._cpu = self._cpu, [int(word) for word in words]
        if len(before) != len(self._cpu) or len(before) <= _STEAL:
            return {}
        spent = [max(0, after - first) for first, after in zip(before, self._cpu, strict=True)]
        total = sum(spent)
        if not total:
            return {}
        return {
            "cpu_percent": 100 * (1 - (spent[_IDLE] + spent[_IOWAIT]) / total),
            "cpu_iowait_percent": 100 * spent[_IOWAIT] / total,
        }

    def _memory(self) -> dict[str, float]:
        fields = dict(_fields(text(f"{self._proc}/meminfo"), "MemTotal:", "MemAvail", "Swap"))
        found: dict[str, float] = {}
        total, available = fields.get("MemTotal"), fields.get("MemAvailable")
        if total is not None and available is not None:
            found["memory_bytes"], found["memory_total_bytes"] = 1024 * (total - available), 1024 * total
        if "SwapTotal" in fields:
            found["swap_bytes"] = 1024 * (fields["SwapTotal"] - fields.get("SwapFree", 0))
        return found

    def _disk_counters(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return bytes over all disks, and seconds of each in which it was busy."""
        read = written = 0
        busy_s: dict[str, float] = {}
        for line in text(f"{self._proc}/diskstats").splitlines():
            words = line.split()
            if len(words) < 13 or not self._is_disk(words[2]):
                continue
            read += int(words[5]) * _SECTOR
            written += int(words[9]) * _SECTOR
            busy_s[f"busy {words[2]}"] = int(words[12]) / 1000
        if not busy_s:
            return {}, {}
        return {"disk_read_bytes": read, "disk_written_bytes": written}, busy_s

    def _is_disk(self, name: str) -> bool:
        if name not in self._disks:
            self._disks[name] = os.path.exists(f"{self._sys}/block/{name.replace('/', '!')}/device")
        return self._disks[name]

    def _net_counters(self) -> dict[str, float]:
        """Bytes over all interfaces with a device; where none has one, as in a container, over all but the loopback."""
        all_: dict[str, tuple[int, int]] = {}
        for line in text(f"{self._proc}/net/dev").splitlines():
            name, colon, rest = line.partition(":")
            words = rest.split()
            if colon and len(words) >= 9 and name.strip() != "lo":
                all_[name.strip()] = int(words[0]), int(words[8])
        for name in all_:
            if name not in self._nets:
                self._nets[name] = os.path.exists(f"{self._sys}/class/net/{name}/device")
        chosen = [counts for name, counts in all_.items() if self._nets[name]] or list(all_.values())
        if not chosen:
            return {}
        return {
            "net_received_bytes": sum(received for received, _ in chosen),
            "net_sent_bytes": sum(sent for _, sent in chosen),
        }


class Cgroup:
    """Limits of the cgroups (version 2) of a process, and use of them; nothing where none has a limit.

    A container shows its own cgroup as the root. The tightest limit on the way up counts.
    """

    def __init__(self, pid: int, proc: str = "/proc", sys: str = "/sys") -> None:
        self._memory, self._memory_limit = "", 0.0
        self._cpu, self._cpus = "", 0.0
        self._rates = Rates()
        for folder in self._way_up(pid, proc, f"{sys}/fs/cgroup"):
            limit = number(f"{folder}/memory.max")
            if limit is not None and (not self._memory or limit < self._memory_limit):
                self._memory, self._memory_limit = folder, limit
            words = text(f"{folder}/cpu.max").split()
            if len(words) == 2 and words[0].isdigit() and int(words[1]):
                cpus = int(words[0]) / int(words[1])
                if not self._cpu or cpus < self._cpus:
                    self._cpu, self._cpus = folder, cpus

    def _way_up(self, pid: int, proc: str, root: str) -> Iterator[str]:
        for line in text(f"{proc}/{pid}/cgroup").splitlines():
            if not line.startswith("0::/"):
                continue
            parts = [part for part in line[4:].split("/") if part]
            if ".." in parts:  # outside of what this mount shows
                parts = []
            for length in range(min(len(parts), _MAX_LEVELS), -1, -1):
                yield "/".join([root, *parts[:length]])

    def read(self, now: float) -> dict[str, float]:
        """Return use and limit; the CPU share is over the time since the last call."""
        found: dict[str, float] = {}
        used = number(f"{self._memory}/memory.current") if self._memory else None
        if used is not None:
            found["cgroup/memory_bytes"], found["cgroup/memory_limit_bytes"] = used, self._memory_limit
            events = dict(_fields(text(f"{self._memory}/memory.events"), "oom_kill"))
            if "oom_kill" in events:
                found["cgroup/oom_kills"] = events["oom_kill"]
        if self._cpu:
            spent = _fields(text(f"{self._cpu}/cpu.stat"), "usage_usec", "throttled_usec")
            counters: dict[str, float] = {name: count / 1e6 for name, count in spent}
            rates = self._rates.of(counters, now)
            if "usage_usec" in rates:
                found["cgroup/cpu_percent"] = 100 * rates["usage_usec"] / self._cpus
                found["cgroup/cpu_limit"] = self._cpus
            if "throttled_usec" in rates:
                found["cgroup/cpu_throttled_percent"] = 100 * rates["throttled_usec"]
        return found


def _fields(lines: str, *names: str) -> Iterator[tuple[str, int]]:
    """Yield the lines `name number` and `name: number kB` that begin so."""
    for line in lines.splitlines():
        if not line.startswith(names):
            continue
        words = line.split()
        if len(words) >= 2 and words[1].isdigit():
            yield words[0].rstrip(":"), int(words[1])


def free_bytes(path: str) -> dict[str, float]:
    """Return what is free on the file system of a path, to this user, and how full it is; waits if that hangs."""
    found = os.statvfs(path)
    used, left = found.f_blocks - found.f_bfree, found.f_bavail
    free = {"free_bytes": float(left * found.f_frsize)}
    return free | ({"used_percent": 100 * used / (used + left)} if used + left else {})

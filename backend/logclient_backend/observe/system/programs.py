"""CPU time and memory of the processes of each rank, and of the agent, told from the rest of the node.

The processes of a rank are the one that logs and all its descendants, such as workers of a data loader, but for those
that belong to another rank or to the agent. A process that was seen to belong to a group belongs to it until it ends,
whatever became of its parent. A run without ranks counts as rank 0.

Reads /proc/PID/stat and statm alone, which wait for nothing that a process does. The parent of a process is read once,
and again where so much time has passed that another process may have got its PID.

Invariant: the CPU time of a process that ended between two samples is that of its rank, since whoever waits for its end
takes it over; of one that was there before it was seen first only what came since counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from logclient.shm import proc

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGESIZE")
# fields of /proc/PID/stat behind the name: user and system time, of ended children too
_TIMES = slice(11, 15)
_RESIDENT = 1  # of statm
_MAX_DEPTH = 64  # of the processes of a rank
_TRUST_S = 60.0  # for so long no PID is given to another process
AGENT = "agent"


class _Member:
    """A process that is looked at."""

    __slots__ = ("cpu_s", "start_ticks")

    def __init__(self, start_ticks: int, cpu_s: float) -> None:
        self.start_ticks = start_ticks
        self.cpu_s = cpu_s  # at the last look


class Programs:
    """The groups of processes of one node."""

    def __init__(self) -> None:
        self._parents: dict[
            int, int
        ] = {}  # of all processes that are there, as they were when they were seen first
        self._groups: dict[str, dict[int, _Member]] = {}
        self._at = 0.0
        self._at_ticks = 0.0

    def read(
        self, loggers: Mapping[int, str], own: Iterable[int], now: float
    ) -> tuple[dict[str, float], dict[str, set[int]]]:
        """Return the metrics, and the PIDs of each group.

        `loggers`: PID of each process that logs, and the group that it is in. `own`: PIDs of the agent's processes.
        CPU shares are over the time since the last call: 100 is one CPU.
        """
        if now - self._at > _TRUST_S:
            self._parents.clear()
        self._look_around()
        roots = {**loggers, **dict.fromkeys(own, AGENT)}
        wanted = self._members(roots)
        elapsed_s, before_ticks = now - self._at, self._at_ticks
        is_first = not self._at
        self._at, self._at_ticks = now, _uptime_ticks()
        found: dict[str, float] = {}
        for group, pids in wanted.items():
            members = self._groups.setdefault(group, {})
            spent_s, resident, count = self._take(members, pids, roots, before_ticks)
            if not count:
                continue
            if not is_first and elapsed_s > 0:
                found[f"{group}/cpu_percent"] = 100 * max(0.0, spent_s) / elapsed_s
            found[f"{group}/memory_bytes"] = resident
            if group != AGENT:
                found[f"{group}/processes"] = count
        for group in self._groups.keys() - wanted.keys():
            del self._groups[group]
        return found, {group: set(members) for group, members in self._groups.items()}

    def _look_around(self) -> None:
        """Learn of the processes that came, and forget those that went."""
        there = {int(name) for name in os.listdir("/proc/") if name.isdigit()} if proc.is_ours() else set()
        for pid in self._parents.keys() - there:
            del self._parents[pid]
        for pid in there - self._parents.keys():
            fields = proc.stat_of(str(pid))
            if fields:
                self._parents[pid] = int(fields[proc.STAT_PARENT])

    def _members(self, roots: Mapping[int, str]) -> dict[str, set[int]]:
        """Return the PIDs of each group; `roots`: the group of each process that is in one by itself."""
        known = {pid: group for group, members in self._groups.items() for pid in members}
        known.update(roots)
        found: dict[str, set[int]] = {group: set() for group in roots.values()}
        for pid in self._parents:
            way: list[int] = []
            at = pid
            while at not in known and at in self._parents and len(way) < _MAX_DEPTH:
                way.append(at)
                at = self._parents[at]
            group = known.get(at, "")
            for each in way:
                known[each] = group
            if group in found:
                found[group].add(pid)
        for pid, group in roots.items():  # where /proc is not of this namespace they are all that is known
            found[group].add(pid)
        return found

    def _take(
        self, members: dict[int, _Member], pids: Iterable[int], roots: Mapping[int, str], before_ticks: float
    ) -> tuple[float, float, int]:
        """Return CPU seconds since the last look, resident bytes and number of processes of one group."""
        spent_s = resident = 0.0
        count = 0
        gone = dict(members)
        for pid in pids:
            fields = proc.stat_of(proc.entry_of(pid))
            if not fields:
                continue
            cpu_s, start = sum(map(int, fields[_TIMES])) * _TICK_S, int(fields[proc.STAT_START])
            member = members.get(pid)
            if member is not None and member.start_ticks != start and pid not in roots:
                self._parents.pop(pid, None)  # another process: whose it is, the next look asks
                continue
            if member is None or member.start_ticks != start:
                members[pid] = member = _Member(start, 0.0 if start >= before_ticks else cpu_s)
            else:
                del gone[pid]
            spent_s += cpu_s - member.cpu_s
            member.cpu_s = cpu_s
            resident += _resident(pid)
            count += 1
        for pid, member in gone.items():
            if members[pid] is member:
                del members[pid]
            spent_s -= member.cpu_s  # its parent has it now
        return spent_s, resident, count


def _resident(pid: int) -> float:
    try:
        with open(f"/proc/{proc.entry_of(pid)}/statm", "rb", buffering=0) as file:
            return float(int(file.read(256).split()[_RESIDENT]) * _PAGE)
    except (OSError, IndexError, ValueError):
        return 0.0


def _uptime_ticks() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) / _TICK_S

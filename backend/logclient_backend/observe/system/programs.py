"""CPU time and memory of the processes of each rank, and of the agent, told from the rest of the node.

The processes of a rank are the one that logs and all its descendants, such as workers of a data loader, but for those
that belong to another rank or to the agent. A process that was seen to belong to a group belongs to it until it ends,
whatever became of its parent. A run without ranks counts as rank 0.

Reads /proc/PID/stat alone, which waits for nothing that a process does: of members with each look, of all others once,
and again when somebody begins or ends to log, or so much time has passed that another process may have got a PID.

Invariant: the CPU time of a process that ended between two samples is that of its rank, since whoever waits for its end
takes it over; of one that is seen first that part counts which its age says is of this time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from logclient.shm import proc

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGESIZE")
# fields of /proc/PID/stat behind the name: user and system time, of ended children too; resident pages
_TIMES, _RESIDENT = slice(11, 15), 21
_MAX_DEPTH = 64  # of the processes of a rank
_TRUST_S = 60.0  # for so long no PID is given to another process
# processes are listed with each third look, or after so long: on a busy node that is half of what a look costs
_LIST_EVERY, _LIST_S = 3, 25.0
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
        self._roots: dict[int, str] = {}  # the group of each process that is in one by itself
        self._group_of: dict[int, str] = {}  # the same of all processes that are there; empty: of none
        self._unlisted, self._listed_at = (
            _LIST_EVERY,
            0.0,
        )  # calls since the processes were listed, and when that was
        self._groups: dict[str, dict[int, _Member]] = {}
        self._at = 0.0

    def read(
        self, loggers: Mapping[int, str], own: Iterable[int], now: float
    ) -> tuple[dict[str, float], dict[str, set[int]]]:
        """Return the metrics, and the PIDs of each group.

        `loggers`: PID of each process that logs, and the group that it is in. `own`: PIDs of the agent's processes.
        CPU shares are over the time since the last call: 100 is one CPU.
        """
        roots = {**loggers, **dict.fromkeys(own, AGENT)}
        if roots != self._roots or now - self._at > _TRUST_S:
            known = {pid: group for group, members in self._groups.items() for pid in members}
            self._roots, self._group_of, self._unlisted = roots, known | roots, _LIST_EVERY
        if self._unlisted >= _LIST_EVERY or now - self._listed_at > _LIST_S:
            self._look_around()
            self._unlisted, self._listed_at = 0, now
        self._unlisted += 1
        wanted: dict[str, set[int]] = {group: set() for group in roots.values()}
        for pid, group in self._group_of.items():
            if group in wanted:
                wanted[group].add(pid)
        elapsed_s, is_first = now - self._at, not self._at
        self._at = now
        found: dict[str, float] = {}
        for group, pids in wanted.items():
            members = self._groups.setdefault(group, {})
            spent_s, resident, count = self._take(members, pids, elapsed_s)
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
        for pid in self._group_of.keys() - there - self._roots.keys():
            del self._group_of[pid]
        for pid in there - self._group_of.keys():
            way: list[int] = []
            at = pid
            while at not in self._group_of and at in there and len(way) < _MAX_DEPTH:
                way.append(at)
                fields = proc.stat_of(str(at))
                at = int(fields[proc.STAT_PARENT]) if fields else 0
            self._group_of.update(dict.fromkeys(way, self._group_of.get(at, "")))

    def _take(
        self, members: dict[int, _Member], pids: Iterable[int], elapsed_s: float
    ) -> tuple[float, float, int]:
        """Return CPU seconds since the last look, resident bytes and number of processes of one group."""
        spent_s = resident = 0.0
        count = 0
        gone = dict(members)
        is_ours, uptime_s = proc.is_ours(), time.clock_gettime(time.CLOCK_BOOTTIME)
        for pid in pids:
            fields = proc.stat_of(str(pid) if is_ours else proc.entry_of(pid))
            if not fields:
                if pid not in self._roots:
                    del self._group_of[pid]  # another process may get its PID
                continue
            cpu_s, start = sum(map(int, fields[_TIMES])) * _TICK_S, int(fields[proc.STAT_START])
            member = members.get(pid)
            if member is not None and member.start_ticks != start and pid not in self._roots:
                del self._group_of[pid]  # another process: whose it is, the next look asks
                continue
            if member is None or member.start_ticks != start:
                age_s = max(_TICK_S, uptime_s - start * _TICK_S)
                members[pid] = member = _Member(start, cpu_s * (1 - min(1.0, elapsed_s / age_s)))
            else:
                del gone[pid]
            spent_s += cpu_s - member.cpu_s
            member.cpu_s = cpu_s
            resident += int(fields[_RESIDENT]) * _PAGE
            count += 1
        for pid, member in gone.items():
            if members[pid] is member:
                del members[pid]
            spent_s -= member.cpu_s  # its parent has it now
        return spent_s, resident, count

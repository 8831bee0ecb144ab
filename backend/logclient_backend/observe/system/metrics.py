"""`SystemMetrics`: a sample of this node each so many seconds, written to a stream of the agent's own.

Runs in an observer. `look` never waits: drivers and the disk of the run folder are asked by children
(`repeated_question.py`), and a sample is written as soon as all have answered, or without those that have not.

Each sample has records of its own for host, devices and ranks, so that what comes and goes in one of them leaves the
keys of the others as they are. `step` is the time in whole seconds since 1970: it goes on over attempts of a run.
`rank` is the lowest rank of this node.

Invariants:

- the first record comes one interval after the first look: a run that is shorter has no file and no such stream;
- nothing is written while nobody logs here, and a lane file that the agent has swept is not written to again;
- `look` raises nothing: a sample that fails, or comes too late, is counted as missed, and the observer goes on.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from logclient.shm.shm_dir import ShmDir
from logclient.shm.system_stream import MAX_SCALE, Full, SystemLane

from . import devices
from .host import Cgroup, Host, free_bytes
from .programs import AGENT, Programs
from .repeated_question import RepeatedQuestion

PREFIX = "system/"
_TIMEOUT_S = 2.0  # of a driver, or a disk
_OPENING_S = 30.0  # the same of a driver that is only opened
_DISK_S = 60.0  # between two questions for the free space of the run folder
_LOOK_S = 0.05  # between two looks while an answer is awaited
_RETRY_S = 60.0  # where there was no room for a file


class SystemMetrics:
    """One per observer."""

    def __init__(
        self,
        shm_dir: ShmDir,
        interval_s: float,
        own: Callable[[], Iterable[int]],
        missed: int = 0,
    ) -> None:
        """`own` returns the PIDs of the agent's processes. `missed`: samples that earlier observers cost."""
        self._shm_dir = shm_dir
        self._interval_s = interval_s
        self._own = own
        self._missed = missed
        self._host, self._programs = Host(), Programs()
        self._cgroup: Cgroup | None = None
        self._ranks: Mapping[int, int | None] = {}  # of the processes that log here, by PID
        self._devices: RepeatedQuestion | None = RepeatedQuestion(devices.begin, _TIMEOUT_S, _OPENING_S)
        self._no_devices = ""  # the reason
        self._disk: RepeatedQuestion | None = None
        self._disk_path = ""
        self._disk_at = 0.0
        self._disk_free: dict[str, float] = {}
        self._lane: SystemLane | None = None
        self._lane_rank: int | None = None
        self._scale = 1  # of the file
        self._due_at = time.monotonic()
        self._asked_at = 0.0  # 0: no sample is under way
        self._samples = 0
        self._no_room_until = 0.0

    def due_in_s(self, now: float, looks_s: float) -> float:
        """Seconds until `look` has something to do; infinite where a look each `looks_s` is often enough."""
        if self._asked_at:
            return _LOOK_S
        return max(0.0, self._due_at - now) if self._interval_s < 2 * looks_s else math.inf

    def look(self, now: float, ranks: Mapping[int, int | None]) -> None:
        """Begin a sample if it is time, and write the one that was begun. `ranks`: of those that log here, by PID."""
        try:
            if not self._asked_at:
                if now < self._due_at:
                    return
                late_s = now - self._due_at
                self._due_at = max(self._due_at + self._interval_s, now + self._interval_s / 2)
                self._ranks = ranks
                if not ranks:
                    return
                self._missed += int(late_s / self._interval_s)
                self._ask(now)
            self._take(now)
        except Exception:  # noqa: BLE001 - whatever the kernel or a driver shows here, the observer has more to do
            self._asked_at = 0.0
            self._missed += 1

    def _take(self, now: float) -> None:
        """Take the answers, and the sample once all are there or their time is over."""
        questions = [each for each in (self._devices, self._disk) if each is not None]
        for question in questions:
            question.look(now)
        is_late = now - self._asked_at > _TIMEOUT_S
        if is_late or all(question.is_settled for question in questions):
            self._asked_at = 0.0
            self._sample(now)

    def close(self) -> None:
        """End the children, and the stream."""
        for question in (self._devices, self._disk):
            if question is not None:
                question.close()
        if self._lane is not None:
            self._lane.close()

    # ---- asking -----------------------------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        self._asked_at = now
        if not self._samples:
            return  # the first is no more than a start for rates: a short run costs no child
        if self._devices is not None:
            self._devices.ask(now)
        if now - self._disk_at >= _DISK_S and (path := str(self._shm_dir.folder_answer().get("dir") or "")):
            if self._disk is None or path != self._disk_path:
                if self._disk is not None:
                    self._disk.close()
                self._disk, self._disk_path = (
                    RepeatedQuestion(lambda: lambda: free_bytes(path), _TIMEOUT_S),
                    path,
                )
            self._disk_at = now
            self._disk.ask(now)

    # ---- a sample ---------------------------------------------------------------------------------------

    def _sample(self, now: float) -> None:
        ranks = [rank for rank in self._ranks.values() if rank is not None]
        groups = _groups(self._ranks)
        if self._cgroup is None:
            self._cgroup = Cgroup(next(iter(groups)))
        host = {**self._host.read(now), **self._cgroup.read(now), **self._free(), **self._silent(now)}
        programs, members = self._programs.read(groups, self._own(), now)
        programs[f"{AGENT}/missed_samples"] = self._missed
        answer = self._devices.answer if self._devices is not None else None
        found: dict[str, float] = {}
        if isinstance(answer, dict) and devices.ABSENT in answer:
            self._forget_devices(str(answer[devices.ABSENT]))
        elif isinstance(answer, dict):
            found = _flat(answer)
            programs |= _memory_of(answer, members)
        self._samples += 1
        if self._samples > 1:
            self._write(min(ranks, default=None), now, host, found, programs)

    def _free(self) -> dict[str, float]:
        if self._disk is not None and isinstance(self._disk.answer, dict):
            self._disk_free = {f"run_disk_{name}": value for name, value in self._disk.answer.items()}
        try:
            shm = {"shm_free_bytes": free_bytes(self._shm_dir.path)["free_bytes"]}
        except OSError:
            shm = {}
        return self._disk_free | shm

    def _silent(self, now: float) -> dict[str, float]:
        found = {}
        for name, question in (("gpu", self._devices), ("run_disk", self._disk)):
            silent_s = question.silent_s(now) if question is not None else 0.0
            if silent_s > _TIMEOUT_S:
                found[f"{name}_silent_s"] = silent_s
        if "run_disk_silent_s" in found:
            self._disk_free, self._disk_at = {}, 0.0
        return found

    def _forget_devices(self, reason: str) -> None:
        assert self._devices is not None
        self._devices.close()
        self._devices, self._no_devices = None, reason

    def _write(self, rank: int | None, now: float, *records: Mapping[str, float]) -> None:
        step = time.time_ns() // 10**9
        for record in records:
            if record:
                values = {PREFIX + name: float(value) for name, value in record.items()}
                self._write_one(rank, step, values, now)

    def _write_one(self, rank: int | None, step: int, record: Mapping[str, float], now: float) -> None:
        while True:
            lane = self._lane_of(rank, now)
            try:
                lane.write(step, record)
                return
            except Full:
                lane.close()
                self._lane = None
                if self._scale >= MAX_SCALE:
                    raise
                self._scale *= 2

    def _lane_of(self, rank: int | None, now: float) -> SystemLane:
        """Return the file to write to. Raises OSError where there is no room for one."""
        lane = self._lane
        if lane is not None and (lane.is_swept or rank != self._lane_rank):
            lane.close()
            self._lane = lane = None
        if lane is None:
            if now < self._no_room_until:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            start = {"kind": "system", "pid": os.getpid(), "rank": rank, "interval_s": self._interval_s}
            if self._no_devices:
                start["no_devices"] = self._no_devices
            self._no_room_until = now + _RETRY_S
            self._lane = lane = SystemLane(self._shm_dir.path, rank, start, self._scale)
            self._lane_rank, self._no_room_until = rank, 0.0
        return lane


def _groups(ranks: Mapping[int, int | None]) -> dict[int, str]:
    """Return the group of each process that logs; those without a rank are in none where others have one."""
    has_ranks = any(rank is not None for rank in ranks.values())
    found = {
        pid: 0 if rank is None else rank for pid, rank in ranks.items() if rank is not None or not has_ranks
    }
    return {pid: f"rank/{rank}" for pid, rank in sorted(found.items(), key=lambda item: item[1])}


def _flat(answer: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"gpu/{index}/{name}": value
        for index, device in enumerate(answer["devices"])
        for name, value in device.items()
    }


def _memory_of(answer: Mapping[str, Any], members: Mapping[str, set[int]]) -> dict[str, float]:
    """Return the GPU memory of each rank, over all devices, where the driver names processes of it."""
    memory = {int(pid): float(size) for pid, size in answer["memory"].items()}
    found = {}
    for group, pids in members.items():
        mine = pids & memory.keys()
        if mine and group != AGENT:
            found[f"{group}/gpu_memory_bytes"] = sum(memory[pid] for pid in mine)
    return found

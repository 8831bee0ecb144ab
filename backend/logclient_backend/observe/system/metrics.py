"""`SystemMetrics`: a sample of this node each so many seconds, written to the stream of the agent's own.

Runs in an observer. `look` never waits: drivers and the disk of the run folder are asked by children (`standing.py`),
and a sample is written as soon as all have answered, or without those that have not.

Each sample has up to three records, of host, devices and ranks, so that what comes and goes in one of them leaves the
keys of the others as they are. `step` is the time in whole seconds since 1970: it goes on over attempts of a run.
`rank` is the lowest rank of this node.

Invariants:

- the first record comes one interval after the first look: a run that is shorter has no file and no such stream;
- nothing is written while nobody logs here, and a lane file that the agent has swept is not written to again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from logclient.shm import layout
from logclient.shm.proc import pid_namespace, start_ticks
from logclient.shm.regular import read_start
from logclient.shm.shm_dir import ShmDir
from logclient.shm.system_stream import Full, SystemLane

from . import devices
from .host import Cgroup, Host, free_bytes
from .programs import Programs
from .standing import Standing

PREFIX = "system/"
_LANES = ".lanes"
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
        folder: Callable[[], str],
        own: Callable[[], Iterable[int]],
        now: float | None = None,
    ) -> None:
        """`folder` returns the run folder, empty while it is not known; `own` the PIDs of the agent's processes."""
        self._shm_dir = shm_dir
        self._interval_s = interval_s
        self._folder, self._own = folder, own
        self._host, self._programs = Host(), Programs()
        self._cgroup: Cgroup | None = None
        self._loggers: dict[str, tuple[int, int | None]] = {}  # by name of the lane file: PID and rank
        self._devices: Standing | None = Standing(devices.begin, _TIMEOUT_S, _OPENING_S)
        self._disk: Standing | None = None
        self._disk_path = ""
        self._disk_at = 0.0
        self._disk_free: dict[str, float] = {}
        self._lane: SystemLane | None = None
        self._lane_rank: int | None = None
        self._due_at = time.monotonic() if now is None else now
        self._asked_at = 0.0  # 0: no sample is under way
        self._samples = 0
        self._no_room_until = 0.0

    def due_in_s(self, now: float) -> float:
        """Seconds until `look` has something to do."""
        return _LOOK_S if self._asked_at else max(0.0, self._due_at - now)

    def look(self, now: float) -> None:
        """Begin a sample if it is time, and write the one that was begun."""
        if not self._asked_at:
            if now < self._due_at:
                return
            self._due_at = max(self._due_at + self._interval_s, now + self._interval_s / 2)
            self._find_loggers()
            if not self._loggers:
                return
            self._ask(now)
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
        if now - self._disk_at >= _DISK_S and (path := self._folder()):
            if self._disk is None or path != self._disk_path:
                if self._disk is not None:
                    self._disk.close()
                self._disk, self._disk_path = Standing(lambda: lambda: free_bytes(path), _TIMEOUT_S), path
            self._disk_at = now
            self._disk.ask(now)

    def _find_loggers(self) -> None:
        """Learn which processes log here: their lane files come and go, and a process may take a rank late."""
        here = pid_namespace()
        found: dict[str, tuple[int, int | None]] = {}
        try:
            names = [name for name in os.listdir(self._shm_dir.path) if name.endswith(_LANES)]
        except OSError:
            names = []
        for name in names:
            try:
                words = memoryview(read_start(self._shm_dir.file(name), 8 * (layout.DROPPED + 1))).cast("Q")
                if _is_logging(words, here):
                    rank = words[layout.FILE_RANK]
                    found[name] = words[layout.FILE_PID], rank - 1 if rank else None
            except (OSError, IndexError, TypeError):
                continue
        self._loggers = found

    # ---- a sample ---------------------------------------------------------------------------------------

    def _sample(self, now: float) -> None:
        ranks = [rank for _, rank in self._loggers.values() if rank is not None]
        groups = _groups(self._loggers.values(), has_ranks=bool(ranks))
        if self._cgroup is None:
            self._cgroup = Cgroup(next(iter(groups)))
        host = {**self._host.read(now), **self._cgroup.read(now), **self._free(), **self._silent(now)}
        programs, members = self._programs.read(groups, self._own(), now)
        answer = self._devices.answer if self._devices is not None else None
        found: dict[str, float] = {}
        if isinstance(answer, dict) and devices.ABSENT in answer:
            self._forget_devices()
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

    def _forget_devices(self) -> None:
        assert self._devices is not None
        self._devices.close()
        self._devices = None

    def _write(self, rank: int | None, now: float, *records: Mapping[str, float]) -> None:
        step = time.time_ns() // 10**9
        for record in records:
            if record:
                self._write_one(
                    rank, step, {PREFIX + name: float(value) for name, value in record.items()}, now
                )

    def _write_one(self, rank: int | None, step: int, record: Mapping[str, float], now: float) -> None:
        for _ in range(2):
            lane = self._lane_of(rank, now)
            if lane is None:
                return
            try:
                lane.write(step, record)
                return
            except Full:
                lane.close()
                self._lane = None

    def _lane_of(self, rank: int | None, now: float) -> SystemLane | None:
        lane = self._lane
        if lane is not None and (lane.is_swept or rank != self._lane_rank):
            lane.close()
            self._lane = lane = None
        if lane is None and now >= self._no_room_until:
            start = {"kind": "system", "pid": os.getpid(), "rank": rank, "interval_s": self._interval_s}
            try:
                self._lane = lane = SystemLane(self._shm_dir.path, rank, start)
                self._lane_rank = rank
            except OSError:
                self._no_room_until = now + _RETRY_S
        return lane


def _is_logging(words: memoryview, here: int) -> bool:
    """Does the process of this lane file live in this PID namespace, and has it the run open?"""
    pid, ticks = words[layout.FILE_PID], words[layout.FILE_START_TICKS]
    if words[layout.FILE_MAGIC] != layout.MAGIC or words[layout.FILE_PID_NAMESPACE] != here:
        return False
    if words[layout.STATE] != layout.STATE_OPEN or words[layout.DROPPED] == pid:
        return False
    return bool(ticks) and start_ticks(pid) == ticks


def _groups(loggers: Iterable[tuple[int, int | None]], *, has_ranks: bool) -> dict[int, str]:
    """Return the group of each process that logs; those without a rank are in none where others have one."""
    return {
        pid: f"rank/{0 if rank is None else rank}"
        for pid, rank in loggers
        if rank is not None or not has_ranks
    }


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
        if mine and group != "agent":
            found[f"{group}/gpu_memory_bytes"] = sum(memory[pid] for pid in mine)
    return found

"""Samples of the processes that are watched: a look at each from outside, compared with the one before.

Runs in the observer, and only while somebody is late. What may hang is asked in children with a deadline
(`observe/deadline.py`, `observe/stacks.py`); a sample takes a few seconds at most, and between its parts the observer
beats.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from ...observe import activity, gpu, kernel_log, ranks
from ...observe.activity import Activity
from ...observe.gpu import Gpus
from ...observe.kernel_log import KernelLog
from ...observe.motion import Activities, Standstill, standstill
from ...observe.process import Sample, descendants
from ...observe.report import Job, Report, here, put_together
from ...observe.stacks import Stacks
from ...observe.stall import Found
from ...observe.verdict import Look, Observed
from .processes import Processes, Seen

_TIMEOUT_S = 3.0
_LOG_EVERY_S = 60.0
_ELSEWHERE = Look(None, Stacks(0, reason="it runs in another PID namespace"))


class Sampler:
    """Keeps the last sample."""

    def __init__(self, beat: Callable[[], object]) -> None:
        self.job: Job | None = None  # of the last comparison
        self._beat = beat
        self._looks: dict[int, Look] = {}  # of the last sample, by PID
        self._activities: dict[int, Activity] = {}
        self._at = 0.0
        self._log, self._log_at = KernelLog(), -math.inf
        self._has_driver = gpu.may_be_there()

    def forget(self) -> None:
        """The next sample is a first one."""
        self._looks, self._activities, self.job = {}, {}, None

    def sample(self, processes: Processes) -> Found | None:
        """Look at all that are watched; None: for the first time."""
        watched = {each.pid: each for each in processes.watched() if each.is_here}
        question = gpu.ask() if self._has_driver else None  # answers while the processes are looked at
        families = {pid: descendants(pid) for pid in watched}
        everybody = list(dict.fromkeys([*watched, *(pid for family in families.values() for pid in family)]))
        self._beat()
        now = time.monotonic()
        looks = ranks.look(everybody, _TIMEOUT_S, self._looks)
        for pid, each in watched.items():
            if not _is_it(each, looks[pid].sample):
                looks[pid] = Look(None, looks[pid].stacks)
        self._beat()
        activities = activity.read(everybody)
        self._beat()
        gpus = Gpus(absent=gpu.NO_DRIVER) if question is None else gpu.answered(question)
        self._has_driver = gpus.absent != gpu.NO_DRIVER
        before, apart_s = self._looks, now - self._at
        known = Activities(self._activities, activities, gpus)
        self._looks, self._activities, self._at = looks, activities, now
        if not before:
            return None
        observed = [
            self._observed(each, families.get(each.pid, ()), before, apart_s, processes)
            for each in processes.watched()
        ]
        return self._compare(observed, known, processes)

    def _observed(
        self, each: Seen, family: Iterable[int], before: dict[int, Look], apart_s: float, processes: Processes
    ) -> Observed:
        def pair(pid: int) -> Observed:
            first = before.get(pid, Look(None, Stacks(pid, reason="it was not there")))
            return Observed(pid, first, self._looks[pid], apart_s)

        made = pair(each.pid) if each.is_here else Observed(each.pid, _ELSEWHERE, _ELSEWHERE, apart_s)
        made.children = [pair(child) for child in family]
        now = time.monotonic()
        rhythm = processes.rhythm_of(each)
        made.rank, made.age_s, made.limit_s = each.rank, rhythm.age_s(now), rhythm.limit_s
        made.phase = ranks.declared(each.lanes)
        made.shows_age = False  # ages are in the table, and the sentence stays as long as it is true
        records = ranks.newest(each.lanes, 1)
        made.step = records[-1][1] if records else None
        return made

    def _compare(self, observed: list[Observed], known: Activities, processes: Processes) -> Found:
        live_dir = processes.live_dir()
        ended = ranks.ended(live_dir, time.time_ns())
        seen = {each.pid: each for each in processes.ends()}
        for each in ended:
            if each.pid in seen:  # by a clock that nobody sets
                each.ended_s = time.monotonic() - seen[each.pid].at
        report = Report(here(live_dir), observed, ended, known.gpus)
        self.job = job = put_together([report])
        found = job.verdict
        is_whole = not job.missing and processes.is_all_here()
        stands = standstill(job.processes, found, known, is_whole=is_whole)
        if stands in (Standstill.YES, Standstill.PERHAPS):
            report.kernel_log = self._kernel_log_now()
        blamed = next((each for each in job.processes if each.key in found.blamed), None)
        return Found(
            stands,
            found.kind,
            found.text,
            blamed.rank if blamed is not None else None,
            blamed.step if blamed is not None else None,
        )

    def _kernel_log_now(self) -> KernelLog:
        """Read it again where it was read a while ago: it may have megabytes, and nobody is judged by it."""
        now = time.monotonic()
        if now - self._log_at > _LOG_EVERY_S:
            self._log, self._log_at = kernel_log.read(), now
        return self._log


def _is_it(each: Seen, sample: Sample | None) -> bool:
    return sample is not None and sample.start_ticks == each.ticks

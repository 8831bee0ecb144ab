"""The observer: watches whether the run gets on, with nothing asked, and keeps a verdict while it does not.

Forked by the supervisor (`observer_keeper.py`). A look every `observe_s` reads words of shared memory; stacks are
sampled only while somebody is late (`observe/stall.py`). Opens nothing outside tmpfs and /proc; what may hang runs in
children with a deadline.

Invariants:

- nothing here is needed for logging: it may be killed, hang or be off;
- ages are counted by the monotonic clock, from when this process saw a count grow; the next observer goes on from
  `why.json`;
- where time has passed without looks, because the machine was suspended or this process stopped, nobody is late for it;
- it ends when its supervisor asks for it, and when supervisor and worker are gone for good.
"""

from __future__ import annotations

import time

from logclient.shm import layout

from ...observe.gaps import Gaps, suspended_s
from ...observe.rhythm import Limits
from ...observe.stall import OK, STALLED, Stall, StallEpisode, Standing
from ...observe.system.metrics import SystemMetrics
from ..host.crash_report import describe
from ..host.pauses import Pipes, Sleeper
from ..host.shm_dir_handle import ShmDirHandle
from ..host.status import StatusPage
from ..settings import Settings
from .alerting import Alerting
from .processes import Processes
from .sampler import Sampler
from .why_files import WhyFiles

LEFT, FAILED = 0, 4  # exit codes

_ALONE_S = 60.0  # without a sign of supervisor and worker
_DELIVER_S = 10.0  # for alerts that are not sent when the agent leaves
_SHORT_S = 0.25  # where nobody can end a pause


def run(handle: ShmDirHandle, status: StatusPage, settings: Settings, pipes: Pipes) -> int:
    """The whole life of this process; its exit code."""
    for kept in handle.kept():
        handle.let_go(kept)  # a descriptor of ours would hold memory that is given back
    try:
        observer = Observer(handle, status, settings, pipes)
        while observer.is_wanted():
            observer.look()
            observer.sleep()
        observer.close()
    except Exception as error:  # noqa: BLE001 - a traceback would read source files
        WhyFiles(handle).write_failure(describe(error))
        return FAILED
    return LEFT


class Observer:
    """One per run and node."""

    def __init__(self, handle: ShmDirHandle, status: StatusPage, settings: Settings, pipes: Pipes) -> None:
        now = time.monotonic()
        self.processes = Processes(handle, Limits(settings.late_after_s, settings.late_factor))
        self.stall = Stall(settings.stall_samples_s, now)
        self._status = status
        self._settings = settings
        self._pipes = pipes
        self._sleeper = Sleeper(pipes.observer)
        self._sampler = Sampler(self._beat)
        self._files = WhyFiles(handle)
        self._written: tuple[Standing, tuple[StallEpisode, ...]] | None = None
        self._system = self._metrics(handle) if settings.system_s else None
        self._gaps = Gaps(suspended_s())
        self._beat()
        self.processes.look(now)
        self._go_on()
        self._alerting: Alerting | None = None  # without `observe` only the host is measured
        if settings.observes:
            self._alerting = Alerting(handle, status.words, settings, self.processes)

    def _go_on(self) -> None:
        """Go on from what an earlier observer knew."""
        found = self._files.load()
        if found is None:
            return
        standing, stalls, records = found
        self.stall.adopt(standing, stalls)
        for key, each in self.processes.all.items():
            count, since = records.get(key, (-1, 0.0))
            if count == each.rhythm.count:
                each.rhythm.restart(since)
        newest = max((each.rhythm.since for each in self.processes.watched()), default=None)
        if newest is not None:
            self.processes.run.restart(newest)

    def _metrics(self, handle: ShmDirHandle) -> SystemMetrics:
        words = self._status.words
        own = (layout.AGENT_SUPERVISOR, layout.AGENT_WORKER, layout.AGENT_SHIPPER, layout.AGENT_OBSERVER)
        missed = words[layout.AGENT_OBSERVER_RESTARTS]
        return SystemMetrics(
            handle.shm_dir,
            self._settings.system_s,
            lambda: [words[each] for each in own if words[each]],
            missed,
        )

    def is_wanted(self) -> bool:
        """Is this process to go on?"""
        beats = layout.AGENT_SUPERVISOR_BEAT, layout.AGENT_WORKER_BEAT
        is_alone = min(map(self._status.age_s, beats)) > _ALONE_S
        return not (self._status.words[layout.AGENT_OBSERVER_STOP] or is_alone)

    @property
    def standing(self) -> Standing:
        """The state of the run on this node, as far as this observer knows it."""
        return self.stall.standing

    def look(self) -> None:
        """Look once; take samples where they are due."""
        self._beat()
        now = time.monotonic()
        if self._alerting is not None:
            self._look_for_progress(now, self._alerting)
        else:
            self.processes.look(now)
        if self._system is not None:
            there = [each for each in self.processes.all.values() if each.is_here and not each.is_over]
            self._system.look(time.monotonic(), {each.pid: each.rank for each in there})

    def _look_for_progress(self, now: float, alerting: Alerting) -> None:
        if self._gaps.is_after_one(now, suspended_s()):
            self._restart(now)
        self.processes.look(now)
        self._judge(now)
        if self.stall.sample_due <= now:
            found = self._sampler.sample(self.processes)
            now = time.monotonic()
            self.processes.look(now)  # what moved meanwhile is not late any more
            self._judge(now)
            self.stall.sample(now, found)
            self._write(is_new=True)
        self._write(is_new=False)
        alerting.look(now, self.standing)

    def _judge(self, now: float) -> None:
        self.stall.look(now, self.processes.sentence(self.processes.late(now), now))
        if self.standing.kind == OK:
            self._sampler.forget()

    def _restart(self, now: float) -> None:
        """Nobody is late for the time in which the machine was suspended, or this process did not run."""
        if self.standing.kind != STALLED:
            self.processes.restart(now)
        self._sampler.forget()
        self.stall.restart(now)

    def sleep(self) -> None:
        """Sleep until the next look or sample, a byte in the pipe, or the end of a process."""
        self._sleeper.watch(self.processes.watches())
        now = time.monotonic()
        due_s = self.stall.sample_due - now
        if self._alerting is not None:
            due_s = min(due_s, self._alerting.due_in_s)
        if self._system is not None:
            due_s = min(due_s, self._system.due_in_s(now, self._settings.observe_s))
        pause_s = max(0.0, min(self._settings.observe_s, due_s))
        if not self._sleeper.may_be_long:
            pause_s = min(pause_s, _SHORT_S)
        self._gaps.plan(now + pause_s)
        self._sleeper.sleep(pause_s)

    def close(self) -> None:
        """The run is over on this node, or another observer goes on."""
        if self._system is not None:
            self._system.close()
        if self._alerting is not None:
            now = time.monotonic()
            self.processes.look(now)
            is_over = not self.processes.watched()
            if is_over:
                self.stall.close(now)
                self._write(is_new=False)
            self._alerting.end(now, self.standing, is_over=is_over)
        self._status.words[layout.AGENT_OBSERVER_STOP] = layout.OBSERVER_HAS_LET_GO
        if self._alerting is not None:
            self._alerting.deliver(_DELIVER_S)

    # ---- inside -------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        self._status.beat(layout.AGENT_OBSERVER_BEAT)

    def _write(self, *, is_new: bool) -> None:
        """Write the files where something is new; `is_new`: the evidence is."""
        words = self._status.words
        words[layout.AGENT_OBSERVED] = layout.OBSERVED_STATES.index(self.standing.kind)
        standing, stalls = self.standing, tuple(self.stall.stalls)
        if not is_new and (standing, stalls) == self._written:
            return
        records = {key: (each.rhythm.count, each.rhythm.since) for key, each in self.processes.all.items()}
        if not self._files.write(standing, stalls, self._sampler.job, records):
            return  # tmpfs is full: with the next look again
        if (standing, stalls) != self._written:
            words[layout.AGENT_OBSERVER_WRITTEN] += 1
            self._pipes.worker.ring()
        self._written = standing, stalls

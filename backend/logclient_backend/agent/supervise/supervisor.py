"""The supervisor: holds the election lock, forks workers, restarts them. Small, and independent of any disk.

Runs as the agent's first lasting process. Before its first fork it imports all that workers need and makes those
pages resident; afterwards it opens nothing outside tmpfs and /proc, so a restart works with the interpreter's own
disk frozen. The code of observers follows once one of them has shown that its disk answers (`observer_keeper.py`).

Invariants:

- one supervisor per shm directory (`election.py`), and one worker that works: the one before it is killed first, or
  in another PID namespace has been silent for long and ends at its next look;
- a worker that died or shows no progress is replaced at once; deaths *without* progress are counted, slow the
  restarts down and end them at a limit;
- a worker that SIGKILL does not reach (state D) is left behind, not waited for: it never runs a line of ours again;
- a worker whose supervisor died forks another, and that inherits what this one knew;
- the process that ships (`ship_supervisor.py`), the observer (`observer_keeper.py`), and the one that looks for a stop
  file (`stop_file.py`), where one is set, are kept running beside the worker, and end before their supervisor does;
  so does the one that looks once what the program runs in (`capture.py`).
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import NoReturn

from logclient.config import token_variable
from logclient.shm import layout, modes
from logclient.shm.proc import pid_namespace
from logclient.shm.shm_dir import ShmDir
from logclient.shm.wake import wake

from ..host import rlimits
from ..host.crash_report import Handover
from ..host.pauses import REST_SHARE, Pipes, Sleeper
from ..host.process_handle import Watch
from ..host.shm_dir_handle import ShmDirHandle
from ..host.status import StatusPage
from ..media.media_keeper import MediaKeeper
from ..observer.observer_keeper import ObserverKeeper
from ..output.segment_pool import Memory
from ..settings import Settings
from ..shipping.ship_supervisor import ShipKeeper
from ..worker import KEPT, STORED, Worker
from . import cleanup, election, inherited, page_pinning, shutdown
from .capture import Capture
from .stop_file import StopFile

_LOOK_S = 2.0  # at rest; the end of a worker, a newcomer and a line to write end it at once
_SHORT_S = 0.25  # where nobody can, and while a worker that has said that it leaves may hang
_MAX_BACKOFF_S = 5.0
_KILL_S = 1.0
_LONG_LIFE_S = 60.0  # a worker that lived so long did not die of what killed the one before


class Promoted(BaseException):
    """Raised in a child of a worker, to unwind and let go of all that the worker held."""


class Supervisor:
    """One per run and node."""

    def __init__(
        self, shm_dir: ShmDir, only_server: str | None = None, *, sends_alerts: bool = False
    ) -> None:
        """`only_server`: the address that the token in our environment is meant for, where this run may have another.

        `sends_alerts`: there is a file of targets. Raises OSError where the shm directory is gone.
        """
        rlimits.raise_soft()
        self.handle = ShmDirHandle(shm_dir)
        self.settings = Settings(shm_dir.facts)
        self.status = StatusPage(self.handle.file("agent.status"))
        self._handover = Handover()
        self._lock: int | None = None
        self._has_given_up = False
        self._worker = Watch(0)
        self._progress = self.status.progress()
        self._deaths = 0
        self._only_server = only_server
        self._sends_alerts = sends_alerts
        self._pipes: Pipes | None = None
        self._watchful_until = 0.0
        self._beat_seen = 0
        self._awake_since = self._started_worker = time.monotonic()

    def run(self) -> int:
        """Supervise until the run is over on this node; returns the process's exit code."""
        shm_dir = self.handle.shm_dir
        os.umask(modes.umask_of(shm_dir.facts))  # not that of the run whose agent found this one
        lock = election.win(self.handle, self.status)
        if lock is None:
            return 0
        if election.has_foreign_worker(self.status, lambda: wake(shm_dir)):
            os.close(lock)
            return 0
        self.status.beat(layout.AGENT_CALLED_NS)  # what comes before the first worker takes a while
        page_pinning.prepare()
        if not self._be_supervisor(lock):
            page_pinning.read_mapped_files()
        words = self.status.words
        ours = str(self.handle.shm_dir.facts.get("server") or "") if token_variable() else None
        cleanup.start(self.handle, lambda shm_dir: Supervisor(shm_dir, only_server=ours).run())
        worker = Watch(words[layout.AGENT_WORKER], words[layout.AGENT_WORKER_TICKS])
        if words[layout.AGENT_WORKER_TICKS] and not worker.has_stopped_working():
            self._worker = worker  # its supervisor died just now
        else:
            Memory(self.handle, self.settings.segment_bytes).prepare()
            self._start_worker()
        return self._watch()

    def _be_supervisor(self, lock: int | None) -> bool:
        """True if our pages are locked in memory."""
        self._lock = lock
        self._me = os.getpid()
        self._left_behind: list[Watch] = []
        words = self.status.words
        words[layout.AGENT_CLOSING] = words[layout.AGENT_GAVE_UP] = 0
        words[layout.AGENT_PID_NAMESPACE] = pid_namespace()
        words[layout.AGENT_SUPERVISOR] = self._me
        self._pipes = pipes = self._pipes or Pipes(self.handle)
        self._sleeper = Sleeper(pipes.supervisor)
        self._shipping = ShipKeeper(self.handle, self.status, self.settings, pipes, self._only_server)
        self._stop_file = StopFile(self.handle, self.status, pipes.worker, self.settings.stop_file)
        self._media = MediaKeeper(self.handle, self.status, self.settings, pipes)
        self._capture = Capture(self.handle, self.status, pipes.worker, self.settings)
        self._observing = ObserverKeeper(
            self.handle, self.status, self.settings, pipes, sends_alerts=self._sends_alerts
        )
        return page_pinning.lock_pages()

    # ---- watching ---------------------------------------------------------------------------------------

    def _watch(self) -> int:
        try:
            return self._watch_worker()
        finally:
            self._end_others()

    def _watch_worker(self) -> int:
        while True:
            self._look()
            ended = self._wait(self._pause_s())
            stuck = not ended and self._is_stuck()
            if not ended and not stuck:
                continue
            cause = self._worker.decision() if ended else None
            code = cause.exit_code if cause else None
            if code == STORED:
                self._end_others()  # before their files go
            leaves = {KEPT: shutdown.keep, STORED: shutdown.leave}.get(-1 if code is None else code)
            if leaves is not None and leaves(self.handle, self.status):
                return 0
            if leaves is not None:  # somebody came at the last moment
                self._worker.reap()
                self._pause(_SHORT_S)
                self._start_worker()
            elif not self._restart(stuck):
                self._give_up()
                return 1

    def _give_up(self) -> None:
        """Say so, and let the next agent in at once: who reads that, and finds the lock held, waits for nobody."""
        self._end_others()
        self._has_given_up = True
        self.status.words[layout.AGENT_GAVE_UP] = 1
        if self._lock is not None:
            os.close(self._lock)  # frees it
            self._lock = None

    def _end_others(self) -> None:
        if self._has_given_up:
            return  # they have ended, and the page may be another agent's by now
        self._stop_file.end()
        self._capture.end()
        self._observing.end()
        self._media.end()
        self._shipping.end()

    def _look(self) -> None:
        self.status.beat(layout.AGENT_SUPERVISOR_BEAT)
        self.handle.look()
        self._shipping.look()
        self._stop_file.look()
        self._media.look()
        self._capture.look()
        if self._observing.look() and not page_pinning.lock_pages():
            page_pinning.read_mapped_files()
        self._left_behind = [worker for worker in self._left_behind if not worker.reap()]

    def _pause_s(self) -> float:
        """Return the seconds until something may be due: a worker that is silent is stuck at a time known now."""
        if not self._worker.is_open:
            return 0.05  # a kernel without pidfd
        now = time.monotonic()
        if not self._sleeper.may_be_long or now < self._watchful_until:
            return _SHORT_S
        silent_s = self.status.age_s(layout.AGENT_WORKER_BEAT)
        until_stuck_s = self.settings.stall_s - min(silent_s, now - self._awake_since)
        pause_s = min(
            _LOOK_S,
            REST_SHARE * self.settings.stall_s,
            self._shipping.due_in_s(now),
            self._observing.due_in_s(now),
            self._media.due_in_s(now),
            self._capture.due_in_s(now),
        )
        return max(0.01, min(pause_s, until_stuck_s + 0.01))

    def _wait(self, timeout_s: float) -> bool:
        """Has the worker ended, within that time at most?"""
        before = time.monotonic()
        self._sleeper.watch(
            [
                self._worker,
                *self._shipping.watches(),
                *self._observing.watches(),
                *self._media.watches(),
                *self._capture.watches(),
            ]
        )
        if self._sleeper.sleep(timeout_s):
            self._watchful_until = time.monotonic() + _LOOK_S
        now = time.monotonic()
        if now - before > timeout_s + 1.0:
            self._awake_since = (
                now  # we were stopped ourselves, and so was the worker perhaps: let it beat first
            )
        return self._has_worker_stopped()

    def _has_worker_stopped(self) -> bool:
        """True also if only its main thread is dead, which /proc shows: asked where it has not beaten since."""
        beat = self.status.words[layout.AGENT_WORKER_BEAT]
        if beat != self._beat_seen:
            self._beat_seen = beat
            return self._worker.has_ended()
        return self._worker.has_stopped_working()

    def _is_stuck(self) -> bool:
        silent_s = self.status.age_s(layout.AGENT_WORKER_BEAT)
        return min(silent_s, time.monotonic() - self._awake_since) > self.settings.stall_s

    # ---- workers ------------------------------------------------------------------------------------------

    def _restart(self, was_stuck: bool) -> bool:
        """Replace the worker; False when too many died without any progress."""
        self._kill()  # one that seems dead, too: two at work would spoil each other's segments
        # `decision`, not `cause`: its main thread is dead, and other threads may take a moment longer
        self._handover.conclude(self._worker.pid, self._worker.decision(), was_stuck=was_stuck)
        if not self._worker.reap():
            self._left_behind.append(self._worker)
        progress = self.status.progress()
        if progress != self._progress or time.monotonic() - self._started_worker > _LONG_LIFE_S:
            self._deaths = 0
        self._progress = progress
        self._deaths += 1
        if self._deaths > self.settings.restart_limit:
            return False
        if self._deaths > 1:
            self._pause(min(_MAX_BACKOFF_S, 0.1 * 2 ** (self._deaths - 2)))
        self.status.words[layout.AGENT_RESTARTS] += 1
        self._start_worker()
        return True

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._look()
            time.sleep(min(_SHORT_S, max(0.0, until - time.monotonic())))

    def _kill(self) -> None:
        """Kill a worker.

        One in state D stays until its I/O returns; the pending SIGKILL then ends it before it runs our code.
        """
        self._worker.kill()
        deadline = time.monotonic() + _KILL_S
        while not self._worker.has_stopped_working() and time.monotonic() < deadline:
            time.sleep(0.005)

    def _start_worker(self) -> None:
        self.status.beat(layout.AGENT_WORKER_BEAT)
        self.handle.look()
        pid = os.fork()
        if pid == 0:
            self._in_child(self._be_worker)
        self._started_worker = time.monotonic()
        self._note_worker(pid)

    def _note_worker(self, pid: int) -> None:
        """The one that works; told by itself too, before it does, in case its supervisor dies this instant."""
        self._worker = Watch(pid)
        words = self.status.words
        words[layout.AGENT_WORKER_TICKS] = 0
        words[layout.AGENT_WORKER] = pid
        words[layout.AGENT_WORKER_TICKS] = self._worker.ticks

    def _in_child(self, task: Callable[[], int]) -> NoReturn:
        code = 1
        try:
            code = task()
        except BaseException as error:  # noqa: BLE001 - a traceback would read source files
            self._handover.last_words(error)
        finally:
            os._exit(code)

    # ---- in a worker ----------------------------------------------------------------------------------------

    def _be_worker(self) -> int:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self._boss = Watch(self._me)
        self._note_worker(os.getpid())
        before = inherited.open_files()
        assert self._pipes is not None
        worker = Worker(self.handle, self.status, self.settings, self._handover, self._pipes)
        try:
            code = worker.run(self._see_to_boss)
            self._pipes.supervisor.ring()  # a thread that hangs may keep this process from ending
            return code
        except Promoted:
            worker.abandon()
        del worker
        gc.collect()  # its mappings: they would keep memory that is given back
        ours = (self._pipes, self.handle)
        inherited.close_files_since(before, {fd for each in ours for fd in each.descriptors()})
        return self._be_promoted()

    def _see_to_boss(self) -> Watch:
        """In a worker, every two seconds at least: is there a supervisor? Else one is forked. Returns its watch."""
        if self._boss.has_ended():
            self._replace_boss()
        return self._boss

    def _replace_boss(self) -> None:
        self._boss.reap()
        words = self.status.words
        if words[layout.AGENT_PID_NAMESPACE] != pid_namespace():
            return  # taken over from elsewhere: we end as soon as a worker is at work there
        known = words[layout.AGENT_SUPERVISOR]
        if known != self._boss.pid:
            self._boss = Watch(known)  # another process of the run started it
            return
        lock = election.try_lock(self.handle)
        if lock is not None:
            os.close(lock)  # frees it: a record lock belongs to its process, so the child must take its own
        elif not self.handle.is_removed:
            return  # somebody is just about to tell its PID
        pid = os.fork()
        if pid == 0:
            raise Promoted
        self._boss = Watch(pid)

    def _be_promoted(self) -> int:
        """In a child forked by a worker: supervise that worker (`_worker` is it already), which is not our child."""
        os.setsid()
        lock = election.try_lock(self.handle)
        if lock is None and not self.handle.is_removed:
            return 0
        self._be_supervisor(lock)
        return self._watch()

"""The supervisor: holds the election lock, forks workers, restarts them. Small, and independent of any disk.

Runs as the agent's first lasting process. Before its first fork it imports all that workers need and makes those
pages resident; afterwards it opens nothing outside tmpfs and /proc, so a restart works with the interpreter's own
disk frozen.

Invariants:

- one supervisor per meeting place: a record lock on `agent.lock`, and the path still leads to that file;
- a worker that died or shows no progress is replaced at once; deaths *without* progress are counted, slow the
  restarts down and end them at a limit;
- a worker that SIGKILL does not reach (state D) is left behind, not waited for;
- it holds a descriptor of every lane file: removal of the folder costs new producers only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time

from logclient import layout
from logclient.meeting import Meeting
from logclient.owner import is_locked, start_ticks

from . import attach, resident
from .settings import Settings
from .status import StatusPage
from .terminal import Terminal
from .worker import Worker

_LOOK_S = 0.25
_CLOSING_WAIT_S = 10.0
_MOST_BACKOFF_S = 5.0


class Supervisor:
    """One per run and node."""

    def __init__(self, meeting: Meeting, terminal: int = -1) -> None:
        """`terminal`: the descriptor of the trainer's standard error, where that is a file; else -1."""
        self.meeting = meeting
        self.terminal = Terminal(meeting, terminal)
        self.settings = Settings(meeting.facts.get("settings") or {})
        self.status = StatusPage(meeting.file("agent.status"))
        self._lock = -1
        self._worker = 0
        self._worker_ticks = 0
        self._is_child = True  # the worker was forked by us, not found
        self._kept: dict[str, int] = {}
        self._deaths = 0

    def run(self) -> int:
        """Until the run is over on this node; the process's exit code."""
        if not self._elect():
            return 0
        self.status.words[layout.AGENT_CLOSING] = 0
        self.status.words[layout.AGENT_GAVE_UP] = 0
        self.status.words[layout.AGENT_SUPERVISOR] = os.getpid()
        self.status.beat(layout.AGENT_SUPERVISOR_BEAT)
        resident.prepare()
        self._sweep_siblings()
        worker = self.status.words[layout.AGENT_WORKER]
        if start_ticks(worker) and not self._is_stuck():  # its supervisor died just now
            return self.take_over(worker, self._lock)
        self._start_worker()
        return self._watch()

    def take_over(self, worker: int, lock: int) -> int:
        """Go on in a process forked by a worker whose supervisor died; that worker is not our child."""
        self._lock = lock
        self._worker, self._worker_ticks, self._is_child = worker, start_ticks(worker), False
        self.status.words[layout.AGENT_SUPERVISOR] = os.getpid()
        return self._watch()

    # ---- election ---------------------------------------------------------------------------------------

    def _elect(self) -> bool:
        deadline = time.monotonic() + _CLOSING_WAIT_S
        while True:
            lock = try_lock(self.meeting.file("agent.lock"))
            if lock is not None:
                self._lock = lock
                return True
            if not os.path.isdir(self.meeting.path):
                return False
            if not self.status.words[layout.AGENT_CLOSING] or time.monotonic() > deadline:
                return False  # the holder serves the newcomer too
            time.sleep(0.02)

    def _sweep_siblings(self) -> None:
        """Runs of this user that died with their agent: one for each, which stores what is left and goes."""
        base = os.path.dirname(self.meeting.path)
        for name in os.listdir(base):
            path = os.path.join(base, name)
            if path == self.meeting.path or not os.path.exists(os.path.join(path, "run.json")):
                continue
            if is_locked(os.path.join(path, "agent.lock")):
                continue
            self._start_for_sibling(path)

    def _start_for_sibling(self, path: str) -> None:
        from logclient import meeting as meetings

        other = meetings.read(path)
        if other is None or os.fork() != 0:
            return
        code = 1
        try:
            os.setsid()
            os.close(self._lock)  # record locks stay with our parent
            supervisor = Supervisor(other)
            code = supervisor.run() if os.fork() == 0 else 0
        finally:
            os._exit(code)

    # ---- workers ------------------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        self.status.beat(layout.AGENT_WORKER_BEAT)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = self._be_worker()
            finally:
                os._exit(code)
        self._worker, self._worker_ticks, self._is_child = pid, start_ticks(pid), True
        self.status.words[layout.AGENT_WORKER] = pid

    def _be_worker(self) -> int:
        os.close(self._lock)
        supervisor = [os.getppid()]
        worker = Worker(self.meeting, self.status, self.settings, dict(self._kept))

        def guard() -> None:
            if os.getppid() != supervisor[0] and not _is_running(supervisor[0]):
                supervisor[0] = self._found_supervisor() or supervisor[0]

        worker.run(guard)
        return 0

    def _found_supervisor(self) -> int:
        """In a worker whose supervisor is gone: fork another; its PID, or 0 where one is there already."""
        lock = try_lock(self.meeting.file("agent.lock"))
        if lock is None:
            return self.status.words[layout.AGENT_SUPERVISOR]
        os.close(lock)  # frees it: a record lock belongs to the process, and our child must take its own
        worker = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setsid()
                mine = try_lock(self.meeting.file("agent.lock"))
                code = 0 if mine is None else self.take_over(worker, mine)
            finally:
                os._exit(code)
        return pid

    def _watch(self) -> int:
        while True:
            self.status.beat(layout.AGENT_SUPERVISOR_BEAT)
            self._keep_descriptors()
            self.terminal.look()
            ended, code = self._worker_ended()
            if ended and code == 0:
                if self._leave():
                    return 0
                self._start_worker()
            elif ended or self._is_stuck():
                if not self._restart():
                    return 1
            time.sleep(_LOOK_S if not ended else 0)

    def _worker_ended(self) -> tuple[bool, int]:
        if self._is_child:
            try:
                pid, status = os.waitpid(self._worker, os.WNOHANG)
            except ChildProcessError:
                return True, 1
            return pid != 0, os.waitstatus_to_exitcode(status) if pid else 0
        if start_ticks(self._worker) == self._worker_ticks != 0:
            return False, 0
        return True, 1

    def _is_stuck(self) -> bool:
        return self.status.age_s(layout.AGENT_WORKER_BEAT) > self.settings.stall_s

    def _restart(self) -> bool:
        """Replace the worker; False when too many died without any progress."""
        _kill(self._worker)
        progress = self.status.progress()
        self._deaths = 0 if progress != self._progress else self._deaths + 1
        self._progress = progress
        if self._deaths > self.settings.restart_limit:
            self.status.words[layout.AGENT_GAVE_UP] = 1
            return False
        if self._deaths:
            time.sleep(min(_MOST_BACKOFF_S, 0.1 * 2 ** (self._deaths - 1)))
        self.status.words[layout.AGENT_RESTARTS] += 1
        self._start_worker()
        return True

    _progress = (0, 0, 0)

    def _keep_descriptors(self) -> None:
        """Open what is new in the folder; close what producers or workers removed."""
        try:
            names = {name for name in os.listdir(self.meeting.path) if attach.is_lane_file(name)}
        except OSError:
            return  # the folder is gone: what we hold stays
        for name in names - self._kept.keys():
            try:
                self._kept[name] = os.open(self.meeting.file(name), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                continue
        if names or os.path.isdir(self.meeting.path):
            for name in self._kept.keys() - names:
                os.close(self._kept.pop(name))

    # ---- the end ------------------------------------------------------------------------------------------

    def _leave(self) -> bool:
        """Everything is stored: remove the meeting place, unless somebody came meanwhile."""
        self.status.words[layout.AGENT_CLOSING] = 1
        path = self.meeting.path
        aside = os.path.join(os.path.dirname(path), f".gone-{os.urandom(6).hex()}")
        try:
            os.rename(path, aside)  # from here on nobody can come in by this path
        except OSError:
            return True  # removed by somebody else
        left = [name for name in os.listdir(aside) if attach.is_lane_file(name.removesuffix(".new"))]
        if left and not os.path.exists(path):
            os.rename(aside, path)
            self.status.words[layout.AGENT_CLOSING] = 0
            return False
        shutil.rmtree(aside, ignore_errors=True)
        try:
            os.rmdir(os.path.dirname(path))
        except OSError:
            pass  # other runs are there
        return True


def try_lock(path: str) -> int | None:
    """The descriptor that holds the lock on the file at `path`; None where another process does."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        here, there = os.fstat(fd), os.stat(path)
        if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


def _is_running(pid: int) -> bool:
    return start_ticks(pid) != 0


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except OSError:
        return
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:  # in state D it never comes: left behind
        try:
            done, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return
        if done:
            return
        time.sleep(0.005)

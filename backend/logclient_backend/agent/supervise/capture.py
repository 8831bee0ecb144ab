"""Environment of the run's program: commit, packages, machine, command line, found by a child that may hang.

`Capture` runs in the supervisor, with each of its looks. The worker asks, once for each attempt, as it has read which
process owns the run (`drain/environments.py`). A child then collects (`observe/environment/`), and leaves
`environment.json` in the shm directory, which the worker takes into the node's documents.

::

    {"process": hex, "captured_ns": n, "environment": {...}}

Invariants:

- the program does nothing for it, and nothing waits for it: a run that is over before the child is has none, and one
  that is over within a second starts no child;
- the child is in a process group of its own, with the children that it asks: at its deadline, and when the agent
  leaves, all of them are killed;
- a child that cannot be killed (state D) is left behind, and there is no other one until it has ended.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time

from logclient.config import variables_of_program
from logclient.shm import layout, modes
from logclient.shm.proc import start_ticks
from logclient.shm.shm_dir import AGENT_PATH

from ..host.crash_report import describe
from ..host.pauses import Pipe
from ..host.process_handle import Watch
from ..host.shm_dir_handle import ShmDirHandle
from ..host.status import StatusPage
from ..settings import Settings

FILE = "environment.json"
ASKED = "capture"  # file with id, PID and start of the process that is asked about
_SCRATCH = "capture-scratch"  # folder on tmpfs, for a git directory of our own
_LIMIT_S = 60.0  # of the child; its parts have deadlines of their own
_NICE = 10
_START_AFTER_S = 1.0  # a run that is over within that time pays nothing for it


class Capture:
    """Keeps track of one child; one per supervisor."""

    def __init__(self, handle: ShmDirHandle, status: StatusPage, worker: Pipe, settings: Settings) -> None:
        """`worker` is rung when something was found."""
        self._handle = handle
        self._status = status
        self._worker = worker
        self._wants = settings.captures
        self._child: Watch | None = None
        self._deadline = 0.0
        self._done = status.words[layout.AGENT_CAPTURE_WRITTEN]  # the question that was answered, or given up
        self._is_first = True
        self._not_before = time.monotonic() + _START_AFTER_S

    def look(self) -> None:
        """Begin where the worker has asked, and end a child that is late."""
        if self._child is not None:
            if not self._child.has_ended():
                if time.monotonic() > self._deadline:
                    self._kill()
                return
            self._child.reap()
            self._child = None
            self._clear()
        asked = self._status.words[layout.AGENT_CAPTURE_ASKED]
        if self._wants and asked != self._done and time.monotonic() >= self._not_before:
            self._done = asked
            self._start()

    def due_in_s(self, now: float) -> float:
        """Seconds until it is to begin; infinite: nobody has asked, or it goes on."""
        is_asked = self._status.words[layout.AGENT_CAPTURE_ASKED] != self._done
        return (
            max(0.0, self._not_before - now) if is_asked and self._wants and self._child is None else math.inf
        )

    def watches(self) -> list[Watch]:
        """Return the child, whose end is to be seen at once."""
        return [self._child] if self._child is not None else []

    def end(self) -> None:
        """Nothing more is wanted."""
        if self._child is not None:
            self._kill()
            self._child.reap()
            self._child = None
        self._clear()

    def _start(self) -> None:
        self._clear()
        try:
            pid = os.fork()
        except OSError:  # no process left for this user
            return
        if pid == 0:
            try:
                os.setpgid(0, 0)
                collect_in_child(
                    self._handle, self._status, self._worker, self._wants, is_first=self._is_first
                )
            finally:
                os._exit(0)
        with contextlib.suppress(OSError):  # it has done so itself, or has ended
            os.setpgid(pid, pid)
        self._child, self._deadline = Watch(pid), time.monotonic() + _LIMIT_S
        self._is_first = False

    def _kill(self) -> None:
        """Kill the child and all that it has begun; its PID is its own until it is reaped."""
        if self._child is not None:
            with contextlib.suppress(OSError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def _clear(self) -> None:
        for folder, folders, files in os.walk(self._handle.file(_SCRATCH), topdown=False):
            for name in files:
                modes.remove(os.path.join(folder, name))
            for name in folders:
                modes.remove(os.path.join(folder, name))  # a link to a folder
                modes.remove_if_empty(os.path.join(folder, name))
        modes.remove_if_empty(self._handle.file(_SCRATCH))


def collect_in_child(
    handle: ShmDirHandle, status: StatusPage, worker: Pipe, wants: frozenset[str], *, is_first: bool
) -> None:
    """Collect, in the child. `is_first`: the agent's own variables are those of the program that started it."""
    for kept in handle.kept():
        handle.let_go(kept)  # a descriptor of ours would hold memory that is given back
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.alarm(int(_LIMIT_S) + 5)  # its supervisor may be killed before it
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    import json  # loaded here, as all below: the disk of the interpreter may hang

    from logclient.shm.regular import read_object, read_regular

    from ...observe.environment.collect import collect

    asked = read_object(handle.file(ASKED)) or {}
    pid, number = asked.get("pid"), status.words[layout.AGENT_CAPTURE_ASKED]
    if type(pid) is not int or pid <= 0 or start_ticks(pid) != asked.get("ticks"):
        return  # it has ended, or means nothing here: another process may have its PID
    paths = [os.fsdecode(each) for each in read_regular(handle.file(AGENT_PATH)).split(b"\0") if each]
    os.mkdir(handle.file(_SCRATCH), 0o700)
    scratch = os.path.realpath(handle.file(_SCRATCH))  # those that are asked have no descriptor of ours
    given = variables_of_program()
    try:
        found = collect(
            pid,
            script=str(asked.get("script") or ""),
            paths=paths,
            variables=given if is_first else {"PATH": given.get("PATH", "")},
            scratch=scratch,
            wants_diff="diff" in wants,
            every_variable="env" in wants,
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, that it failed is what is known
        found = {"missing": {"environment": f"looking for it failed: {describe(error)}"}}
    if start_ticks(pid) != asked.get("ticks"):
        return
    content = {"process": asked.get("process"), "captured_ns": time.time_ns(), "environment": found}
    modes.publish(handle.file(FILE), json.dumps(content).encode("utf-8", "replace"))
    status.words[layout.AGENT_CAPTURE_WRITTEN] = number
    worker.ring()

"""Last calls of a process, as its call recorder left them: live, stuck in the kernel, or killed.

The file lies beside the lane file. That of a process which was killed is kept in the shm directory, and in the run
folder when the agent leaves.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from logclient.shm.calls import KEPT, SUFFIX, Call, Calls

from ..runs.live import LiveShmDir

NEWEST = 5  # of a thread, in a report


@dataclass(frozen=True, slots=True)
class LastCall:
    """A call, or the return from one."""

    function: str
    file: str
    line: int  # the first of the function
    is_return: bool
    ago_s: float


@dataclass(frozen=True, slots=True)
class ThreadCalls:
    """The last calls of a thread, oldest first."""

    thread: int  # of the operating system; the PID for the main thread
    calls: tuple[LastCall, ...]


def path_of(folder: str, process: str) -> str:
    """Return the path of the file of calls of a process in a shm directory."""
    return os.path.join(folder, process + SUFFIX)


def last_calls(path: str, most: int = NEWEST) -> tuple[ThreadCalls, ...]:
    """Return the newest calls of each thread; empty where the process records none."""
    try:
        return threads_of(Calls(path), most, time.monotonic())
    except (OSError, ValueError):
        return ()


def threads_of(calls: Calls, most: int, now_s: float | None) -> tuple[ThreadCalls, ...]:
    """Return the newest calls of each thread. Without `now_s` ages count from the newest call of all."""
    found = calls.threads(most)
    if now_s is None:
        now_s = max((each[-1].time_s for each in found.values()), default=0.0)
    return tuple(
        ThreadCalls(thread, tuple(_last(call, now_s) for call in some))
        for thread, some in sorted(found.items(), key=lambda item: (item[0] != calls.pid, item[0]))
    )


def _last(call: Call, now_s: float) -> LastCall:
    return LastCall(call.function, call.file, call.line, call.is_return, max(0.0, now_s - call.time_s))


@dataclass(frozen=True, slots=True)
class Found:
    """A file of calls, and whose it is."""

    path: str
    calls: Calls
    is_alive: bool
    run_id: str
    run_name: str = ""  # empty: not known, the run is over


def in_memory(live_dir: LiveShmDir) -> Iterator[Found]:
    """Yield the files of a live run: of its processes, and of those that were killed."""
    folder = live_dir.shm_dir.path
    for each in live_dir.processes:
        yield from _opened(path_of(folder, each.id), each.is_alive, live_dir.run_id, live_dir.name)
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), KEPT + "*"))):
        yield from _opened(path, False, live_dir.run_id, live_dir.name)


def on_disk(folder: str) -> Iterator[Found]:
    """Yield the files of processes that were killed, in a folder with runs."""
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*", "*", KEPT + "*"))):
        yield from _opened(path, False, os.path.basename(os.path.dirname(os.path.dirname(path))))


def _opened(path: str, is_alive: bool, run_id: str, run_name: str = "") -> Iterator[Found]:
    try:
        yield Found(path, Calls(path), is_alive, run_id, run_name)
    except (OSError, ValueError):
        return

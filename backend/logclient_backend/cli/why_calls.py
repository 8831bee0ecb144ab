"""`logclient why --calls`: the last calls of one process, live or killed."""

from __future__ import annotations

import os
import time
from typing import Any

from logclient.config import Config
from logclient.errors import NoRun

from ..observe import recorded
from ..observe.recorded import Found, ThreadCalls
from ..runs import live
from . import screen
from .text import duration, safe

_MOST, _SHOWN = 20_000, 40  # of a thread: records, that is two a call


def show(run: str | None, who: int, dir: str | None, *, as_json: bool) -> None:
    """Print the last calls of the process with this PID or rank, of a live run or of one that has ended."""
    found = _find(run, who, dir)
    now_s = time.monotonic() if found.is_alive else None
    threads = recorded.threads_of(found.calls, _MOST if as_json else _SHOWN, now_s)
    if as_json:
        screen.print_json(
            {
                "run": found.run_id,
                "pid": found.calls.pid,
                "rank": found.calls.rank,
                "is_alive": found.is_alive,
                "threads_not_recorded": found.calls.without_ring,
                "threads": [described(each) for each in threads],
            }
        )
        return
    rank = "" if found.calls.rank is None else f", rank {found.calls.rank}"
    state = "" if found.is_alive else ", which has ended: times are before its last call"
    screen.show(screen.line((f"process {found.calls.pid}{rank} of run {safe(found.run_id)}{state}", "bold")))
    for each in threads:
        screen.show(*lines_of(each, found.calls.pid, "ago" if found.is_alive else "before"))


def _find(run: str | None, who: int, dir: str | None) -> Found:
    """Return the newest file of that process: the live ones first."""
    found = [each for live_dir in live.scan() for each in recorded.in_memory(live_dir)]
    folder = dir or Config.from_env().dir or "logclient-runs"
    found += recorded.on_disk(folder)
    meant = [each for each in found if run is None or run in each.run_id or run == each.run_name]
    for each in (each for each in meant if each.calls.pid == who):
        return each
    ranks = [each for each in meant if each.calls.rank == who]
    ranks.sort(key=lambda each: (not each.is_alive, -os.stat(each.path).st_mtime))
    if ranks:
        return ranks[0]
    known = ", ".join(str(each.calls.pid) for each in meant[:8]) or "none"
    raise NoRun(
        f"No process with PID or rank {who} has recorded its calls, here or in {folder}; those that have: {known}. "
        "A program records them after `run.trace(...)`, or with LOGCLIENT_TRACE."
    )


def described(each: ThreadCalls) -> dict[str, object]:
    """Return the calls of a thread for programs."""
    return {
        "thread": each.thread,
        "calls": [
            {
                "function": call.function,
                "file": call.file,
                "line": call.line,
                "event": "return" if call.is_return else "call",
                "ago_s": round(call.ago_s, 6),
            }
            for call in each.calls
        ],
    }


def lines_of(each: ThreadCalls, pid: int, when: str = "ago") -> list[Any]:
    """Return the calls of a thread as lines, newest last."""
    name = "main thread" if each.thread == pid else f"thread {each.thread}"
    lines: list[Any] = [screen.line(f"  {name}, newest last")]
    for call in each.calls:
        verb = "returned from" if call.is_return else "called"
        at = f"{safe(call.function)} ({safe(call.file)}:{call.line})"
        lines.append(screen.line(f"    {duration(call.ago_s)} {when}  {verb} {at}"))
    return lines

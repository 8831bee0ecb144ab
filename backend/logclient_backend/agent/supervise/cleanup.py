"""Leftovers of this user's other runs in shared memory: those whose agent died are served again, the rest goes.

Runs in a process of its own that a new supervisor forks, and that is nobody's child. One directory after the other, so
that a node with a hundred dead runs is not flooded with agents.

Invariants:

- directories with an agent are left alone, and so are those of living producers that never had one: they are about to
  start their own, and one of ours would end with our job, not with theirs;
- the election decides if somebody else starts an agent meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from logclient.shm import layout
from logclient.shm import shm_dir as shm_dirs
from logclient.shm.modes import MAKING, is_ours, remove_if_empty
from logclient.shm.owner import is_locked
from logclient.shm.regular import read_regular
from logclient.shm.shm_dir import GONE, ShmDir

from ..host.shm_dir_handle import LANES, SEGMENT, ShmDirHandle, is_lane_file
from .shutdown import remove

_STALE_S = 10.0
_PATIENCE_S = 10.0  # for one directory; afterwards its agent goes on beside the others


def start(handle: ShmDirHandle, supervise: Callable[[ShmDir], int]) -> None:
    """Sweep what lies beside that directory, if there is anything; returns at once."""
    base = os.path.dirname(handle.public)
    left = [path for path in _beside(handle, base) if _is_left(path)]
    if not left:
        return
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            for path in left:
                _sweep(path, supervise)
    finally:
        os._exit(0)


def clear(bases: Iterable[str]) -> None:
    """Remove what agents left that were killed while they removed their directory: no run is in it any more."""
    for base in bases:
        for name in _names(base):
            path = os.path.join(base, name)
            is_free = name.startswith(GONE) and not is_locked(os.path.join(path, "agent.lock"))
            if is_free and is_ours(path) and not any(map(is_lane_file, _names(path))):
                remove(path)
                remove_if_empty(path)
        remove_if_empty(base)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _beside(handle: ShmDirHandle, base: str) -> list[str]:
    return [path for name in _names(base) if (path := os.path.join(base, name)) != handle.public]


def _is_left(path: str) -> bool:
    """Without an agent, and nobody is just making it, starting an agent there, or removing it."""
    try:
        names = os.listdir(path)
    except OSError:
        return False
    if is_locked(os.path.join(path, "agent.lock")):
        return False
    if any(name.endswith(".live") and is_locked(os.path.join(path, name)) for name in names):
        return _had_agent(path)
    return any(map(is_lane_file, names)) or _age_s(path) > _STALE_S


def _had_agent(path: str) -> bool:
    try:
        page = read_regular(os.path.join(path, "agent.status"))
        return any(page[8 * layout.AGENT_SUPERVISOR :][:8])
    except OSError:
        return False


def _sweep(path: str, supervise: Callable[[ShmDir], int]) -> None:
    found = shm_dirs.read(path)
    if found is None:
        if is_ours(path) and _age_s(path) > _STALE_S and not any(map(_may_hold_records, _names(path))):
            remove(path)
            os.rmdir(path)
        return
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            code = supervise(found)
        finally:
            os._exit(code)
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(0.02)


def _may_hold_records(name: str) -> bool:
    """Lanes and staged segments are never removed unread, not where nothing tells whose they are."""
    return name.removesuffix(MAKING).endswith((LANES, SEGMENT))


def _age_s(path: str) -> float:
    try:
        return time.time() - os.lstat(path).st_mtime
    except OSError:
        return 0.0

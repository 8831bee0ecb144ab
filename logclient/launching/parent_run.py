"""The live run of an ancestor, which a child joins.

Runs in the training process: in `init`, and when a process that has called none logs.

A run is found by a variable that its owner hands on (`LOGCLIENT_PARENT`), and where that says nothing, by looking whose
run this process descends from: children that were there before `init` (a pool, a fork server) have no variable.

Invariants:

- a variable alone makes nobody a child: it may also have come by another way than from parent to child (a job that was
  submitted, a file that was sourced). The owner must be an ancestor, by PID and start. That cannot be told in another
  PID namespace, nor when the owner has died and others go on with its run: then the variable is believed;
- a run is live as long as one of its processes holds its lock.
"""

from __future__ import annotations

import os

from .. import config as settings
from ..config import Config
from ..shm import layout
from ..shm import shm_dir as shm_dirs
from ..shm.owner import is_alive, is_locked
from ..shm.proc import pid_namespace, start_ticks
from ..shm.regular import read_start
from ..shm.shm_dir import ShmDir
from .ancestry import ancestors, has_ancestor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_LANES = 512  # files that are looked into, of one run
_self = (0, "")  # this process: its PID, and its part of what children inherit


def handle(path: str) -> str:
    """Return the text by which children inherit the run of this shm directory, which this process owns."""
    global _self
    if _self[0] != os.getpid():  # asked once: `finish` opens no file
        _self = (os.getpid(), f"{os.getpid()}-{start_ticks()}-{pid_namespace()}")
    return f"{_self[1]}:{path}"


def find(chosen: Config | None) -> ShmDir | None:
    """The live run of an ancestor, unless `init` (with `chosen`) names another project, name or id."""
    owner, _, path = (settings.parent_shm_dir() or "").partition(":")
    pid, ticks, namespace = _numbers(owner)
    if pid == os.getpid():
        return None  # it has a run of its own
    shm_dir = shm_dirs.read(path) if path else None
    if shm_dir is not None and _is_live(shm_dir) and _descends(pid, ticks, namespace):
        return shm_dir if _is_meant(shm_dir, chosen) else None
    for shm_dir in _of_ancestors(chosen):
        if _is_meant(shm_dir, chosen):
            return shm_dir
    return None


def inherited_id() -> str | None:
    """Id of the run that was handed on, joined or not."""
    shm_dir = shm_dirs.read((settings.parent_shm_dir() or "").partition(":")[2] or "/nonexistent")
    return None if shm_dir is None else str(shm_dir.run_id)


def _descends(pid: int, ticks: int, namespace: int) -> bool:
    if not namespace or namespace != pid_namespace() or start_ticks(pid) != ticks:
        return True  # cannot be told
    return has_ancestor(pid, ticks)


def _is_live(shm_dir: ShmDir) -> bool:
    try:
        live = [file for file in os.listdir(shm_dir.path) if file.endswith(".live")]
    except OSError:
        return False
    return any(is_locked(shm_dir.file(file)) for file in live)


def _is_meant(shm_dir: ShmDir, chosen: Config | None) -> bool:
    return chosen is None or (
        chosen.project in ("", shm_dir.project)
        and chosen.name in ("", shm_dir.name)
        and chosen.run_id in ("", shm_dir.run_id)
        and not (chosen.run_id and chosen.resume == "never")
    )


def _of_ancestors(chosen: Config | None) -> Iterator[ShmDir]:
    """Runs that an ancestor has open: of the nearest one first, of each the newest first."""
    line = {who: distance for distance, who in enumerate(ancestors())}
    found: list[tuple[int, int, ShmDir]] = []
    for base in shm_dirs.bases(chosen or Config.from_env()):
        try:
            names = os.listdir(base)
        except OSError:
            continue
        for name in names:
            shm_dir = shm_dirs.read(os.path.join(base, name))
            if shm_dir is not None:
                near = min((line[who] for who in _who_is_in(shm_dir) if who in line), default=None)
                if near is not None:
                    found.append((near, -int(shm_dir.created_ns), shm_dir))
    for _, _, shm_dir in sorted(found, key=lambda item: item[:2]):
        yield shm_dir


def _who_is_in(shm_dir: ShmDir) -> Iterator[tuple[int, int]]:
    """(PID, start) of the processes of our PID namespace that have it open."""
    here = pid_namespace()
    if not here:
        return
    try:
        names = [name for name in os.listdir(shm_dir.path) if name.endswith(".lanes")]
    except OSError:
        return
    for name in names[:_MAX_LANES]:
        try:
            head = read_start(shm_dir.file(name), 8 * (layout.DROPPED + 1))
        except OSError:
            continue
        if len(head) < 8 * (layout.DROPPED + 1):
            continue
        words = memoryview(head).cast("Q")
        is_open = words[layout.STATE] == layout.STATE_OPEN and words[layout.DROPPED] != words[layout.FILE_PID]
        pid, ticks = words[layout.FILE_PID], words[layout.FILE_START_TICKS]
        stem = name.removesuffix(".lanes")
        is_here = words[layout.FILE_PID_NAMESPACE] == here
        # an ancestor may have become another program
        if is_open and is_here and is_alive(shm_dir.file(f"{stem}.live"), pid, ticks, here, stem):
            yield pid, ticks


def _numbers(text: str) -> tuple[int, int, int]:
    """Return the numbers of an owner as `handle` writes it; zeros for anything else."""
    parts = text.split("-")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        return 0, 0, 0
    return int(parts[0]), int(parts[1]), int(parts[2])

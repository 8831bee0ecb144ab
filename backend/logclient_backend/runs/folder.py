"""Runs of a folder, and the one that a name means.

Runs in any reader; creates nothing. A run lies in `<dir>/<folder>/<node>/`; when `dir` could not be used it lies in
the home folder, where `wanted.json` names the `dir`; when that did not work either, in shared memory alone.

Invariant: a folder that is damaged, foreign, empty or of a newer version is listed with the reason and hides no other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

from logclient import config as settings
from logclient.errors import NoRun, Unsupported
from logclient.shm.regular import read_regular
from logclient.shm.shm_dir import folder_name

from ..wal.reader import WalReader
from . import edit_file, live, node
from .edits import NONE, Edits
from .live import LiveShmDir
from .node import Node, Process
from .order import Records
from .points import RunReader

_MAX_LISTED = 20


@dataclass(slots=True)
class Found:
    """All that belongs to one run, or to one folder that turned out to be none."""

    name: str  # of the folder
    path: str
    nodes: list[Node] = field(default_factory=list)
    live: dict[str, LiveShmDir] = field(default_factory=dict)  # by node, for those that are live on this host
    problem: str = ""  # why this is no run
    reader: Callable[[], Records] | None = None  # of its records, where they do not lie in folders
    side: str = ""  # whose records are in the place of what was logged
    edits: Edits = NONE
    edits_problem: str = ""  # why there are none

    def of_side(self, side: str) -> Self:
        """Return the same run with the records of a side in the place of what was logged."""
        return replace(self, nodes=[each.of_side(side) for each in self.nodes], live={}, side=side)

    @property
    def id(self) -> str:
        """The run's id; the folder's name where the documents do not tell, or the folder is a renamed copy."""
        for found in self.nodes:
            run_id = node.text(found.run.get("run_id"))
            if run_id and folder_name(run_id) == self.name:
                return run_id
        return self.name

    @property
    def run_name(self) -> str:
        """The name that was given last, an edit's before others; the id where none was."""
        return self.edits.text("name", self.own_name)

    @property
    def own_name(self) -> str:
        """The name by the documents alone."""
        named = [
            (node.whole(found.run.get("created_ns")), node.text(found.run.get("name")))
            for found in self.nodes
        ]
        names = [name for _, name in sorted(named) if name and name != self.id]
        return names[-1] if names else self.id

    @property
    def created_ns(self) -> int:
        """Start of the first attempt; 0 where nothing tells."""
        return min(
            (time for found in self.nodes if (time := node.whole(found.run.get("created_ns")))), default=0
        )

    @property
    def newest_ns(self) -> int:
        """Start of the last attempt."""
        return max((node.whole(found.run.get("created_ns")) for found in self.nodes), default=0)

    def records(self) -> Records:
        """Return the records that are stored now."""
        if self.reader is not None:
            return self.reader()
        return RunReader((found.path for found in self.nodes), side=self.side)

    def last_record_ns(self, process: Process) -> int:
        """Time of the last record of a process that is stored, by what footers (or a store) say; 0 for none."""
        last = 0
        for found in self.nodes:
            if found.id == process.node:
                try:
                    spans = found.spans() if found.spans is not None else WalReader(found.path).spans()
                except OSError:
                    continue
                mine = [span.last_time for span in spans.values() if span.process.hex() == process.id]
                last = max(mine, default=last)
        return last


def find(
    folder: str,
    *,
    live_dirs: list[LiveShmDir] | None = None,
    home: str | None = None,
    is_short: bool = False,
) -> list[Found]:
    """Runs of a folder, oldest first, then what is no run.

    `home` (default: this user's) holds runs that could not go where they should. `is_short`: of each node on a disk
    only what `node.shorten` leaves, so memory does not grow with configs. `NoRun` where there is no such folder and
    nothing lies elsewhere that was meant for it.
    """
    folder = os.path.abspath(folder)
    live_dirs = live.scan() if live_dirs is None else live_dirs
    home = settings.home_folder() if home is None else home
    while True:
        found: dict[str, Found] = {}
        problem = _take_all(found, folder, None, is_short)
        if home and os.path.isdir(home) and not _is_same(home, folder):
            _take_all(found, home, folder, is_short)
        in_memory = _take_live(found, folder, live_dirs)
        if all(live_dir.is_there for live_dir in in_memory):
            break
        # an agent left since `live_dirs` were looked at: what it had is on disk by now, and perhaps was not found there
        live_dirs = [live_dir for live_dir in live_dirs if live_dir.is_there]
    if problem and not found:
        raise NoRun(problem)
    return sorted(found.values(), key=lambda run: (bool(run.problem), run.created_ns, run.name))


def resolve(runs: list[Found], wanted: str | None, folder: str) -> Found:
    """The run with that id, else the newest with that name, else the only one whose id has it as a part.

    Nothing wanted: the newest run. `NoRun` says what there is instead.
    """
    good = [run for run in runs if not run.problem]
    if wanted is None:
        if not good:
            raise NoRun(f"there is no run in {folder}")
        return max(good, key=lambda run: (run.newest_ns, run.name))
    for run in runs:
        if wanted == run.id or (wanted == run.name and run.problem):
            if run.problem:
                raise NoRun(f"{run.path} is no run that can be read: {run.problem}")
            return run
    named = [run for run in good if run.run_name == wanted]
    if named:
        return max(named, key=lambda run: (run.newest_ns, run.name))
    parts = [run for run in good if wanted and wanted in run.id]
    if len(parts) == 1:
        return parts[0]
    if parts:
        raise NoRun(f"{wanted!r} is part of {len(parts)} ids; say more of it:\n{_listed(parts)}")
    if not good:
        raise NoRun(f"there is no run in {folder}")
    raise NoRun(
        f"no run in {folder} has {wanted!r} as its id, in its id, or as its name; there are:\n{_listed(good)}"
    )


def _listed(runs: list[Found]) -> str:
    newest = sorted(runs, key=lambda run: run.newest_ns, reverse=True)
    lines = [
        f"  {run.id}" + (f"  {run.run_name}" if run.run_name != run.id else "")
        for run in newest[:_MAX_LISTED]
    ]
    if len(newest) > _MAX_LISTED:
        lines.append(f"  and {len(newest) - _MAX_LISTED:,} older ones")
    return "\n".join(lines)


def load(name: str, path: str) -> Found:
    """Read one run's folder."""
    run = Found(name, path)
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        run.problem = f"not readable: {error.strerror}"
        return run
    for entry in names:
        where = os.path.join(path, entry)
        if not entry.startswith(".") and os.path.isdir(where) and not os.path.islink(where):
            run.nodes.append(node.load_node(where))
    if edit_file.FILE in names:
        _take_edits(run)
    run.problem = _why_none(run, names)
    return run


def _take_edits(run: Found) -> None:
    try:
        run.edits = run.edits.merged(edit_file.load(run.path))
    except edit_file.Unreadable as error:
        run.edits_problem = str(error)


def _why_none(run: Found, names: list[str]) -> str:
    """Why a folder is no run; empty where it is one: a node has documents, or segments at least."""
    if any(found.raw is not None or found.problem.startswith("its documents") for found in run.nodes):
        run.nodes = [found for found in run.nodes if found.problem != "empty"]
        return ""
    if not names or names == ["wanted.json"]:
        return "empty"
    if not run.nodes:
        return "not a run: holds no node's folder"
    problems = sorted({found.problem for found in run.nodes})
    return problems[0] if problems != ["empty"] else "empty"


def _take_all(found: dict[str, Found], base: str, wanted: str | None, is_short: bool) -> str:
    """Add the runs of `base` (of the home folder: those meant for `wanted`); why not, or empty."""
    try:
        with os.scandir(base) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return f"there is no folder {base}"
    except OSError as error:
        return f"{base} cannot be read: {error.strerror}"
    for name in names:
        path = os.path.join(base, name)
        if name.startswith(".") or (wanted is not None and not _is_meant(path, wanted)):
            continue
        run = load(name, path)
        if is_short:
            for each in run.nodes:
                node.shorten(each)
        if name not in found or found[name].problem:
            found[name] = run
        elif not run.problem:
            found[name].nodes += run.nodes
            found[name].edits = found[name].edits.merged(run.edits)
            found[name].edits_problem = found[name].edits_problem or run.edits_problem
    return ""


def _is_meant(path: str, wanted: str) -> bool:
    """Is this run of the home folder there because `wanted` could not be used?"""
    try:
        content = json.loads(read_regular(os.path.join(path, "wanted.json"), max_bytes=1 << 16))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and _is_same(node.text(content.get("dir")) or "/nonexistent", wanted)


def _take_live(found: dict[str, Found], folder: str, live_dirs: list[LiveShmDir]) -> list[LiveShmDir]:
    """Note which nodes are live here, and add runs that are in shared memory alone (yet); return theirs."""
    in_memory = []
    paths = {os.path.realpath(each.path): (run, each) for run in found.values() for each in run.nodes}
    for live_dir in live_dirs:
        where = live_dir.node_folder
        known = paths.get(os.path.realpath(where)) if where else None
        if known is not None and known[1].raw is not None:
            known[0].live[known[1].id] = live_dir
        elif known is not None or _is_same(str(live_dir.shm_dir.facts.get("dir") or "/nonexistent"), folder):
            _take_memory(found, live_dir, known[1].path if known is not None else live_dir.shm_dir.path)
            in_memory.append(live_dir)
    return in_memory


def _take_memory(found: dict[str, Found], live_dir: LiveShmDir, segments: str) -> None:
    """A node whose documents are not on disk: what the agent keeps of them beside the lanes, else the bare facts."""
    here = Node(segments, live_dir.node)
    facts = live_dir.shm_dir.facts
    try:
        node.take(here, json.loads(read_regular(live_dir.shm_dir.file("ledger.json"))))
    except (OSError, ValueError, RecursionError, Unsupported):
        here.raw = {}
        here.run = {name: facts.get(name) for name in ("run_id", "project", "name", "created_ns")}
    name = folder_name(live_dir.run_id)
    run = found.get(name)
    if run is None or run.problem:
        run = found[name] = Found(name, os.path.dirname(live_dir.node_folder) or live_dir.shm_dir.path)
        _take_edits(run)
    run.nodes = [other for other in run.nodes if other.id != here.id]
    run.nodes.append(here)
    run.live[here.id] = live_dir


def _is_same(a: str, b: str) -> bool:
    return os.path.realpath(a) == os.path.realpath(b)

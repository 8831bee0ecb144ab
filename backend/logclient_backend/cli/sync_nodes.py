"""Work of `logclient sync`: the nodes of the runs in the folders that were named.

A folder may hold runs, be one run's, or be a copied node's: its documents tell whose it is, whatever it is called. What
is no run, or cannot be read, is named with the reason and hides no other.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from logclient.errors import NoRun

from ..runs import edit_file, folder, live, node
from ..runs.edits import NONE, Edits
from ..runs.folder import Found
from ..runs.node import Node
from ..wal.files import REAL
from ..wal.reader import list_stems

_SILENT_S = 600.0  # a node of which nothing was heard for so long is over
_NEWER = "written by a newer logclient"


@dataclass(slots=True)
class Upload:
    """One node of one run, and all folders that hold something of it."""

    run: str
    name: str
    node: str
    folders: list[str] = field(default_factory=list)
    shm_dir: str = ""  # its shm directory, where nothing of it is on a disk
    is_over: bool = False  # nobody adds to it any more
    problem: str = ""  # of its documents: segments are sent anyway
    edits: Edits = NONE  # of the run, as they were when it was found

    def signature(self) -> tuple[object, ...]:
        """Changes when something was written."""
        found: list[object] = []
        for path in self.folders:
            try:
                with os.scandir(path) as entries:
                    found += sorted(
                        (entry.name, facts.st_size, facts.st_mtime_ns)
                        for entry in entries
                        for facts in (entry.stat(follow_symlinks=False),)
                    )
                facts = os.stat(os.path.join(os.path.dirname(path), edit_file.FILE))
                found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
            except FileNotFoundError:
                continue  # nobody has edited the run
            except OSError as error:
                found.append(error.errno)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A run that is not sent, and why."""

    path: str
    reason: str
    is_missing: bool = False  # there is no such folder


def find(folders: list[str]) -> tuple[list[Upload], list[Skipped]]:
    """All uploads, the oldest run first, each node once; and what is none."""
    live_dirs = live.scan()
    uploads: dict[tuple[str, str], Upload] = {}
    skipped: dict[str, Skipped] = {}
    for path in dict.fromkeys(os.path.abspath(each) for each in folders):
        try:
            found = _runs_at(path, live_dirs)
        except NoRun as error:
            skipped[path] = Skipped(path, str(error), is_missing=True)
            continue
        for run in found:
            if run.problem:
                skipped[run.path] = Skipped(run.path, run.problem)
                continue
            for each in run.nodes:
                if each.problem.startswith((_NEWER, "not readable")):
                    skipped[each.path] = Skipped(each.path, each.problem)
                else:
                    _add(uploads, run, each)
    return list(uploads.values()), list(skipped.values())


def _runs_at(path: str, live_dirs: list[live.LiveShmDir]) -> list[Found]:
    """The runs of a folder of runs, the run whose folder it is, or the run of which it is a node."""
    if _is_node(path):
        run = Found(os.path.basename(os.path.dirname(path)), path, [node.load_node(path)])
        _note_live(run, live_dirs)
        return [run]
    run = folder.load(os.path.basename(path), path)
    if not run.problem:
        _note_live(run, live_dirs)
        return [run]
    return folder.find(path, live_dirs=live_dirs, is_short=True)


def _is_node(path: str) -> bool:
    try:
        return bool(list_stems(REAL, path)) or any(name.startswith("documents.") for name in os.listdir(path))
    except OSError:
        return False


def _note_live(run: Found, live_dirs: list[live.LiveShmDir]) -> None:
    by_folder = {
        os.path.realpath(live_dir.node_folder): live_dir for live_dir in live_dirs if live_dir.node_folder
    }
    for each in run.nodes:
        live_dir = by_folder.get(os.path.realpath(each.path))
        if live_dir is not None:
            run.live[each.id] = live_dir


def _add(uploads: dict[tuple[str, str], Upload], run: Found, each: Node) -> None:
    live_dir = run.live.get(each.id)
    run_id = node.text(each.run.get("run_id")) or _id_of(run)
    node_id = node.text((each.raw or {}).get("node")) or each.id
    made = uploads.setdefault((run_id, node_id), Upload(run_id, run.run_name, node_id, is_over=True))
    made.problem = made.problem or each.problem
    made.edits = made.edits.merged(run.edits) if run.edits else made.edits
    silent_s = (each.clock_ns(time.time_ns()) - each.heard_ns) / 1e9
    made.is_over = made.is_over and live_dir is None and (each.closed or silent_s > _SILENT_S)
    if live_dir is not None and os.path.realpath(live_dir.shm_dir.path) == os.path.realpath(each.path):
        made.shm_dir = each.path
    elif os.path.realpath(each.path) not in map(os.path.realpath, made.folders):
        made.folders.append(each.path)


def _id_of(run: Found) -> str:
    """The run's id where this node's documents do not tell it: another node's, else the folder's name."""
    told = (node.text(each.run.get("run_id")) for each in run.nodes)
    return next((run_id for run_id in told if run_id), run.name)

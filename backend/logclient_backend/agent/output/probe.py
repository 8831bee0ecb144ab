"""The run folder, looked at once at start: usable, or which other one is, or why the run must not start.

Runs in a throw-away child of the launcher, since its disk may be frozen. Who asks reads the answer in a file of its
own in the shm directory; where the run may start, the agent finds the same in `folder.json`, with the type of the
network file system that it is on, if it is on one.

============  =======================================================================
ok            `dir` can be written
fallback      it cannot, for `reason`; the run goes to `dir`, in the user's home
none          neither can: the run stays in shared memory
exists        `resume` is never, and the run is there in `dir`
missing       `resume` is must, and it is not
refused       no other folder was allowed, and the wanted one cannot be used for `reason`
============  =======================================================================

Invariants: a folder counts as usable only after a file in it was written and fsynced; a run that is not to start
leaves nothing behind; the shared temporary folder is never taken for ours.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Any, NamedTuple

from logclient.errors import LogclientError
from logclient.shm import modes
from logclient.shm.regular import read_regular
from logclient.shm.shm_dir import ShmDir, folder_name

from ...wal.documents import DocumentFile
from ..host.json_file import write_json
from . import mounts

HAS_FOLDER = ("ok", "fallback")  # states of an answer: there is a folder
MAY_START = (*HAS_FOLDER, "none")
SPOOL = "logclient-spool"  # the folders in which `spool.py` works


class Wish(NamedTuple):
    """Requirements of the starting process for the run folder."""

    resume: str = "allow"
    strict: bool = False  # no other folder, and no parents made: an error at start instead


def answer(shm_dir: ShmDir, wish: Wish) -> dict[str, Any]:
    """state, dir, reason, `network`, and in `made` the folder that was not there and had to be made first."""
    wanted, home = str(shm_dir.dir), str(shm_dir.home or "")
    known = _where_it_is(shm_dir, wanted, home)
    if wish.resume == "never" and known:
        return _answer("exists", known, f"exists already in {known}")
    if wish.resume == "must" and not known:
        return _answer("missing", wanted, f"is not in {wanted}")
    parent = _missing_parent(wanted)
    if parent and wish.strict:
        return _answer("refused", wanted, f"{parent} is not there")
    reason = _why_not(wanted, shm_dir) if wanted else "the working directory was removed"
    if reason is None:
        return _answer("ok", wanted, "", made=parent)
    if wish.strict:
        return _answer("refused", wanted, reason)
    if home and home != wanted and _why_not(home, shm_dir) is None and _remember(home, shm_dir):
        return _answer("fallback", home, reason)
    return _answer("none", "", reason)


def _answer(state: str, where: str, reason: str, made: str = "") -> dict[str, Any]:
    # the kind of file system is asked last: the first look at the folder may have mounted it
    network = mounts.network_of(os.path.realpath(where)) if where else ""
    return {"state": state, "dir": where, "reason": reason, "made": made, "network": network}


def there(where: str) -> dict[str, Any]:
    """The answer that a folder is fine, where somebody else found that out."""
    return _answer("ok", where, "")


def _where_it_is(shm_dir: ShmDir, wanted: str, home: str) -> str:
    """The folder that holds something of the run already; empty where none does."""
    name = folder_name(shm_dir.run_id)
    if wanted and _has_something(os.path.join(wanted, name)):
        return wanted
    if home and home != wanted and _was_meant_for(os.path.join(home, name), wanted):
        return home
    return ""


def _has_something(run: str) -> bool:
    try:
        with os.scandir(run) as entries:
            return any(entries)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        return error.errno == errno.EACCES  # another user's: it is there, and not ours to look into


def _was_meant_for(run: str, wanted: str) -> bool:
    try:
        content = json.loads(read_regular(os.path.join(run, "wanted.json"), max_bytes=1 << 16))
        return bool(content.get("dir") == wanted)
    except (OSError, ValueError, AttributeError):
        return False


def _missing_parent(base: str) -> str:
    """The outermost folder above `base` that is not there; empty where its parent is."""
    missing = ""
    parent = os.path.dirname(base)
    while parent and not os.path.lexists(parent):
        missing, parent = parent, os.path.dirname(parent)
    return missing


def _why_not(base: str, shm_dir: ShmDir) -> str | None:
    run = os.path.join(base, folder_name(shm_dir.run_id))
    reason = why_not(base, run, shm_dir.node)
    if not os.path.exists(shm_dir.file("run.json")):  # it took so long that the run was given up
        _leave_nothing(os.path.join(run, shm_dir.node), run)
    return reason


def why_not(base: str, run: str, node: str) -> str | None:
    """None where a file can be written and fsynced in the node's folder; else a reason in words."""
    node_folder = os.path.join(run, node)
    try:
        os.makedirs(base, exist_ok=True)
        for folder in (run, node_folder):
            try:
                os.mkdir(folder)
            except FileExistsError:
                pass
        probe = os.path.join(
            node_folder, f"probe-{os.urandom(6).hex()}"
        )  # other processes of the run may look just now
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            os.write(fd, b"logclient")
            os.fsync(fd)
        finally:
            os.close(fd)
            os.unlink(probe)
    except OSError as error:
        _leave_nothing(node_folder, run)
        return f"{error.strerror} ({os.path.basename(error.filename or base)})"
    return None


def _leave_nothing(*folders: str) -> None:
    """Remove those that are empty."""
    for folder in folders:
        if not modes.remove_if_empty(folder):
            break


def forget(shm_dir: ShmDir) -> None:
    """Remove the node's folder of a run that never was: nothing is in it, or documents of an abandoned `init` alone."""
    run_name = folder_name(shm_dir.run_id)
    for base in filter(None, (str(shm_dir.dir), str(shm_dir.home or ""))):
        run = os.path.join(base, run_name)
        node_folder = os.path.join(run, shm_dir.node)
        try:
            names = os.listdir(node_folder)
        except OSError:
            continue
        if all(name.startswith("documents.") for name in names) and _is_no_run(node_folder):
            for name in names:
                os.unlink(os.path.join(node_folder, name))
            _leave_nothing(node_folder, run)


def _is_no_run(node_folder: str) -> bool:
    """Do its documents tell of processes whose `init` raised, and of no others?"""
    try:
        found = json.loads(DocumentFile(node_folder).load() or b"{}")
        processes = [process.get("documents") or {} for process in (found.get("processes") or {}).values()]
        states = [(of.get("state") or {}).get("data") or {} for of in processes]
    except (OSError, ValueError, AttributeError, LogclientError):
        return False
    return all(state.get("state") == "abandoned" for state in states)


def _remember(home: str, shm_dir: ShmDir) -> bool:
    """Readers that are pointed at the wanted folder find the run in this one."""
    path = os.path.join(home, folder_name(shm_dir.run_id), "wanted.json")
    return write_json(path, {"dir": shm_dir.dir}, 0o666)


def write_answer(shm_dir: ShmDir, wish: Wish, name: str) -> None:
    """Look, and leave the answer in the shm directory: for who asks, and for the agent where the run may start."""
    what = answer(shm_dir, wish)
    if what["state"] in MAY_START:
        write_json(shm_dir.file("folder.json"), what)
    write_json(shm_dir.file(name), what)

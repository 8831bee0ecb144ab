"""Edits of a run, wherever it lies: in a folder, or behind a collector's HTTP API.

For `logclient edit` and `logclient.edit`. In a folder, edits go into a file beside the folders of the run's nodes
(`runs/edit_file.py`), which neither its program nor its agent touches, so a live run can be edited, too.
"""

from __future__ import annotations

import os
import pwd
import time
from typing import Any

from logclient.config import Config
from logclient.errors import LogclientError, NoRun

from ..runs import edit_file, folder
from ..runs.edits import FOLDER, Changes, Edits
from ..runs.folder import Found
from ..runs.view import RunView, view
from . import access, source
from .access import ServerError
from .server import Server


def edit(
    where: str | None, run: str, changes: Changes, *, token: str | None = None, token_file: str = ""
) -> dict[str, Any]:
    """Edit a run, and return what holds then, as `held` does; without changes what holds.

    `where` is a folder of runs, the folder of one, or the address of a server; default LOGCLIENT_DIR, else
    ./logclient-runs.
    """
    changes.check()
    if where is not None and access.is_url(where):
        server = Server(access.find(where, token=token, token_file=token_file))
        try:
            return _edit_there(server, run, changes)
        finally:
            server.close()
    found = _find(os.path.abspath(where or Config.from_env().dir or "logclient-runs"), run)
    if changes:
        path = _folder_of(found)
        found.edits = edit_file.change(
            path, lambda edits: edits.edited(changes, _user(), FOLDER, time.time_ns())
        )
    return held(view(found), found.edits)


def held(run: RunView, edits: Edits) -> dict[str, Any]:
    """Return the name, group, notes and tags of a run, and the edits that made them."""
    return {
        "id": run.id,
        "name": run.name,
        "group": run.group,
        "notes": run.notes,
        "tags": list(run.tags),
        "unedited": run.unedited,
        "edits": [each.as_dict() for each in edits],
        "problem": run.found.edits_problem,
    }


def _find(base: str, run: str) -> Found:
    own = folder.load(os.path.basename(base), base) if os.path.isdir(base) else None
    is_one = own is not None and not own.problem
    return folder.resolve([own] if own is not None and is_one else folder.find(base), run, base)


def _folder_of(found: Found) -> str:
    """Return the folder that the edits of a run go to."""
    path = os.path.realpath(found.path)
    in_memory = any(os.path.realpath(each.shm_dir.path) == path for each in found.live.values())
    if in_memory or not os.path.isdir(path):
        raise LogclientError(
            f"run {found.run_name} is in shared memory only, and has no folder yet: try again once something "
            f"of it is stored (`logclient status` says what its agent waits for)"
        )
    return path


def _user() -> str:
    uid = os.geteuid()
    try:
        return f"uid {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"uid {uid}"


def _edit_there(server: Server, run: str, changes: Changes) -> dict[str, Any]:
    """Ask a collector; a token that may not read can name a run by its id alone."""
    if not changes:
        return _held_there(server, str(source.resolve(server, run)["id"]))
    wish = {
        "name": changes.name,
        "group": changes.group,
        "notes": changes.notes,
        "tags": list(changes.tags),
        "untag": list(changes.untag),
        "undo": list(changes.undo),
    }
    try:
        answer = server.post("/run/edit", run=run, body=wish)
    except NoRun as error:
        try:
            run = str(source.resolve(server, run)["id"])
        except ServerError:
            raise error from None
        answer = server.post("/run/edit", run=run, body=wish)
    return {**answer, "id": answer["run"], "problem": ""}


def _held_there(server: Server, run: str) -> dict[str, Any]:
    row, answer = server.json("/run", run=run), server.json("/run/edits", run=run)
    shown = {name: row.get(name) for name in ("id", "name", "group", "notes", "tags")}
    return {**shown, "unedited": answer.get("unedited"), "edits": answer.get("edits"), "problem": ""}

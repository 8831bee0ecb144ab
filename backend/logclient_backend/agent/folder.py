"""The run folder, looked at once at start: usable, or which other one is.

Runs in a throw-away child of the launcher, since its disk may be frozen. The answer goes to `folder.json` in the
meeting place, where `init` and the agent read it.
"""

from __future__ import annotations

import json
import os
from typing import Any

from logclient.meeting import Meeting, folder_name


def answer(meeting: Meeting) -> dict[str, Any]:
    """state (ok, fallback, none, exists, missing), dir, reason."""
    wanted = meeting.dir
    run = os.path.join(wanted, folder_name(meeting.run_id))
    is_there = os.path.isdir(run) and any(os.scandir(run))
    if meeting.resume == "never" and is_there:
        return {"state": "exists", "dir": wanted, "reason": f"exists already in {wanted}"}
    if meeting.resume == "must" and not is_there:
        return {"state": "missing", "dir": wanted, "reason": f"is not in {wanted}"}
    reason = why_not(wanted, run, meeting.node)
    if reason is None:
        return {"state": "ok", "dir": wanted, "reason": ""}
    home = meeting.home
    if home and home != wanted and why_not(home, os.path.join(home, folder_name(meeting.run_id)), meeting.node) is None:
        _remember(home, meeting.run_id, wanted)
        return {"state": "fallback", "dir": home, "reason": reason}
    return {"state": "none", "dir": "", "reason": reason}


def why_not(base: str, run: str, node: str) -> str | None:
    """None where a file can be written and fsynced in the node's folder; else a reason in words."""
    try:
        os.makedirs(base, exist_ok=True)
        for folder in (run, os.path.join(run, node)):
            if not os.path.isdir(folder):
                os.mkdir(folder, 0o700)
        probe = os.path.join(run, node, "probe")
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, b"logclient")
            os.fsync(fd)
        finally:
            os.close(fd)
            os.unlink(probe)
    except OSError as error:
        for folder in (os.path.join(run, node), run):
            try:
                os.rmdir(folder)  # leave nothing empty behind
            except OSError:
                break
        return f"{error.strerror} ({os.path.basename(error.filename or base)})"
    return None


def _remember(home: str, run_id: str, wanted: str) -> None:
    """Readers that are pointed at the wanted folder find the run in this one."""
    path = os.path.join(home, folder_name(run_id), "wanted.json")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, json.dumps({"dir": wanted}).encode())
    finally:
        os.close(fd)


def write_answer(meeting: Meeting) -> None:
    """Look, and leave the answer in the meeting place."""
    found = json.dumps(answer(meeting)).encode()
    path = meeting.file("folder.json")
    making = f"{path}.new"
    fd = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, found)
    finally:
        os.close(fd)
    os.rename(making, path)

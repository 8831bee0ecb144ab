"""The line at the end of a run: where the run is, what is missing, what was lost, and the command that stores the rest.

Runs in the training process, in `finish` and the exit hook. The line of `init` is `ShmDir.where_it_goes`, which the
agent writes as well. Reads memory alone.
"""

from __future__ import annotations

import os

from ..shm.notices import write_stderr
from ..shm.shm_dir import folder_name
from ..spawn import agent as spawn
from .page import line_of, quoted
from .status import status_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..typed import Status
    from .session import Session


def write_end(session: Session, done: bool, took_s: float, trouble: str, deadline: float) -> None:
    """Write the line of `finish`; into a file, whose disk may be frozen, by a process that is waited for a moment.

    `took_s`: how long `finish` waited; `trouble`: why nobody works on what is left, empty where somebody does.
    """
    answer = session.folder or session.shm_dir.folder_answer()
    if not done and not trouble and not spawn.agent_lives(session.shm_dir):
        trouble = "its agent is gone"
    line = final_line(session, status_of(session), answer, done, took_s, trouble) + line_of(session)
    if not write_stderr(line) and session.writes_to_file:
        spawn.write_to_stderr_file(line, deadline)


def final_line(
    session: Session, status: Status, answer: dict[str, Any], done: bool, took_s: float, trouble: str
) -> str:
    """Return the line for the user: where the run is, or what is missing and which command stores it; what was lost."""
    if done and answer.get("state") != "fallback":
        line = f"{session.shm_dir.shown} is in {session.dir}"
    elif done or answer.get("state") == "none":
        line = session.shm_dir.where_it_goes(answer)
    else:
        line = _what_is_left(session, status, took_s, trouble)
    line += about_server(session, status)
    lost = {
        "forgotten": status["forgotten"],
        "refused": status["refused"],
        "damaged": status["damaged"],
        "left out": status["left_out"],
    }
    if any(lost.values()):
        line += "; " + ", ".join(f"{kind}: {number:,}" for kind, number in lost.items() if number)
    return line


def _what_is_left(session: Session, status: Status, took_s: float, trouble: str) -> str:
    waiting = status["accepted"] - status["durable"] - status["forgotten"] - status["damaged"]
    awaited = min(waiting, status["device"]["in_flight"])
    lines = []
    if awaited:
        lines.append(
            f"{awaited:,} records wait for values of a device after {_seconds(took_s)}: those that have not come "
            f"when this process ends are left out"
        )
    if waiting > awaited or not awaited:
        what = (
            f"{waiting - awaited:,} records" if waiting else "what was said last of config, summary or state"
        )
        verb = "are" if waiting else "is"
        error = status["agent"]["disk_error"]
        then = "the agent goes on with it, and `logclient recover` finishes the job if it cannot"
        if trouble:
            then = f"nobody works on it ({trouble}): `logclient recover` finishes the job"
        why = f" ({error})" if error else ""
        lines.append(f"{what} {verb} not on disk in {session.dir} after {_seconds(took_s)}{why}; {then}")
    return "; ".join(lines)


def _seconds(took_s: float) -> str:
    """A time that has passed, as people read it."""
    return f"{took_s:.1f} s" if took_s < 10 else f"{took_s:.0f} s"


def about_server(session: Session, status: Status) -> str:
    """Return how much of this process's records the server has, and which command ships the rest."""
    server = status["server"]
    if server["state"] == "off":
        return ""
    where, missing = server["address"] or "the server", server["lag_records"]
    if not missing:
        return f"; all of it is at {where}"
    said = server["error"].removeprefix(where).strip()
    why = f" ({said})" if said else ""
    folder = quoted(os.path.join(session.dir, folder_name(session.run_id)))
    there = f" --server {where}" if server["address"] else ""
    if server["state"] == "refused":  # what was deleted there stays so, unless somebody asks for it
        return (
            f"; {missing:,} records are not at {where}{why}; if they shall be: "
            f"`logclient sync {folder}{there} --revive`"
        )
    refused, line = server["refused_records"], ""
    if refused:  # sent again they would be refused again
        reason = server["reason"] or said
        why = f" ({reason})" if reason else ""
        line = (
            f"; {refused:,} records are not at {where}, which refuses them{why}: they stay in the run folder"
        )
        missing, why = missing - refused, ""
    if missing:
        line += (
            f"; {missing:,} records are not yet at {where}{why}: the agent goes on with it, and "
            f"`logclient sync {folder}{there}` finishes the job if it cannot"
        )
    return line

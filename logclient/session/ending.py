"""The end of a run as this process saw it: finished, failed with an exception, interrupted, exited with a code.

Runs in the training process, in `with`, and in the exit hook. Replaces no handler: an exception that ended the
program is found where the interpreter leaves it (`sys.last_value`). What cannot be seen from inside (exit code,
signal) the agent finds out from outside.

Reads no source file: the disk may be frozen.
"""

from __future__ import annotations

import os
import sys
import time

from ..shm import layout
from ..shm.meeting import folder_name
from ..shm.stats import lane_counts, missing_there, tell
from ..spawn import agent as spawn
from .status import status_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..typed import Status
    from .session import Session

INTERRUPTED_S = 1.0  # after Ctrl-C the prompt is back in 2 s, whatever the disk does
_MAX_FRAMES = 20
_MAX_TEXT = 2000
_NAP_S = 0.005
_CONNECTING_S = 1.0  # to a server of which nothing bad is known: a program that ran for a moment only
_MOVING_S = 2.0  # since the last ack


def state_of(error: BaseException | None) -> dict[str, Any]:
    """The state document for a block or program that ended with this exception (None: it did not)."""
    if error is None:
        return {"state": "finished"}
    if isinstance(error, SystemExit):
        code = error.code
        if code is None or code == 0:
            return {"state": "finished", "exit_code": 0}
        return {
            "state": "failed",
            "exit_code": code if type(code) is int else 1,
            "exception": describe(error),
        }
    if isinstance(error, KeyboardInterrupt):
        return {"state": "terminated", "signal": 2, "signal_name": "SIGINT"}
    return {"state": "failed", "exception": describe(error)}


def describe(error: BaseException) -> dict[str, Any]:
    """Type, message and last frames, without reading source files."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - foreign __str__
        text = "(its text could not be read)"
    lines = []
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        lines.append(f"{code.co_filename}:{step.tb_lineno} in {code.co_qualname}")
        step = step.tb_next
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {"type": name, "text": text[:_MAX_TEXT], "last_lines": lines[-_MAX_FRAMES:]}


def has_shell() -> bool:
    """Is this a kernel, or IPython in a terminal? Not a script that merely imports something of theirs."""
    module = sys.modules.get("IPython.core.interactiveshell")
    try:
        return bool(module is not None and module.InteractiveShell.initialized())
    except AttributeError:  # another IPython, or only just being imported
        return False


def at_exit() -> dict[str, Any]:
    """The state document for a program that is ending now."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    interactive = hasattr(sys, "ps1") or sys.flags.interactive or has_shell()
    if error is None or interactive:  # a prompt keeps its last error long after it mattered
        return {"state": "finished", "by": "exit"}
    return {**state_of(error), "by": "exit"}


def patience_s(state: dict[str, Any], full_s: float) -> float:
    """Return the seconds that the end of a run may wait: a user at the keyboard wants the prompt back."""
    return min(full_s, INTERRUPTED_S) if state.get("state") == "terminated" else full_s


def wait_for_server(wanted: str, status: memoryview, lanes: memoryview, deadline: float) -> None:
    """Wait until the server has all records of this process, while it takes some and not after the deadline."""
    begun = moved = time.monotonic()
    acked = -1
    while True:
        counts, now = lane_counts(lanes), time.monotonic()
        if counts["acked"] != acked:
            acked, moved = counts["acked"], now
        state = layout.SHIP_STATES[min(status[layout.AGENT_SHIP_STATE], len(layout.SHIP_STATES) - 1)]
        if state in ("shipping", "idle"):
            until = max(moved + _MOVING_S, begun + _CONNECTING_S)
        elif state in ("starting", "connecting") or (state in ("off", "looking") and wanted):
            until = begun + _CONNECTING_S
        else:
            return
        if not missing_there(counts) or now >= min(until, deadline):
            return
        time.sleep(_NAP_S)


def say_goodbye(session: Session, done: bool, took_s: float, trouble: str, deadline: float) -> None:
    """The line at finish, for whom it reaches without waiting; a file, whose disk may be frozen, is the agent's job.

    `took_s`: how long `finish` waited; `trouble`: why nobody works on what is left, empty where somebody does.
    """
    answer = session.folder or session.place.folder_answer()
    if not done and not trouble and not spawn.agent_lives(session.place):
        trouble = "its agent is gone"
    line = goodbye(session, status_of(session), answer, done, took_s, trouble)
    # what was made durable just now says that this disk answers
    if not tell(line, on_device=answer.get("device", 0) if done else 0) and session.has_teller:
        if trouble:  # no agent is there to write it
            spawn.tell_in_file(line)
        else:
            spawn.say(session.place, line, deadline)


def goodbye(
    session: Session, status: Status, answer: dict[str, Any], done: bool, took_s: float, trouble: str
) -> str:
    """Return the line for the user: where the run is, or what is missing and which command stores it; what was lost."""
    if done and answer.get("state") != "fallback":
        line = f"{session.place.shown} is in {session.dir}"
    elif done or answer.get("state") == "none":
        line = session.place.where_it_goes(answer)
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
    folder = _quoted(os.path.join(session.dir, folder_name(session.run_id)))
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


def _quoted(path: str) -> str:
    """Return the text as a shell takes it."""
    is_plain = all(c.isalnum() or c in "/._-+,:@%" for c in path) and path.isascii()
    return path if is_plain else "'" + path.replace("'", "'\"'\"'") + "'"

"""Requests to stop or to save: the words of the status page that carry them, and the files by which they arrive.

::

    /dev/shm/logclient-<uid>/<folder>/<id>.request      0600, JSON, removed by the worker that takes it
    {"id", "kind": "stop" | "save" | "clear", "save": bool, "reason", "by", "via": one of VIA, "time_ns",
     "step": int | null, only where a collector chose it (null: at once); "stale": true, of an old stop file}

Who asks writes a file and wakes the worker. The worker chooses the step, the same for all ranks, and stores it in the
status page, where the training processes read it.

Invariants:

- a step is one word, so no reader sees half of one;
- a process compares with the newest step of its own lanes, as the worker does when it chooses: by `newest_step`;
- nothing is waited for.
"""

from __future__ import annotations

import os
import time

from ..guest import stdlib
from . import lane_file, layout, modes
from .record import PREFIX
from .regular import read_regular
from .wake import wake

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .shm_dir import ShmDir

SUFFIX = ".request"
STOP, SAVE, CLEAR = KINDS = ("stop", "save", "clear")
COMMAND, STOP_FILE, SERVER = VIA = ("command", "stop file", "server")
MAX_REASON = 500  # characters
MAX_BY = 100

AT_ONCE = 1
LOWEST = -(1 << 63)  # step
_BIAS = 1 << 63
_MAX_WORD = (1 << 64) - 1
_MAX_FILE_BYTES = 16 << 10
_PIECE = 4 << 10  # bytes of each lane that are looked at for the newest step


def word_of(step: int | None) -> int:
    """Return the word for a step; None: at once."""
    return AT_ONCE if step is None else max(AT_ONCE + 1, min(step + _BIAS, _MAX_WORD))


def step_of(word: int) -> int | None:
    """Return the step of a word that is not 0; None: at once."""
    return None if word <= AT_ONCE else word - _BIAS


def newest_step(mem: memoryview, words: memoryview, rank: int | None, deadline: float) -> int | None:
    """Return the highest step among the newest records of a lane file; None where it has none.

    `rank`: only records that carry it; None: all. Looks back further than a few KiB only for the first such record, and
    until `deadline` (`time.monotonic`); where none is found by then, the lowest step there is.
    """
    newest, is_sure = None, True
    for header in lane_file.headers(words):
        if not header[layout.SEQ]:
            continue
        left, found = _PIECE, False
        for frame in lane_file.newest_frames(mem, header, deadline, piece=_PIECE):
            left -= len(frame)
            _, _, _, step, _, head = PREFIX.unpack_from(frame)
            if rank is None or head >> layout.RANK_SHIFT == rank + 1:
                newest, found = step if newest is None else max(newest, step), True
            if found and left <= 0:
                break
        is_sure &= found or (rank is not None and time.monotonic() < deadline)
    return LOWEST if newest is None and not is_sure else newest


def ask(shm_dir: ShmDir, request: dict[str, Any]) -> str:
    """Hand a request to the worker of a run on this node, and return the path of its file. Raises OSError."""
    path = shm_dir.file(request["id"] + SUFFIX)
    modes.publish(path, stdlib.load("json").dumps(request).encode(), at_once=True)
    wake(shm_dir)
    return path


def new_id() -> str:
    """Return an id for a request."""
    return os.urandom(8).hex()


def take(path: str) -> dict[str, Any] | None:
    """Remove the file of a request and return what it asks for; None where it makes no sense, or was withdrawn."""
    try:
        data = read_regular(path, max_bytes=_MAX_FILE_BYTES)
    except OSError:
        data = b""
    try:
        os.unlink(path)
    except OSError:
        return None  # who asked has taken it back
    try:
        return checked(stdlib.load("json").loads(data))
    except ValueError:
        return None


def checked(request: Any) -> dict[str, Any] | None:
    """Return the request with fields of the right types and sizes; None where it is none."""
    if not isinstance(request, dict) or request.get("kind") not in KINDS:
        return None
    id, asked_ns, step = request.get("id"), request.get("time_ns"), request.get("step")
    if not isinstance(id, str) or len(id) != 16 or set(id) - set("0123456789abcdef"):
        return None
    made = {
        "id": id,
        "kind": request["kind"],
        "save": request.get("save") is True,
        "reason": one_line(request.get("reason"), MAX_REASON),
        "by": one_line(request.get("by"), MAX_BY),
        "via": request["via"] if request.get("via") in VIA else COMMAND,
        "time_ns": asked_ns if type(asked_ns) is int else 0,
    }
    if "step" in request and (step is None or (type(step) is int and -_BIAS <= step < _BIAS)):
        made["step"] = step
    if request.get("stale") is True:
        made["stale"] = True
    return made


def one_line(text: object, most: int) -> str:
    """Return a text as one line without control characters, of at most so many characters."""
    if not isinstance(text, str):
        return ""
    shown = "".join(char if char.isprintable() else " " for char in text[: 4 * most])
    return " ".join(shown.split())[:most]

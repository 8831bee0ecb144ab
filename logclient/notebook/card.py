"""The HTML of a run in a notebook: name, state, folder, counts, and the last value of each key.

Runs in the training process when somebody looks, in whatever thread. Reads memory, and on tmpfs what is known of the
run folder; waits for nobody.

Invariants:

- all text is data: escaped, and what does not print (control characters, lone surrogates, marks that turn the
  direction of text) is spelled out; no script; colours that can be read on white and on black;
- values are read from this process's own lanes while others write to them: only frames that check are believed, and
  the look back has a limit in time. What lies further back is not shown.

Does not: look into lanes of other processes or into the run folder.
"""

from __future__ import annotations

import os
import time
from html import escape
from shlex import quote as quote_word
from struct import error as StructError
from urllib.parse import quote

from ..errors import Corrupt
from ..session.status import last_values as last_values_of
from ..session.status import status_of
from ..shm import lane_file, layout
from ..shm.columns import read_column
from ..shm.record import PREFIX, Shape, variable_cells
from ..shm.ring import read_block
from ..shm.shm_dir import folder_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from ..encode.lanes import Lanes
    from ..null import NullRun
    from ..session.session import Session
    from ..typed import ServerStatus, Status

MAX_KEYS = 20
_MAX_KNOWN = 2000  # keys that are looked for
_MAX_TEXT = 60
_LOOK_BACK_S = 0.02

_BOX = "display:inline-block;border:1px solid rgba(128,128,128,.45);border-radius:4px;padding:.5em .8em;line-height:1.5"
_CELL = "text-align:left;background:none;border:none;padding:0 1.2em 0 0;vertical-align:top"
_NUMBER = _CELL.replace("left", "right") + ";font-family:monospace"
_DIM = "opacity:.7"
_LABEL = f"{_CELL};{_DIM};white-space:nowrap"
_COLOURS = {"good": "#2e9e4f", "bad": "#d9534f", "plain": "#8a8a8a"}


# ---- the last values: key -> (order of its record, step, value) --------------------------------------------------


def last_values(taken: Lanes | None) -> dict[str, tuple[int, int, Any]]:
    """The newest value of each key that lies in these lanes, newest record first."""
    found: dict[str, tuple[int, int, Any]] = {}
    if taken is not None:
        schemas = lane_file.Schemas(taken.mem, taken.words)
        deadline = time.monotonic() + _LOOK_BACK_S
        for header in lane_file.headers(taken.words):
            for order, step, values in _records(taken.mem, header, schemas, deadline):
                for key, value in values.items():
                    if key not in found or found[key][0] < order:
                        found[key] = (order, step, value)
                if len(found) >= _MAX_KNOWN:
                    break
    return dict(sorted(found.items(), key=lambda item: -item[1][0]))


def _records(
    mem: memoryview, header: memoryview, schemas: lane_file.Schemas, deadline: float
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Order, step and values of the newest record of each shape in one lane."""
    seen = set()
    for frame in lane_file.newest_frames(mem, header, deadline):
        _, _, order, step, _, head = PREFIX.unpack_from(frame)
        number = head & layout.SHAPE_MASK
        if number in (layout.INLINE_SHAPE, layout.BLOCK_SHAPE) or number not in seen:
            seen.add(number)
            try:
                yield order, step, _values_of(mem, schemas, number, frame[layout.FRAME_PREFIX :])
            except (Corrupt, LookupError, ValueError, StructError):
                continue  # its block was taken again, or its definition is not to be read


def _values_of(mem: memoryview, schemas: lane_file.Schemas, number: int, payload: bytes) -> dict[str, Any]:
    """Return the values of a record by key. Raises LookupError where its schema or its block is gone."""
    if number == layout.BLOCK_SHAPE:
        block = read_block(mem, payload)
        if block is None:
            raise LookupError
        number, payload = int.from_bytes(block[:8], "little") & layout.SHAPE_MASK, block[8:]
    if number == layout.INLINE_SHAPE:
        size = int.from_bytes(payload[:8], "little")
        shape: Shape | None = Shape.from_definition(payload[8 : 8 + size])
        payload = payload[8 + size :]
    else:
        shape = schemas.get(number)
    if shape is None:
        raise LookupError
    cells = variable_cells(shape, payload)
    return {
        name: read_column(code, [cell] if code in "is" else memoryview(cell).cast("Q"))[0]  # type: ignore[arg-type]
        for name, code, cell in zip(shape.names, shape.codes, cells, strict=True)
    }


# ---- HTML ---------------------------------------------------------------------------------------------------------


def of_run(session: Session) -> str:
    """The run as this process sees it."""
    mood, state = _state(session)
    rows = [
        ("project", _text(session.shm_dir.project)),
        ("run", _text(session.run_id)),
        ("folder", _where(session)),
    ]
    command = f"logclient show {quote_word(session.run_id)} --dir {quote_word(session.dir)}"
    rows.append(("show it", f"<code>{_text(command, 1000)}</code>"))
    status = status_of(session)
    rows.append(("records", _counts(status)))
    if status["server"]["state"] != "off":
        rows.append(("server", _server(status["server"])))
    values = last_values_of(session)
    return _box(session.name, mood, state, rows) + _values(values) + "</div>"


def of_null(run: NullRun, why: str) -> str:
    """A run that keeps nothing; `why`: empty in disabled mode."""
    state = f"nothing is logged: {why}" if why else "disabled: nothing is logged"
    rows = [("project", _text(run.project))] if run.project else []
    refused = run.status()["refused"]
    if refused:
        rows.append(("records", f"{refused:,} refused"))
    return _box("no run", "bad" if why else "plain", state, rows) + "</div>"


def of_failure(run: object, error: BaseException) -> str:
    """Return the HTML that is shown where the rest failed."""
    return f"<div>{_text(repr(run), 500)} <span style='{_DIM}'>({_text(type(error).__name__)})</span></div>"


def _box(name: str, mood: str, state: str, rows: list[tuple[str, str]]) -> str:
    lines = "".join(
        f"<tr style='background:none'><td style='{_LABEL}'>{label}</td><td style='{_CELL}'>{shown}</td></tr>"
        for label, shown in rows
    )
    return (
        f"<div style='{_BOX}'><div><b>{_text(name, 120)}</b> "
        f"<span style='color:{_COLOURS[mood]}'>\N{BLACK CIRCLE} {_text(state, 500)}</span></div>"
        f"<table style='border:none;margin:.2em 0'>{lines}</table>"
    )


def _state(session: Session) -> tuple[str, str]:
    if session.closed:
        return _ended(session)
    if not session.mark[0]:
        return "good", "running; this forked process has logged nothing yet"
    if session.trouble:
        return "bad", f"this process logs nothing: {session.trouble}"
    agent = status_of(session)["agent"]["state"]
    if agent in ("running", "starting"):
        return "good", "running" if session.is_owner else "running; this process has joined it"
    return "bad", f"running, but its agent is {agent}: what is logged waits in shared memory"


def _ended(session: Session) -> tuple[str, str]:
    if not session.is_owner or session.pid != os.getpid():
        return "plain", "left by this process"
    outcome = session.outcome
    behind = "" if outcome.is_durable else ", not all of it on disk when that was last looked at"
    mood = "plain" if outcome.is_durable and outcome.state in ("", "finished") else "bad"
    return mood, f"{outcome.state or f'closed: {session.closed}'}{behind}"


def _server(server: ServerStatus) -> str:
    late = server["lag_records"] - server["refused_records"]
    missing = f", {late:,} not yet there" if late else "" if server["refused_records"] else ", has all"
    # where some are refused, the error says how many
    why = f": {server['error']}" if server["error"] else ""
    return _text(f"{server['address'] or 'unknown'} {server['state']}{missing}{why}", 500)


def _where(session: Session) -> str:
    answer = session.folder or session.shm_dir.folder_answer()
    if answer.get("state") in ("ok", "fallback") and os.path.isabs(session.dir):
        path = os.path.join(session.dir, folder_name(session.run_id))
        return f"<a href='file://{quote(os.fsencode(path))}'>{_text(path, 1000)}</a>"
    return _text(session.shm_dir.where_it_goes(answer), 1000)


def _counts(status: Status) -> str:
    dropped = {
        "forgotten": status["forgotten"],
        "refused": status["refused"],
        "damaged": status["damaged"],
    }
    line = (
        f"{status['accepted']:,} accepted, {status['durable']:,} durable, {sum(dropped.values()):,} dropped"
    )
    causes = ", ".join(f"{kind} {number:,}" for kind, number in dropped.items() if number)
    line += f" ({causes})" if causes else ""
    return line + (f", {status['left_out']:,} points left out" if status["left_out"] else "")


def _values(values: Mapping[str, tuple[int, int, Any]]) -> str:
    if not values:
        return f"<div style='{_DIM}'>no values in this process's memory</div>"
    shown = sorted(list(values.items())[:MAX_KEYS])
    head = "".join(f"<th style='{_CELL};{_DIM}'>{label}</th>" for label in ("key", "step", "last value"))
    lines = "".join(
        f"<tr style='background:none'><td style='{_CELL}'>{_text(key, _MAX_TEXT)}</td>"
        f"<td style='{_NUMBER}'>{step:,}</td><td style='{_NUMBER}'>{_value(value)}</td></tr>"
        for key, (_, step, value) in shown
    )
    more = len(values) - len(shown)
    count = f"{more:,} or more" if len(values) >= _MAX_KNOWN else f"{more:,}"
    rest = f"<div style='{_DIM}'>and {count} more keys in memory</div>" if more else ""
    return f"<table style='border:none;margin:.2em 0'><tr style='background:none'>{head}</tr>{lines}</table>{rest}"


def _value(value: object) -> str:
    if type(value) is float:
        return f"{value:.6g}"
    if type(value) is int:
        return f"{value:,}" if abs(value) < 1 << 64 else f"an int of {value.bit_length():,} bits"
    return _text(str(value), _MAX_TEXT)


def _text(text: object, most: int = 200) -> str:
    """Return the text as data in HTML."""
    whole = str(text)
    cut = whole if len(whole) <= most else whole[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
    if not cut.isprintable():
        cut = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    return escape(cut)

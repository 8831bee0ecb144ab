"""The HTML of a run in a notebook: name, state, folder, counts.

Runs in the training process when somebody looks, in whatever thread. Reads memory, and on tmpfs what is known of the
run folder; waits for nobody.

Invariants:

- all text is data: escaped, and what does not print (control characters, lone surrogates, marks that turn the
  direction of text) is spelled out; no script; colours that can be read on white and on black.

Does not: read records. `logclient show`, which it names, has their last values.
"""

from __future__ import annotations

import os
from html import escape
from shlex import quote as quote_word
from urllib.parse import quote

from ..session.page import address_of
from ..session.status import status_of
from ..shm.shm_dir import folder_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..null import NullRun
    from ..session.session import Session
    from ..typed import ServerStatus, Status

_BOX = "display:inline-block;border:1px solid rgba(128,128,128,.45);border-radius:4px;padding:.5em .8em;line-height:1.5"
_CELL = "text-align:left;background:none;border:none;padding:0 1.2em 0 0;vertical-align:top"
_DIM = "opacity:.7"
_LABEL = f"{_CELL};{_DIM};white-space:nowrap"
_COLOURS = {"good": "#2e9e4f", "bad": "#d9534f", "plain": "#8a8a8a"}


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
    page = address_of(session)
    if page:
        rows.append(("page", f"<a href='{escape(page)}'>{_text(page, 1000)}</a>"))
    status = status_of(session)
    rows.append(("records", _counts(status)))
    if status["server"]["state"] != "off":
        rows.append(("server", _server(status["server"])))
    return _box(session.name, mood, state, rows)


def of_null(run: NullRun, why: str) -> str:
    """A run that keeps nothing; `why`: empty in disabled mode."""
    state = f"nothing is logged: {why}" if why else "disabled: nothing is logged"
    rows = [("project", _text(run.project))] if run.project else []
    refused = run.status()["refused"]
    if refused:
        rows.append(("records", f"{refused:,} refused"))
    return _box("no run", "bad" if why else "plain", state, rows)


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
        f"<table style='border:none;margin:.2em 0'>{lines}</table></div>"
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


def _text(text: object, most: int = 200) -> str:
    """Return the text as data in HTML."""
    whole = str(text)
    cut = whole if len(whole) <= most else whole[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
    if not cut.isprintable():
        cut = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    return escape(cut)

"""`logclient stop`: ask a run to stop, or to save a checkpoint, on all its ranks after the same step."""

from __future__ import annotations

import os
import pwd
import time
from typing import Any

import click

from logclient.errors import BadArgument, LogclientError, NoRun
from logclient.shm import modes, stop_requests
from logclient.shm.stop_requests import CLEAR, COMMAND, SAVE, STOP

from ..runs import live
from ..runs.elsewhere import has_other_nodes
from ..runs.live import LiveShmDir
from ..runs.requests import Asked, asked
from . import screen
from .options import with_json, with_token_file
from .text import safe

_TAKEN_S = 5.0  # for the agent to take it
_POLL_S = 0.02


@click.command(
    "stop",
    epilog="Exit codes: 0 asked, 1 refused or not taken, 2 called wrongly, 3 no such run or ambiguous.",
)
@click.argument("run")
@click.option("--save", "save", is_flag=True, help="Save a checkpoint, too.")
@click.option("--save-only", is_flag=True, help="Save a checkpoint and go on.")
@click.option("--clear", is_flag=True, help="Withdraw what was asked and has not come true.")
@click.option("--reason", default="", metavar="TEXT", help="Shown to whoever looks at the run.")
@click.option(
    "--this-node-only",
    is_flag=True,
    help="Ask the ranks on this node alone, though there are others elsewhere.",
)
@click.option(
    "--server", metavar="URL", help="Ask a collector to ask the run; `-`: that of LOGCLIENT_SERVER."
)
@with_token_file
@with_json
def command(
    run: str,
    save: bool,
    save_only: bool,
    clear: bool,
    reason: str,
    this_node_only: bool,
    server: str | None,
    token_file: str,
    as_json: bool,
) -> None:
    """Ask a run to stop: its program ends at the step for which `should_stop()` is true, the same on all ranks.

    RUN is an id, a unique part of one, or a name: of a live run of yours on this host, else with --server of a run
    there, which takes a token with the role control. A request is for the attempt that runs now.

    \b
    logclient stop mlp --save --reason "loss went up"
    logclient stop mlp --save-only
    logclient stop mlp --clear
    logclient stop mlp --server http://collector:7789
    """
    if save_only + clear + save > 1:
        raise BadArgument("--save, --save-only and --clear exclude each other")
    if server is not None and this_node_only:
        raise BadArgument("--server asks all nodes, --this-node-only one: give one of them")
    kind = SAVE if save_only else CLEAR if clear else STOP
    if server is None:
        live_dir = _find(run)
        if this_node_only or not has_other_nodes(live_dir.starts()):
            _show(live_dir.name, _ask_here(live_dir, kind, reason, save=save), as_json)
            return
        run, server = live_dir.run_id, live_dir.server()["address"]
        if not server:
            raise LogclientError(
                f"run {live_dir.name} has ranks on other nodes, and no server: a stop of this node alone leaves them "
                f"waiting in a collective. Give the run a server (LOGCLIENT_SERVER), or ask on each node with "
                f"--this-node-only"
            )
    _show(run, _ask_there(server, token_file, run, kind, reason, save=save), as_json)


def _find(run: str) -> LiveShmDir:
    there = [each for each in live.scan() if any(process.is_open for process in each.processes)]
    found = [each for each in there if run == each.run_id] or [
        each for each in there if run in each.run_id or run == each.name
    ]
    if len(found) == 1:
        return found[0]
    names = ", ".join(each.run_id for each in found or there) or "none"
    if found:
        raise NoRun(f"More than one live run is meant by {run!r}: {names}.")
    raise NoRun(
        f"No live run of yours on this host is called {run!r}; there are: {names}. Ask a run elsewhere through its "
        f"server: --server URL."
    )


def _ask_here(live_dir: LiveShmDir, kind: str, reason: str, *, save: bool) -> Asked:
    """Hand the request to the run's agent, and return what became of it."""
    if not live_dir.has_agent and live_dir.agent()["state"] != "starting":
        raise LogclientError(
            f"run {live_dir.name} has no agent now, so nobody would read it; `logclient recover` starts one"
        )
    request: dict[str, Any] = {
        "id": stop_requests.new_id(),
        "kind": kind,
        "save": save,
        "reason": reason,
        "by": _user(),
        "via": COMMAND,
        "time_ns": time.time_ns(),
    }
    path = stop_requests.ask(live_dir.shm_dir, request)
    deadline = time.monotonic() + _TAKEN_S
    while (found := _taken(live_dir, request["id"])) is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if found is None and os.path.lexists(path):
        modes.remove(path)
        found = _taken(live_dir, request["id"])
        if found is None:
            raise LogclientError(
                f"the agent of run {live_dir.name} has not taken it within {_TAKEN_S:g} s, so it was withdrawn; see "
                f"`logclient status`"
            )
    if found is None:
        raise LogclientError(
            f"the agent of run {live_dir.name} took it and gave no answer within {_TAKEN_S:g} s; see `logclient status`"
        )
    return found


def _taken(live_dir: LiveShmDir, id: str) -> Asked | None:
    return next((each for each in asked([(live_dir.node, live_dir.requests())]) if each.id == id), None)


def _user() -> str:
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _ask_there(server: str, token_file: str, run: str, kind: str, reason: str, *, save: bool) -> Asked:
    """Ask a collector; a token that may not read can name a run by its id alone."""
    from ..remote import access, source
    from ..remote.access import ServerError
    from ..remote.server import Server

    collector = Server(access.find(server, token_file=token_file))
    wish: dict[str, Any] = {"kind": kind, "save": str(save).lower(), "reason": reason}
    try:
        answer = collector.post("/run/control", run=run, **wish)
    except NoRun as error:
        try:
            run = str(source.resolve(collector, run)["id"])
        except ServerError:
            raise error from None
        answer = collector.post("/run/control", run=run, **wish)
    step = answer.get("step")
    return Asked(
        str(answer.get("id")),
        kind,
        save,
        reason,
        str(answer.get("by")),
        stop_requests.SERVER,
        int(answer.get("time_ns") or 0),
        step if type(step) is int else None,
        "done" if kind == CLEAR else "holds",
        "",
        ["?"] * int(answer.get("nodes") or 0),
    )


def _show(name: str, found: Asked, as_json: bool) -> None:
    if as_json:
        screen.print_json({**found.as_dict(), "nodes": len(found.nodes)})
    else:
        where = ""
        if found.via == stop_requests.SERVER:
            count = len(found.nodes)
            where = f", on {count} node{'s' * (count != 1)} that ship now; others follow when they ship"
        screen.show(screen.line(f"{found.what} of run {safe(name)}: {safe(found.outcome)}{where}"))
    if found.state == "refused":
        raise click.exceptions.Exit(1)

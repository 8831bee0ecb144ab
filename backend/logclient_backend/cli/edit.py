"""`logclient edit`: name, group, notes and tags of a run, after the fact."""

from __future__ import annotations

import time
from typing import Any

import click

from logclient.errors import BadArgument

from ..runs.edits import Changes, edits_of
from . import screen
from .edit_lines import edit_lines
from .options import run_folder, with_dir, with_json, with_token_file
from .text import iso, safe


@click.command(
    "edit",
    epilog="Exit codes: 0 done or shown, 1 refused or not possible, 2 called wrongly, 3 no such run or ambiguous.",
)
@click.argument("run")
@click.option("--name", metavar="TEXT", help="Its new name.")
@click.option("--group", metavar="TEXT", help="Its new group; empty: none.")
@click.option("--notes", metavar="TEXT", help="Its new notes; empty: none.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Add this tag; repeatable.")
@click.option("--untag", multiple=True, metavar="TAG", help="Take this tag away; repeatable.")
@click.option(
    "--undo",
    multiple=True,
    type=click.Choice(["name", "group", "notes", "tags", "all"]),
    help="Show again what the program of the run has set; repeatable.",
)
@click.option("--show", is_flag=True, help="Show all edits that are kept, by whom and when.")
@with_dir
@click.option(
    "--server", metavar="URL", help="Edit a run of a server instead; `-`: that of LOGCLIENT_SERVER."
)
@with_token_file
@with_json
def command(
    run: str,
    name: str | None,
    group: str | None,
    notes: str | None,
    tags: tuple[str, ...],
    untag: tuple[str, ...],
    undo: tuple[str, ...],
    show: bool,
    dir: str | None,
    server: str | None,
    token_file: str,
    as_json: bool,
) -> None:
    """Edit the name, group, notes or tags of a run, also of a live one. State and points are never changed.

    RUN is an id, a unique part of one, or a name. What its program has set stays below an edit, and is there again
    after --undo. Edits of a folder go to a collector with `logclient sync`; with --server, which takes a token with
    the role edit, they are made there.

    \b
    logclient edit mlp --name "mlp, wider" --tag baseline --untag draft
    logclient edit mlp --undo name
    logclient edit mlp --show
    logclient edit mlp --tag baseline --server http://collector:7789
    """
    if dir is not None and server is not None:
        raise BadArgument("--dir and --server: the run is looked for in one of them, give one")
    fields = ("name", "group", "notes", "tags") if "all" in undo else undo
    changes = Changes(name, group, notes, tags, untag, fields)
    if not changes and not show:
        raise BadArgument(
            "nothing to change: give --name, --group, --notes, --tag, --untag or --undo, or --show"
        )
    from ..remote import editing
    from ..remote.access import CONFIGURED, is_url, unknown_scheme

    if server is not None and server != CONFIGURED and not is_url(server):
        raise unknown_scheme(server)
    where = run_folder(dir) if server is None else server
    held = editing.edit(where, run, changes, token_file=token_file)
    if as_json:
        screen.print_json(
            {**held, "edits": [{**each, "time": iso(each.get("time_ns") or 0)} for each in held["edits"]]}
        )
    else:
        _print(held, every=show)


def _print(held: dict[str, Any], *, every: bool) -> None:
    edits = edits_of(held["edits"])
    name, id = safe(held["name"] or held["id"]), safe(held["id"])
    screen.show(screen.line((name, "bold"), *((("  " + id),) if name != id else ())))
    for field in ("group", "notes"):
        if held[field]:
            screen.show(screen.line((f"{field:<6} ", "dim"), safe(held[field], 400)))
    if held["tags"]:
        screen.show(screen.line(("tags   ", "dim"), " · ".join(map(safe, held["tags"]))))
    shown = list(edits) if every else edits.holding
    for line in edit_lines(shown, held["unedited"] or {}, time.time_ns(), 10**9 if every else 12):
        screen.show(screen.line(("edited ", "dim"), line))
    if held["problem"]:
        screen.show(screen.line(("! ", "yellow"), safe(held["problem"])))

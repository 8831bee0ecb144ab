"""`logclient import`: what `logclient export --out` wrote becomes a run again."""

from __future__ import annotations

import os

import click

from ..runs import live
from ..runs.importer import Import
from . import screen
from .options import run_folder, with_dir, with_json
from .text import plural, safe


@click.command(
    "import",
    epilog="Exit codes: 0 it is in, 2 the run exists already or the files make no sense, 3 there is no export.",
)
@click.argument("folder", metavar="FOLDER")
@click.option("--replace", is_flag=True, help="Put it in the place of a run with the same id.")
@with_dir
@with_json
def command(folder: str, replace: bool, dir: str | None, as_json: bool) -> None:
    """Take in a run that was exported: FOLDER holds points.<format> and run.json.

    Times, streams, attempts, gaps and counts stay as they were: exported again, it gives the same bytes. A run that is
    there already is refused. What makes no sense is refused as a whole, with the line.

    \b
    logclient export mlp --out mlp/
    logclient import mlp/ --dir /data/runs
    """
    base = run_folder(dir)
    made = Import(folder)
    busy = {
        os.path.realpath(os.path.dirname(live_dir.node_folder))
        for live_dir in live.scan()
        if live_dir.node_folder
    }
    with screen.progress("importing", made.points_declared) as advance:
        path = made.run(base, replace=replace, busy=busy, progress=advance)
    if as_json:
        screen.print_json({"id": made.run_id, "path": path, "points": made.points, "records": made.records})
    else:
        click.echo(
            f"{plural(made.points, 'point')} in {plural(made.records, 'record')}: "
            f"run {safe(made.run_id)} is in {safe(path)}"
        )

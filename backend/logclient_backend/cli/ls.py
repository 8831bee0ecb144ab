"""`logclient ls`: the runs of a folder."""

from __future__ import annotations

import time
from typing import Any

import click

from ..runs.folder import Found
from ..runs.view import RunView, view
from . import screen
from .options import all_runs, with_dir, with_json
from .text import ago, duration, iso, plural, safe, short_count

_NEWEST = 50


@click.command("ls", epilog="Exit codes: 0 listed, 3 there is no such folder.")
@click.argument("filter", required=False, metavar="[TEXT]")
@click.option(
    "-n",
    "--newest",
    type=click.IntRange(0),
    default=_NEWEST,
    show_default=True,
    metavar="N",
    help="How many, the newest.",
)
@click.option("--all", "everything", is_flag=True, help="All of them.")
@with_dir
@with_json
def command(filter: str | None, newest: int, everything: bool, dir: str | None, as_json: bool) -> None:
    """List the runs of a folder.

    The newest comes last. With TEXT, those that have it in their id, name, project or tags. A folder in DIR that
    is damaged, foreign, empty or of a newer version is listed with the reason.

    \b
    logclient ls
    logclient ls baseline --dir /data/runs
    """
    base, found = all_runs(dir)
    good = sorted((run for run in found if not run.problem), key=lambda run: (run.newest_ns, run.name))
    none = [run for run in found if run.problem]
    left = 0
    if filter:
        runs = [run for each in good if _has(run := view(each), filter)]
        none = [run for run in none if filter in run.name]
        left = 0 if everything else max(0, len(runs) - newest)
        runs = runs[left:]
    else:
        left = 0 if everything else max(0, len(good) - newest)
        runs = [view(run) for run in good[left:]]
    if as_json:
        screen.print_json(
            {
                "dir": base,
                "runs": [_as_dict(run) for run in runs],
                "older": left,
                "no_runs": [{"folder": run.name, "path": run.path, "reason": run.problem} for run in none],
            }
        )
        return
    _print(base, runs, left, none)


def _has(run: RunView, text: str) -> bool:
    return any(text in each for each in (run.id, run.name, run.project, *run.tags))


def dropped(counts: dict[str, int]) -> int:
    """Records that were logged and are not there."""
    return counts["forgotten"] + counts["refused"] + counts["damaged"]


def _as_dict(run: RunView) -> dict[str, Any]:
    state = run.state
    return {
        "id": run.id,
        "name": run.name,
        "project": run.project,
        "group": run.group,
        "tags": run.tags,
        "state": state.name,
        "cause": state.cause,
        "started": iso(run.created_ns),
        "last": iso(run.last_ns),
        "active_s": run.active_ns / 1e9,
        "attempts": len(run.attempts),
        "counts": run.counts(),
        "path": run.found.path,
        "problems": [node.problem for node in run.nodes if node.problem],
    }


def _print(base: str, runs: list[RunView], left: int, none: list[Found]) -> None:
    if not runs and not none:
        screen.show(screen.line((f"no runs in {safe(base)}", "dim")))
        return
    now = time.time_ns()
    rows = [(run, run.counts()) for run in runs]
    wide = screen.width() >= 100
    some_dropped = any(dropped(counts) for _, counts in rows)
    columns = ["", "NAME", "ID", "STATE", "STARTED", "RECORDS"]
    columns[5:5] = ["ACTIVE"] if wide else []
    columns += ["DROPPED"] if some_dropped else []
    columns += ["PROJECT"] if wide else []
    right = tuple(
        at for at, name in enumerate(columns) if name in ("STARTED", "ACTIVE", "RECORDS", "DROPPED")
    )
    table = screen.table(*columns, right=right, grow=1)
    for run, counts in rows:
        mark, colour = screen.state_mark(run.state.name)
        lost = dropped(counts)
        cells: list[Any] = [
            screen.line((mark, colour)),
            screen.line(
                (safe(run.name) if run.name != run.id else "-", "bold" if run.name != run.id else "dim")
            ),
            screen.line(safe(run.id)),
            screen.line((run.state.name, colour)),
            screen.line(ago(run.created_ns, now)),
        ]
        cells += [screen.line(duration(run.active_ns / 1e9))] if wide else []
        cells.append(screen.line(short_count(counts["stored"] + counts["waiting"])))
        cells += (
            [screen.line((short_count(lost) if lost else "-", "yellow" if lost else "dim"))]
            if some_dropped
            else []
        )
        cells += [screen.line((safe(run.project), "dim"))] if wide else []
        table.add_row(*cells)
    if left:
        screen.show(screen.line((f"{plural(left, 'older run')} not shown (--all)", "dim")))
    if runs:
        screen.show(table)
    if none:
        screen.show(screen.line((f"no runs ({len(none)}):", "dim")))
        for each in none:
            screen.show(screen.line("  ", safe(each.name), ("  " + safe(each.problem), "dim")))

"""`logclient ls`: the runs of a folder or of a server."""

from __future__ import annotations

import time
from typing import Any

import click

from ..runs.folder import Found
from ..runs.source import Row, RunSource
from . import screen
from .options import amount, with_json, with_source
from .text import ago, duration, iso, plural, safe, short_count

_NEWEST = 50


@click.command("ls", epilog="Exit codes: 0 listed, 1 the server does not answer, 3 there is no such folder.")
@click.argument("filter", required=False, metavar="[TEXT]")
@amount("-n --newest", click.IntRange(0), _NEWEST, "N", "How many, the newest.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@with_source
@with_json
def command(filter: str | None, newest: int, everything: bool, source: RunSource, as_json: bool) -> None:
    """List the runs of a folder, or of a server.

    The newest comes last. With TEXT, those that have it in their id, name, project or tags. A folder in DIR that
    is damaged, foreign, empty or of a newer version is listed with the reason.

    \b
    logclient ls
    logclient ls baseline --dir /data/runs
    logclient ls --server http://collector:7789
    """
    most = None if everything else newest
    found = source.list(filter, most)
    rows = [run.row for run in found.runs]
    if as_json:
        screen.print_json(
            {
                source.kind: source.where,
                "runs": [_as_dict(row) for row in rows],
                "older": found.older,
                "no_runs": [
                    {"folder": run.name, "path": run.path, "reason": run.problem} for run in found.problems
                ],
            }
        )
        return
    _print(source.where, rows, found.older, found.problems)


def dropped(counts: dict[str, int]) -> int:
    """Records that were logged and are not there."""
    return counts["forgotten"] + counts["refused"] + counts["damaged"]


def _as_dict(row: Row) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "project": row.project,
        "group": row.group,
        "tags": row.tags,
        "state": row.state,
        "cause": row.cause,
        "observed": row.observed,
        "edited": list(row.edited),
        "started": iso(row.created_ns),
        "last": iso(row.last_ns),
        "active_s": row.active_ns / 1e9,
        "attempts": row.attempts,
        "counts": row.counts,
        "path": row.path,
        "problems": row.problems,
    }


def _state(run: Row) -> str:
    """The state, with the signal that ended the run where there was one, or whether it gets on."""
    if run.observed is not None:
        return f"{run.state} ({safe(str(run.observed['kind']))})"
    return (
        f"{run.state} ({safe(run.cause)})"
        if run.state in ("killed", "terminated") and run.cause
        else run.state
    )


def _print(base: str, runs: list[Row], left: int, none: list[Found]) -> None:
    if not runs and not none:
        screen.show(screen.line((f"no runs in {safe(base)}", "dim")))
        return
    now = time.time_ns()
    wide = screen.width() >= 100
    some_dropped = any(dropped(run.counts) for run in runs)
    columns = ["", "NAME", "ID", "STATE", "STARTED", "RECORDS"]
    columns[5:5] = ["ACTIVE"] if wide else []
    columns += ["DROPPED"] if some_dropped else []
    columns += ["PROJECT"] if wide else []
    right = tuple(
        at for at, name in enumerate(columns) if name in ("STARTED", "ACTIVE", "RECORDS", "DROPPED")
    )
    table = screen.table(*columns, right=right, grow=1)
    for run in runs:
        mark, colour = screen.state_mark(run.state)
        colour = "yellow" if run.observed is not None and run.observed["kind"] == "stalled" else colour
        counts, lost = run.counts, dropped(run.counts)
        cells: list[Any] = [
            screen.line((mark, colour)),
            screen.line(
                (safe(run.name) if run.name != run.id else "-", "bold" if run.name != run.id else "dim"),
                ("*" if run.edited else "", "dim"),
            ),
            screen.line(safe(run.id)),
            screen.line((_state(run), colour)),
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
    if any(run.edited for run in runs):
        screen.show(screen.line(("* edited after the fact: `logclient edit RUN --show` has by whom", "dim")))
    if none:
        screen.show(screen.line((f"no runs ({len(none)}):", "dim")))
        for each in none:
            screen.show(screen.line("  ", safe(each.name), ("  " + safe(each.problem), "dim")))

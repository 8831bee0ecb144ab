"""`logclient ls`: the runs of a folder or of a server."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import click

from ..runs.folder import Found
from ..runs.view import COUNTS, RunView, view
from . import screen
from .options import Source, all_runs, with_json, with_source
from .text import ago, duration, iso, plural, safe, short_count

_NEWEST = 50


@click.command("ls", epilog="Exit codes: 0 listed, 1 the server does not answer, 3 there is no such folder.")
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
@with_source
@with_json
def command(filter: str | None, newest: int, everything: bool, source: Source, as_json: bool) -> None:
    """List the runs of a folder, or of a server.

    The newest comes last. With TEXT, those that have it in their id, name, project or tags. A folder in DIR that
    is damaged, foreign, empty or of a newer version is listed with the reason.

    \b
    logclient ls
    logclient ls baseline --dir /data/runs
    logclient ls --server http://collector:7789
    """
    most = None if everything else newest
    base, rows, left, none = (
        _of_folder(source.dir, filter, most) if source.server is None else _of_server(source, filter, most)
    )
    if as_json:
        screen.print_json(
            {
                "server" if source.server is not None else "dir": base,
                "runs": [_as_dict(row) for row in rows],
                "older": left,
                "no_runs": [{"folder": run.name, "path": run.path, "reason": run.problem} for run in none],
            }
        )
        return
    _print(base, rows, left, none)


@dataclass(frozen=True, slots=True)
class Row:
    """A run in the list."""

    id: str
    name: str
    project: str
    group: str
    tags: list[str]
    state: str
    cause: str
    created_ns: int
    last_ns: int
    active_ns: int
    attempts: int
    counts: dict[str, int]
    path: str
    problems: list[str]


Listed = tuple[str, list[Row], int, list[Found]]  # where, runs, how many older ones, what is no run


def _of_folder(dir: str | None, filter: str | None, most: int | None) -> Listed:
    base, found = all_runs(dir)
    good = sorted((run for run in found if not run.problem), key=lambda run: (run.newest_ns, run.name))
    none = [run for run in found if run.problem]
    if filter:
        runs = [run for each in good if _has(run := view(each), filter)]
        none = [run for run in none if filter in run.name]
        left = 0 if most is None else max(0, len(runs) - most)
        runs = runs[left:]
    else:
        left = 0 if most is None else max(0, len(good) - most)
        runs = [view(run) for run in good[left:]]
    return base, [_row(run) for run in runs], left, none


def _row(run: RunView) -> Row:
    return Row(
        run.id,
        run.name,
        run.project,
        run.group,
        run.tags,
        run.state.name,
        run.state.cause,
        run.created_ns,
        run.last_ns,
        run.active_ns,
        len(run.attempts),
        run.counts(),
        run.found.path,
        [node.problem for node in run.nodes if node.problem],
    )


def _of_server(source: Source, filter: str | None, most: int | None) -> Listed:
    from ..remote import listing  # requests, which folders can do without

    server = source.open_server()
    if filter:
        found = listing.search(server, filter)
        left = 0 if most is None else max(0, len(found) - most)
        found = found[left:]
    else:
        found, left = listing.newest(server, most)
    return server.url, [_told(server.url, row) for row in found], left, []


def _told(url: str, row: dict[str, Any]) -> Row:
    """Correct an agent's counts, which may be older than what is stored."""
    counts = {**dict.fromkeys((*COUNTS, "waiting"), 0), **row["counts"], "stored": row["records"]}
    return Row(
        row["id"],
        row["name"] or row["id"],
        row["project"],
        row["group"],
        row["tags"],
        row["state"],
        row["reason"],
        row["created_ns"],
        row["ended_ns"] or row["last_seen_ns"],
        row["active_ns"],
        row["attempts"],
        counts,
        url,
        [],
    )


def _has(run: RunView, text: str) -> bool:
    return any(text in each for each in (run.id, run.name, run.project, *run.tags))


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
        "started": iso(row.created_ns),
        "last": iso(row.last_ns),
        "active_s": row.active_ns / 1e9,
        "attempts": row.attempts,
        "counts": row.counts,
        "path": row.path,
        "problems": row.problems,
    }


def _state(run: Row) -> str:
    """The state, with the signal that ended the run where there was one."""
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
        counts, lost = run.counts, dropped(run.counts)
        cells: list[Any] = [
            screen.line((mark, colour)),
            screen.line(
                (safe(run.name) if run.name != run.id else "-", "bold" if run.name != run.id else "dim")
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
    if none:
        screen.show(screen.line((f"no runs ({len(none)}):", "dim")))
        for each in none:
            screen.show(screen.line("  ", safe(each.name), ("  " + safe(each.problem), "dim")))

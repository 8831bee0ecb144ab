"""`logclient tail`: the last records of a run, and those that come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from logclient.shm.columns import Columns, read_column

from ..runs.source import Follower, RunSource
from ..wal.encoded import StreamColumns
from ..wal.scan import Damage, Gap
from . import screen
from .options import amount, with_json, with_source
from .text import clock, number, plural, safe

_RECORDS = 10
_MAX_AT_ONCE = 100  # on a terminal, where nobody reads more in half a second
_INDENT = 14

Record = tuple[
    int, str, int, int, int | None, list[tuple[str, str, Any]], str
]  # time, process, order, step, rank, ...


@click.command(
    "tail", epilog="Exit codes: 0 printed (with -f: the run ended), 1 no answer, 3 no such run, 130 Ctrl-C."
)
@click.argument("run", required=False, metavar="[RUN]")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until the run ends.")
@amount("-n --records", click.IntRange(0), _RECORDS, "N", "How many to begin with.")
@with_source
@with_json
def command(run: str | None, follow: bool, records: int, source: RunSource, as_json: bool) -> None:
    """Print the last records of a run; with -f, those that come too, within about a second.

    Without RUN, the newest. Reading does not disturb the run. With --json each line is one point, as in
    `logclient export --format jsonl`.

    \b
    logclient tail -f
    logclient tail mlp -n 100 --json
    logclient tail mlp -f --server http://collector:7789
    """
    follower = source.run(run).follower()
    found = _last(follower, max(0, records))
    many = len(follower.run.processes) > 1
    for record in found:
        _print(record, as_json, many)
    if not follow:
        return
    most = _MAX_AT_ONCE if screen.is_terminal() and not as_json else None
    for notices, new in _follow(follower):
        for line in notices:
            click.echo(safe(line), err=True)
        if most is not None and len(new) > most:
            click.echo(
                click.style(f"-- {len(new) - most:,} records more than a screen shows at once", dim=True)
            )
            new = new[-most:]
        for record in new:
            _print(record, as_json, many or len(follower.run.processes) > 1)


def _last(follower: Follower, count: int) -> list[Record]:
    """The last records over all streams, by time."""
    found = [record for item in follower.last(count) for record in _records(item)]
    return sorted(found)[-count:] if count else []


def _follow(follower: Follower) -> Iterator[tuple[list[str], list[Record]]]:
    """At each look: yield the notices of gaps and damage, and the records that came; at last how the run ended."""
    while True:
        was_over = follower.is_over  # asked before looking: then nothing can come after the look
        found = list(_new(follower))
        notices = [*follower.notices(), *(entry for entry in found if isinstance(entry, str))]
        new = sorted(entry for entry in found if not isinstance(entry, str))
        if was_over and follower.is_over and not found:
            state = follower.run.state
            cause = f": {state.cause}" if state.cause else ""
            yield [f"-- {state.name}{cause}"], []
            return
        yield notices, new
        time.sleep(follower.poll_s)
        follower.look_again()


def _new(follower: Follower) -> Iterator[Record | str]:
    for item in follower.poll():
        if isinstance(item, StreamColumns):
            yield from _records(item)
        elif isinstance(item, Gap):
            yield f"-- gap: {plural(item.last - item.first + 1, 'record')} {item.cause}"
        elif isinstance(item, Damage):
            yield f"-- damage: {item}"


def _records(item: StreamColumns) -> Iterator[Record]:
    columns: Columns = item.columns
    names = columns.shape.names
    cells = [read_column(code, cell) for code, cell in zip(columns.shape.codes, columns.cells, strict=True)]
    process, stream = item.process.hex(), item.stream.hex()
    for at in range(len(columns)):
        values = [
            (name, code, column[at])
            for name, code, column in zip(names, columns.shape.codes, cells, strict=True)
        ]
        yield columns.time[at], process, columns.order[at], columns.step[at], columns.rank, values, stream


def _print(record: Record, as_json: bool, many: bool) -> None:
    time_ns, process, _, step, rank, values, stream = record
    if as_json:
        for name, _, value in values:
            point = {
                "step": step,
                "key": name,
                "value": value,
                "time": time_ns,
                "stream": stream,
                "rank": rank,
            }
            screen.print_json_line(point)
        return
    whose = f" rank {rank}" if rank is not None else f" {process[:6]}" if many else ""
    # click's styles: a run that is followed may bring thousands of lines a second
    pieces = [click.style(clock(time_ns), dim=True) + click.style(whose, fg="magenta") + f"  step {step:,}"]
    for name, _, value in values:
        pieces.append(click.style(f"  {safe(name)} ", dim=True) + click.style(number(value), fg="cyan"))
    click.echo(_folded(pieces) if screen.is_terminal() else "".join(pieces))


def _folded(pieces: list[str]) -> str:
    """One record in as many lines as it takes, broken between its values."""
    lines, room = [pieces[0]], screen.width() - len(click.unstyle(pieces[0]))
    for piece in pieces[1:]:
        size = len(click.unstyle(piece))
        if size > room:
            lines.append(" " * _INDENT)
            room = screen.width() - _INDENT
        lines[-1] += piece
        room -= size
    return "\n".join(lines)

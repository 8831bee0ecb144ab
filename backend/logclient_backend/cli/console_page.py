"""`logclient show RUN --console`: what the program printed, folded to lines or raw."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator

import click

from ..runs.console import Console, ConsoleLine, Folders, Piece, pieces_of
from ..runs.source import StoredRun
from . import screen
from .text import clock, plural, safe

_FOLLOWED = 500  # pieces to begin with


def show(stored: StoredRun, streams: set[str], *, raw: bool, follow: bool, as_json: bool) -> None:
    """Print the output of a run. `streams`: stdout, stderr or both."""
    console = Console(stored)
    has_many = len(console.view().processes) > 1
    if raw and not follow:
        _print_raw((each for each in console.pieces() if each.stream in streams), as_json)
        return
    lines = _followed(console) if follow else console.lines()
    is_empty = True
    for line in lines:
        if line.stream in streams:
            is_empty = False
            _print(line, has_many, as_json)
    if is_empty and not as_json and not follow:
        click.echo(
            'nothing was captured: it is asked for with init(console="tee"), see docs/console.md', err=True
        )


def _print(line: ConsoleLine, has_many: bool, as_json: bool) -> None:
    if as_json:
        screen.print_json_line(line._asdict())
        return
    if line.lost:
        click.echo(click.style(f"-- {plural(line.lost, 'piece')} lost", dim=True))
    whose = f" rank {line.rank}" if line.rank is not None else f" {line.process[-6:]}"
    head = click.style(clock(line.time_ns), dim=True)
    if has_many:
        head += click.style(whose, fg="magenta")
    cut = click.style(f" ...{line.cut:,} characters cut", dim=True) if line.cut else ""
    text = safe(line.text)
    click.echo(f"{head}  {click.style(text, fg='red') if line.stream == 'stderr' else text}{cut}")


def _print_raw(pieces: Iterable[Piece], as_json: bool) -> None:
    """Write the texts as they are; on a terminal what it could obey is shown as an escape."""
    is_terminal = sys.stdout.isatty()
    for piece in pieces:
        if as_json:
            screen.print_json_line(piece._asdict())
        else:
            text = (
                safe(piece.text.replace("\n", "\0")).replace(safe("\0"), "\n") if is_terminal else piece.text
            )
            sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.flush()


def _followed(console: Console) -> Iterator[ConsoleLine]:
    """Yield the last lines, then those that come, each once the cursor has left it, until the run is over."""
    follower, folders, last = console.follower(), Folders(hold=0), dict[bytes, int]()
    for piece in pieces_of(follower.last(_FOLLOWED), last):
        yield from folders.feed(piece)
    while True:
        was_over = follower.is_over  # asked before looking: then nothing can come after the look
        found = list(pieces_of(follower.poll(), last))
        for piece in found:
            yield from folders.feed(piece)
        for notice in follower.notices():
            click.echo(safe(notice), err=True)
        if was_over and follower.is_over and not found:
            yield from folders.still_open(is_over=True)
            return
        time.sleep(follower.poll_s)
        follower.look_again()

"""Output of the commands: tables and text on standard output, progress on standard error.

rich is imported when something is printed, not before. On a terminal output has its width and colours; elsewhere it
is plain and as wide as it needs to be, so that nothing is cut for a `grep`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ..runs import strict

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

PLAIN_WIDTH = 100
_UNLIMITED = 1 << 16
_PATIENCE_S = 0.6  # what is done by then shows no bar

STATES = {
    "running": ("●", "cyan"),
    "late": ("●", "yellow"),
    "finished": ("✓", "green"),
    "failed": ("✗", "red"),
    "killed": ("✗", "red"),
    "terminated": ("■", "yellow"),
    "preempted": ("■", "blue"),
    "replaced": ("»", "blue"),
    "lost": ("?", "magenta"),
}


def is_terminal() -> bool:
    """Is standard output one?"""
    return sys.stdout.isatty()


def width() -> int:
    """Columns to draw in."""
    if not is_terminal():
        return PLAIN_WIDTH
    try:
        return max(40, os.get_terminal_size(sys.stdout.fileno()).columns)
    except (OSError, ValueError):
        return PLAIN_WIDTH


def can_draw() -> bool:
    """Does standard output take characters beyond ASCII?"""
    try:
        "⠿✓".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def console() -> Console:
    from rich.console import Console  # 30 ms that `--json` and `--help` need not pay

    if is_terminal():
        return Console(highlight=False, width=width())
    return Console(highlight=False, width=_UNLIMITED, no_color=True, force_terminal=False)


def show(*things: RenderableType) -> None:
    """Print; without trailing blanks where it is no terminal."""
    printer = console()
    if is_terminal():
        for thing in things:
            printer.print(thing)
        return
    with printer.capture() as captured:
        for thing in things:
            printer.print(thing, soft_wrap=True)
    text = "\n".join(line.rstrip() for line in captured.get().split("\n"))
    if not can_draw():
        text = text.encode("ascii", "replace").decode()
    click.echo(text, nl=False)


def table(*columns: str, right: tuple[int, ...] = (), grow: int | None = None) -> Table:
    """A table without lines; `right` aligned columns, `grow`: the one that is cut where the screen is narrow."""
    from rich.table import Table

    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False, pad_edge=False)
    for column, name in enumerate(columns):
        made.add_column(
            name,
            justify="right" if column in right else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=6 if column == grow else None,
            ratio=1 if column == grow and is_terminal() else None,
        )
    return made


def line(*parts: str | tuple[str, str]) -> Text:
    """Text of pieces, some with a style; never markup: names may hold brackets."""
    from rich.text import Text

    return Text.assemble(*parts)


def cells(text: str) -> int:
    """Columns that a text takes on a screen: some characters take two."""
    from rich.cells import cell_len

    return cell_len(text)


def folded(text: str, left: int) -> list[str]:
    """A text in pieces that fit on a terminal behind a margin of `left`; whole where it is none, or too narrow."""
    from rich.cells import chop_cells

    room = width() - left
    return (chop_cells(text, room) if is_terminal() and room >= 20 else [text]) or [""]


def state_mark(name: str) -> tuple[str, str]:
    """Sign and colour of a state."""
    mark, colour = STATES.get(name, ("?", "magenta"))
    return (mark if can_draw() else "*"), colour


def print_json(value: Any) -> None:
    """Strict JSON: NaN and infinities as strings."""
    click.echo(json.dumps(strict.plain(value), indent=2, allow_nan=False))


def print_json_line(value: Any) -> None:
    """Print as JSON on one line."""
    click.echo(json.dumps(strict.plain(value), allow_nan=False))


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, if that is a terminal and this takes a while; call what it gives with what was done."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    started = time.monotonic()
    made: list[Any] = []
    done_so_far = 0

    def advance(done: int) -> None:
        nonlocal done_so_far
        done_so_far += done
        if not made and time.monotonic() - started > _PATIENCE_S:
            made.extend(_start_bar(what, total))
        if made:
            made[0].update(made[1], completed=done_so_far)

    try:
        yield advance
    finally:
        if made:
            made[0].stop()


def _start_bar(what: str, total: int) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
    )
    bar.start()
    return bar, bar.add_task(what, total=max(1, total))

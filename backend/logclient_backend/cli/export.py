"""`logclient export`: the points of a run, as a file or on standard output."""

from __future__ import annotations

import os
import sys
from typing import IO, cast

import click

from logclient.errors import BadArgument
from logclient.shm.side_stream import MEDIA, SYSTEM

from ..runs.export import RUN_FILE, Export, points_file
from ..runs.formats import FORMATS
from ..runs.media import media_items
from ..runs.source import RunSource
from . import export_html, media_page, screen
from .options import amount, with_json, with_source
from .text import plural, safe, safe_lines


@click.command(
    "export",
    epilog="Exit codes: 0 all of it, 1 no answer, 3 no such run or ambiguous, 4 without what is damaged.",
)
@click.argument("run", metavar="RUN")
@click.option(
    "--format",
    "format",
    type=click.Choice(FORMATS),
    default="jsonl",
    show_default=True,
    help="Of the points.",
)
@click.option(
    "--out", metavar="FOLDER", help="Write points.<format> and run.json there; without it, points to stdout."
)
@click.option("--replace", is_flag=True, help="Overwrite an earlier export in FOLDER.")
@click.option(
    "--guard-cells",
    is_flag=True,
    help="With csv, for spreadsheets: an apostrophe before keys and texts that begin with = + - @.",
)
@click.option(
    "--system",
    "of_system",
    is_flag=True,
    help="Host and device metrics, instead of what was logged.",
)
@click.option(
    "--media",
    "of_media",
    is_flag=True,
    help="With --out: also images and other media values, and a list of them.",
)
@click.option(
    "--html",
    metavar="FILE",
    help="Write a page that shows the run, complete in one file, instead of its points.",
)
@click.option(
    "--console", "with_console", is_flag=True, help="With --html: also the end of the captured output."
)
@click.option(
    "--variables",
    "with_variables",
    is_flag=True,
    help="With --html: also the captured environment variables; secrets are masked.",
)
@amount(
    "--media-bytes",
    click.IntRange(0),
    export_html.MEDIA_BYTES,
    "BYTES",
    "With --html: how much of the page images and other media values may take.",
)
@with_source
@with_json
@click.pass_context
def command(
    ctx: click.Context,
    run: str,
    format: str,
    out: str | None,
    replace: bool,
    guard_cells: bool,
    of_system: bool,
    of_media: bool,
    html: str | None,
    with_console: bool,
    with_variables: bool,
    media_bytes: int,
    source: RunSource,
    as_json: bool,
) -> None:
    """Take the points of a run out: all of them, of all attempts, in one stated order.

    Each point is step, key, value, time, stream, rank. `time` is in whole nanoseconds since 1970 (in parquet a
    timestamp). In jsonl each line is an object with exactly these fields, NaN and infinities are "nan", "inf",
    "-inf". Floats have the shortest digits that give the same float again; ints have all of theirs.

    With --out, run.json holds the rest: config and all other documents, streams, ranks, gaps and counts.
    `logclient import FOLDER` makes the same run of it again. parquet needs `pip install 'logclient[parquet]'`.

    With --html FILE, one page with config, values, curves, gaps and media values, which any browser shows without a
    network. It holds no script. What the program printed and its environment variables are in it only if asked for.

    The order: within a process as it was logged, processes merged by time.

    \b
    logclient export mlp > mlp.jsonl
    logclient export mlp --format parquet --out mlp/
    logclient export mlp --html mlp.html
    """
    if guard_cells and (format != "csv" or out is not None):
        raise BadArgument(
            "--guard-cells is for spreadsheets and changes texts: use --format csv, and send standard output to a file"
        )
    if html is not None and (out is not None or as_json or replace or format != "jsonl"):
        raise BadArgument(
            "--html writes a page and no points: leave --out, --format, --replace and --json out"
        )
    if html is None and (with_console or with_variables or media_bytes != export_html.MEDIA_BYTES):
        raise BadArgument(
            "--console, --variables and --media-bytes are for the page: give --html FILE too, or see `logclient show`"
        )
    if of_media and html is not None:
        raise BadArgument("--html has media values in it by itself: leave --media out, or use --out FOLDER")
    if of_media and out is None:
        raise BadArgument("--media writes files: give --out FOLDER too")
    stored = source.run(run)
    if of_system and html is not None and (with_console or with_variables):
        raise BadArgument("--system shows metrics alone: leave --console and --variables out, or --system")
    if of_system:
        stored = stored.of_side(SYSTEM)
    if html is not None:
        troubles = export_html.write(
            stored,
            html,
            media_bytes=0 if of_system else media_bytes,
            has_console=with_console,
            has_variables=with_variables,
        )
        _report(ctx, troubles)
        return
    shown = stored.view()
    made = Export(shown)
    files, missing = 0, list[str]()
    total = made.reader.records
    if out is None:
        if as_json:
            raise BadArgument("--json describes what was written to a folder: give --out FOLDER too")
        if format == "parquet" and sys.stdout.isatty():
            raise BadArgument("parquet is no text: use --out FOLDER, or send standard output to a file")
        sink = Screen(sys.stdout.buffer) if sys.stdout.isatty() else sys.stdout.buffer
        with screen.progress("exporting", total) as advance:
            made.write_points(format, cast("IO[bytes]", sink), advance, guards_cells=guard_cells)
        sys.stdout.buffer.flush()
    else:
        there = [name for name in (RUN_FILE, points_file(format)) if os.path.lexists(os.path.join(out, name))]
        if there and not replace:
            raise BadArgument(f"{' and '.join(there)} exist in {out} already; --replace overwrites them")
        with screen.progress("exporting", total) as advance:
            made.write(out, format, advance)
        if of_media:
            media = stored.of_side(MEDIA)
            files, missing = media_page.write(stored, media_items(media.columns(media.keys())), out)
        if as_json:
            screen.print_json(
                {
                    "id": shown.id,
                    "folder": os.path.abspath(out),
                    "files": [points_file(format), RUN_FILE],
                    "points": made.points,
                    "media_files": files,
                    "damage": [str(damage) for damage in made.reader.damage],
                    "unsupported": made.reader.unsupported,
                }
            )
        else:
            click.echo(
                f"{plural(made.points, 'point')} of {safe(shown.id)} in {safe(os.path.join(out, points_file(format)))}"
            )
    troubles = [str(damage) for damage in made.reader.damage] + missing
    troubles += [f"{name}: {why}" for name, why in made.reader.unsupported.items()]
    troubles += [f"node {node.id}: {node.problem}" for node in shown.nodes if node.problem]
    _report(ctx, troubles)


def _report(ctx: click.Context, troubles: list[str]) -> None:
    """Print what is left out, and end with the exit code for it."""
    for trouble in troubles:
        click.echo(f"logclient: left out: {safe(trouble)}", err=True)
    if troubles:
        ctx.exit(4)


class Screen:
    """A terminal: what it could obey is shown as an escape. A file or pipe gets the bytes as they are."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out

    def write(self, data: bytes) -> int:
        return self._out.write(safe_lines(data.decode("utf-8")).encode("utf-8"))

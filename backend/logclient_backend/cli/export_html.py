"""`logclient export --html`: a run as one page that holds all it shows."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from importlib.metadata import version

import click

from logclient.errors import BadArgument, LogclientError
from logclient.shm.side_stream import MEDIA

from ..runs.console import Console
from ..runs.html import console, variables
from ..runs.html.media import MediaSection
from ..runs.html.page import page
from ..runs.media import media_items
from ..runs.source import StoredRun
from ..wal.whole import made_whole
from . import screen
from .text import safe, size

MEDIA_BYTES = 16 << 20  # pages that a mail takes and a browser opens at once


def write(
    stored: StoredRun, path: str, *, media_bytes: int, has_console: bool, has_variables: bool
) -> list[str]:
    """Write the page, and return a sentence for each thing that it lacks because of damage. Raises BadArgument."""
    if os.path.lexists(path):
        raise BadArgument(f"{path} exists already: name another file, or remove it")
    run = stored.view()
    with screen.progress("reading", sum(run.counts()[name] for name in ("stored",))) as advance:
        found = stored.contents(run, only=lambda key: True, progress=advance)
    troubles = []
    media = MediaSection((), stored.blob, media_bytes)
    try:
        side = stored.of_side(MEDIA)
        counts = side.view().counts()
        lost = counts["forgotten"] + counts["damaged"]
        media = MediaSection(media_items(side.columns(side.keys())), stored.blob, media_bytes, lost)
    except LogclientError as error:  # a collector of an earlier version has no media values
        troubles.append(f"media values: {error}")
    more: list[Iterable[str]] = [media]
    if has_console:
        more.append(console.section(Console(stored)))
    if has_variables:
        more.append(variables.section(run.environments))
    try:
        with made_whole(path) as file:
            for part in page(run, found, more, version=version("logclient"), now_ns=time.time_ns()):
                file.write(part.encode("utf-8", "replace"))
            bytes_written = file.tell()
    except OSError as error:
        raise BadArgument(f"{path} cannot be written: {error.strerror}") from error
    click.echo(
        f"{safe(run.name or run.id)} in {safe(path)} ({size(bytes_written)}): one page, without a script"
    )
    troubles += [str(damage) for damage in found.damage] + media.troubles
    troubles += [f"{name}: {why}" for name, why in found.unsupported.items()]
    return troubles + [f"node {node.id}: {node.problem}" for node in run.nodes if node.problem]

"""`logclient export --html`: a run as one page that holds all it shows."""

from __future__ import annotations

import os
import time
from importlib.metadata import version

import click

from logclient.errors import BadArgument

from ..runs.html.page import page
from ..runs.source import StoredRun
from ..wal.whole import made_whole
from . import screen
from .text import safe, size


def write(stored: StoredRun, path: str) -> list[str]:
    """Write the page, and return a sentence for each thing that it lacks because of damage. Raises BadArgument."""
    if os.path.lexists(path):
        raise BadArgument(f"{path} exists already: name another file, or remove it")
    run = stored.view()
    with screen.progress("reading", sum(run.counts()[name] for name in ("stored",))) as advance:
        found = stored.contents(run, only=lambda key: True, progress=advance)
    try:
        with made_whole(path) as file:
            for part in page(run, found, version=version("logclient"), now_ns=time.time_ns()):
                file.write(part.encode("utf-8", "replace"))
            bytes_written = file.tell()
    except OSError as error:
        raise BadArgument(f"{path} cannot be written: {error.strerror}") from error
    click.echo(
        f"{safe(run.name or run.id)} in {safe(path)} ({size(bytes_written)}): one page, without a script"
    )
    troubles = [str(damage) for damage in found.damage]
    troubles += [f"{name}: {why}" for name, why in found.unsupported.items()]
    return troubles + [f"node {node.id}: {node.problem}" for node in run.nodes if node.problem]

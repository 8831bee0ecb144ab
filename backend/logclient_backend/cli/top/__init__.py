"""`logclient top`: runs, live curves, ranks, captured output and what the logging did, in a terminal.

The verb is `command`; Textual is imported when it is called. `live_run.py` follows one run, `live_console.py` its
output; `app.py` is the screen, `panes.py` the texts in it.
"""

from __future__ import annotations

import sys

import click

from logclient.errors import BadArgument

from ...runs.source import RunSource
from ..options import amount, with_source


@click.command("top", epilog="Exit codes: 0 left with q, 1 no answer, 3 no such run or folder.")
@click.argument("run", required=False, metavar="[RUN]")
@amount("--every every_s", click.FloatRange(0.2), 1.0, "SECONDS", "How often to look for what is new.")
@with_source
def command(run: str | None, every_s: float, source: RunSource) -> None:
    """Show runs in the terminal, live: curves, ranks, output, and what the logging did. Reading does not disturb a run.

    Without RUN, the newest. Arrow keys choose a run, / filters keys, tab moves on, q leaves.

    \b
    logclient top
    logclient top mlp --server http://collector:7789
    """
    try:
        from .app import TopApp
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("textual", "rich"):
            raise
        raise BadArgument("logclient top needs Textual: pip install 'logclient[ui]'") from None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadArgument("logclient top draws on a terminal; `logclient ls` and `logclient show` print text")
    wanted = source.run(run).row.id if run is not None else ""
    TopApp(source, wanted, every_s).run()

"""`logclient ui`: the dashboard over a folder with runs, with no server to set up."""

from __future__ import annotations

import getpass
import hashlib
import html
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import click

from logclient.config import environment

from .options import run_folder
from .text import safe

if TYPE_CHECKING:
    from ..collector.data_folder import DataFolder
    from ..collector.serve import Collector
    from .ui_fill import Filler

PORT = 7790
_HOST = "127.0.0.1"
_TOKEN = "ui-fill"
_OPEN = "open.html"  # leads a browser to the page; the code in it is on no command line
_SIGNALS = frozenset((signal.SIGTERM, signal.SIGINT))
_ASK_S = 5.0


@click.command(
    "ui",
    epilog="Exit codes: 0 ended by Ctrl-C, 1 it could not begin, 3 there is no such folder.",
)
@click.argument("folder", required=False, metavar="[FOLDER]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help=f"Where the page is served, on this host alone; default {PORT}, or any where that is taken.",
)
@click.option("--no-open", is_flag=True, help="Print the link, and open no browser.")
@click.option(
    "--cache",
    metavar="DIR",
    help="Where the page's copy of the runs is kept; default a folder in ~/.cache/logclient.",
)
def command(folder: str | None, port: int | None, no_open: bool, cache: str | None) -> None:
    """Open the dashboard over the runs of a folder, live while they train. FOLDER: as for `logclient ls`.

    The folder is only read. What the page shows is kept in a cache, which may be removed at any time. The page is
    served on 127.0.0.1 and opens with a code that counts once, so other users of this host see nothing. A second
    `logclient ui` over the same folder prints another link to the page that is there.

    \b
    logclient ui
    logclient ui /data/runs --no-open --port 8000
    """
    from ..collector import data_folder as folders
    from ..collector import http

    http.check_installed("ui")
    base = run_folder(folder)
    if not os.path.isdir(base):
        raise click.exceptions.Exit(_say_missing(base))
    data = folders.make(cache or _cache_of(base))
    if (running := _running(data)) is not None:
        _announce(base, data, running, is_new=False, opens=not no_open)
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        code = _serve(base, data, port, opens=not no_open)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    raise click.exceptions.Exit(code)


def _say_missing(base: str) -> int:
    from . import MISSING

    click.echo(f"logclient: there is no folder {safe(base)}: name one that has runs", err=True)
    return MISSING


def _cache_of(base: str) -> str:
    """Return the cache for a folder: its name says nothing of the folder's."""
    root = environment().get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    digest = hashlib.sha256(os.path.realpath(base).encode("utf-8", "surrogateescape")).hexdigest()
    return os.path.join(root, "logclient", "ui", digest[:16])


def _running(data: DataFolder) -> str | None:
    """Return the address of the page that is served over this cache now."""
    from ..collector import control_socket

    found = control_socket.ask(data, "about", timeout_s=_ASK_S) if data.has_store else None
    return None if found is None else str(found["http"])


def _serve(base: str, data: DataFolder, port: int | None, *, opens: bool) -> int:
    from importlib.metadata import version

    from ..collector import serve
    from ..collector.tokens import INGEST, Tokens
    from ..wire.address import Address
    from ..wire.credentials import Access
    from .ui_fill import Filler

    settings = serve.Settings(
        data=data,
        listen=Address(_HOST, 0, False),
        http=Address(_HOST, _free_port(port), False),
        version=version("logclient"),
        durable=False,
        keep_deleted_s=0.0,
        is_over_folder=True,
    )
    fillers: list[Filler] = []

    def begin(collector: Collector) -> None:
        tokens = Tokens(data.path)
        tokens.revoke(_TOKEN)
        access = Access(collector.address, token=tokens.add(_TOKEN, [INGEST]))
        fillers.append(Filler(collector, base, access))
        fillers[0].start()
        url = str(collector.facts()["http"])
        _announce(base, data, url, is_new=True, opens=opens)

    try:
        return serve.run(settings, begin, _SIGNALS)
    finally:
        for filler in fillers:
            filler.stop()


def _free_port(wanted: int | None) -> int:
    if wanted is not None:
        return wanted
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, PORT))
        except OSError:
            return 0
    return PORT


def _new_link(data: DataFolder, url: str) -> str:
    """Return a link that logs a browser in, once. The code is in the fragment, which no browser sends."""
    from ..collector.sessions import Sessions
    from ..collector.tokens import ADMIN, Grant

    made = Sessions(data.path, is_valid=lambda grant: True)
    code = made.new_code(Grant(getpass.getuser(), frozenset({ADMIN})))
    return f"{url}/#/login?code={code}"


def _announce(base: str, data: DataFolder, url: str, *, is_new: bool, opens: bool) -> None:
    """Print the links, and open one where there is a screen."""
    link, port = _new_link(data, url), url.rpartition(":")[2]
    lines = [
        f"runs of {safe(base)}" + ("" if is_new else " (the page was open already)"),
        f"page          {link}",
        f"from afar     ssh -N -L {port}:{_HOST}:{port} {safe(getpass.getuser())}@{safe(socket.gethostname())}",
        "              the link counts once, for five minutes; `logclient ui` again prints another",
    ]
    click.echo("\n".join([*lines, "Ctrl-C ends it"] if is_new else lines))
    sys.stdout.flush()
    if opens and (environment().get("DISPLAY") or environment().get("WAYLAND_DISPLAY")):
        _open(os.path.join(data.path, _OPEN), link)


def _open(path: str, link: str) -> None:
    """Open a browser by way of a file: a command line can be read by every user of the host."""
    import webbrowser
    from pathlib import Path

    from ..wal.whole import write_whole

    page = f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(link)}"><title>logclient</title>'
    write_whole(path, page.encode(), 0o600)
    try:
        webbrowser.open(Path(path).as_uri())
    except (OSError, webbrowser.Error):
        pass  # the link is printed

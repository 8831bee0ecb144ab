"""Options that several verbs have, and what they lead to."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from logclient.config import Config
from logclient.errors import BadArgument, NoRun

from ..runs import folder
from ..runs.folder import Found
from ..runs.source import FolderSource, RunSource

F = TypeVar("F", bound=Callable[..., Any])


def with_source(function: F) -> F:
    """--dir, --server and --token-file, as `source`.

    A server is never taken from the environment unasked: what `logclient ls` shows would depend on a variable that was
    set for the trainer.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, dir: str | None, server: str | None, token_file: str, **more: Any) -> Any:
        if dir is not None and server is not None:
            raise BadArgument("--dir and --server: runs are looked for in one of them, give one")
        if server is None and token_file:
            raise BadArgument("--token-file is for --server: give that too")
        source: RunSource
        if server is None:
            source = FolderSource(run_folder(dir))
        else:  # what it needs (requests, grpc) is loaded here: folders do without
            from ..remote.source import ServerSource

            source = ServerSource(server, token_file=token_file)
        try:
            return function(*args, source=source, **more)
        except NoRun as error:
            if server is not None or os.path.isdir(run_folder(dir)):
                raise
            raise NoRun(f"{error}; name the folder of the runs with --dir DIR or LOGCLIENT_DIR") from None

    made = with_token_file(wrapped)
    made = click.option(
        "--server",
        metavar="URL",
        help="Look at a server instead: http://HOST:PORT or grpc://HOST:PORT; `-`: the one of LOGCLIENT_SERVER "
        "or of the config file.",
    )(made)
    return with_dir(made)  # type: ignore[return-value]


def with_token_file(function: F) -> F:
    return click.option(
        "--token-file",
        metavar="FILE",
        default="",
        help="File with the server's token; default LOGCLIENT_TOKEN, else the config file.",
    )(function)


def run_folder(dir: str | None) -> str:
    """The folder that is meant."""
    return os.path.abspath(dir or Config.from_env().dir or "logclient-runs")


def all_runs(dir: str | None) -> tuple[str, list[Found]]:
    """The folder, and what lies in it."""
    base = run_folder(dir)
    return base, folder.find(base)


def with_dir(function: F) -> F:
    return click.option(
        "--dir",
        "dir",
        metavar="DIR",
        help="Folder with the runs; default LOGCLIENT_DIR, else ./logclient-runs.",
    )(function)


def amount(
    names: str, of: click.IntRange | click.FloatRange, default: float, metavar: str, help: str
) -> Callable[[F], F]:
    """An option with a number in the range `of`, whose default is shown."""
    return click.option(
        *names.split(), type=of, default=default, show_default=True, metavar=metavar, help=help
    )


def with_json(function: F) -> F:
    return click.option(
        "--json", "as_json", is_flag=True, help="Strict JSON; NaN and infinities are strings."
    )(function)

"""Options that several verbs have, and what they lead to."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from logclient.config import Config

from ..runs import folder, live
from ..runs.folder import Found
from ..runs.view import RunView, view

F = TypeVar("F", bound=Callable[..., Any])


def with_dir(function: F) -> F:
    return click.option(
        "--dir",
        "dir",
        metavar="DIR",
        help="Folder with the runs; default LOGCLIENT_DIR, else ./logclient-runs.",
    )(function)


def with_json(function: F) -> F:
    return click.option(
        "--json", "as_json", is_flag=True, help="Strict JSON; NaN and infinities are strings."
    )(function)


def run_folder(dir: str | None) -> str:
    """The folder that is meant."""
    return os.path.abspath(dir or Config.from_env().dir or "logclient-runs")


def all_runs(dir: str | None) -> tuple[str, list[Found]]:
    """The folder, and what lies in it."""
    base = run_folder(dir)
    return base, folder.find(base, places=live.scan())


def one_run(dir: str | None, wanted: str | None) -> RunView:
    """The run that is meant; `NoRun` where that is none or more than one."""
    base, runs = all_runs(dir)
    return view(folder.resolve(runs, wanted, base))

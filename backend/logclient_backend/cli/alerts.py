"""`logclient alerts`: the file that says where alerts go, tried out."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from logclient import config as settings
from logclient.errors import BadArgument, NoRun

from ..alerts.attempt import Attempt
from ..alerts.delivery import limit_of, send, sentence
from ..alerts.event import ONCE, TEST, Event, Finding, RunName, event_of
from ..alerts.target_file import MISSING, OK, TargetFile
from ..alerts.targets import Target, is_open
from . import screen
from .options import with_json
from .text import safe

_POLL_S = 0.02
DELIVERED, FAILED, SKIPPED = "delivered", "failed", "skipped"
_COLOURS = {DELIVERED: "green", FAILED: "yellow", SKIPPED: "dim"}


@click.group("alerts")
def command() -> None:
    """Look after alerts: where they go stands in a file of yours, see docs/alerts.md.

    \b
    logclient alerts test
    """


@command.command(
    "test", epilog="Exit codes: 0 all is well, 1 a target failed or the file is refused, 3 no file."
)
@click.argument("file", required=False, metavar="[FILE]")
@click.option(
    "--commands", "with_commands", is_flag=True, help="Run commands too: they do what they are for."
)
@with_json
def test(file: str | None, with_commands: bool, as_json: bool) -> None:
    """Read the file of targets, say what is wrong with it, and send an event of kind `test` to each target.

    FILE is ~/.config/logclient/alerts.toml by default, or what LOGCLIENT_ALERTS names. URLs are never shown.

    \b
    logclient alerts test
    """
    path = os.path.abspath(file) if file else settings.alerts_file()
    if path is None:
        raise BadArgument("this user has no home folder: name the file")
    read = _read(path)
    if read.state == MISSING:
        raise NoRun(f"{path} is not there: docs/alerts.md says how to write one")
    found = _tried(read, with_commands) if read.state == OK else []
    problems = [read.trouble] if read.trouble else list(_doubts(path, read))
    if as_json:
        screen.print_json({"file": path, "problems": problems, "targets": found})
    else:
        for line in problems:
            screen.show(screen.line(("! ", "yellow"), safe(line)))
        for each in found:
            text = f": {each['text']}" if each["text"] else ""
            screen.show(
                screen.line(f"{each['name']}  ", (each["state"], _COLOURS[each["state"]]), safe(text))
            )
    if read.state != OK or any(each["state"] == FAILED for each in found):
        raise click.exceptions.Exit(1)


def _read(path: str) -> TargetFile:
    """Read the file in a child: its disk may hang."""
    read = TargetFile(path)
    while True:
        read.look()
        if read.state:
            return read
        time.sleep(_POLL_S)


def _doubts(path: str, read: TargetFile) -> list[str]:
    """Return sentences about what works and should not stay so."""
    targets = read.targets
    found = [] if targets.targets or targets.rules else [f"{path} has neither targets nor rules"]
    if any(target.url for target in targets.targets) and os.stat(path).st_mode & 0o044:
        found.append(f"others may read {path}, and its URLs are secrets: run `chmod 600 {path}`")
    return found + [
        f"{target.name}: everybody on the way can read what is sent: write https://"
        for target in targets.targets
        if target.url and is_open(target.url)
    ]


def _tried(read: TargetFile, with_commands: bool) -> list[dict[str, Any]]:
    """Send to all targets at once; each has its deadline."""
    from ..alerts import webhook as _webhook  # noqa: F401 - here, and not in each child

    event, ca = _event(), read.targets.ca
    under_way: dict[str, Attempt] = {}
    for target in read.targets.targets:
        if target.url or with_commands:
            under_way[target.name] = Attempt(lambda target=target: send(target, event, ca), limit_of(target))  # type: ignore[misc]
    while any(attempt.poll() is None for attempt in under_way.values()):
        time.sleep(_POLL_S)
    return [_result(target, under_way.get(target.name)) for target in read.targets.targets]


def _result(target: Target, attempt: Attempt | None) -> dict[str, Any]:
    kind = "command" if target.command else "webhook"
    if attempt is None:
        state, text = SKIPPED, "a command is run with --commands only"
    else:
        text = sentence(attempt.poll() or {})
        state = FAILED if text else DELIVERED
    return {"name": target.name, "kind": kind, "state": state, "text": text}


def _event() -> Event:
    host = os.uname().nodename
    text = f"`logclient alerts test` was called on {host}: nothing is wrong"
    return event_of(Finding(TEST, ONCE, text, level="info"), RunName("test", "test"), "0" * 16, {})

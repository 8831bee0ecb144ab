"""`logclient doctor`: what this machine is like for a run, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from . import doctor_checks as checks
from . import screen, server_check
from .doctor_checks import Finding
from .options import run_folder, with_dir, with_json
from .text import safe

_MARKS = {"ok": ("✓", "green"), "note": ("·", "cyan"), "do": ("!", "yellow")}


@click.command("doctor", epilog="Exit codes: 0 all is well, 1 something needs doing.")
@with_dir
@with_json
def command(dir: str | None, as_json: bool) -> None:
    """Check this machine: shared memory and what a run would get of it, the run folder and how fast it is, whether
    the agent can outlive this process here, what it may see of other processes, versions, and the server that runs go
    to, if one is set: does it answer, and may you ship and read there? For each finding, what to do.

    Nothing is changed but for a probe file in the run folder, written and removed by a process that may hang in it.

    \b
    logclient doctor
    logclient doctor --dir /mnt/nfs/runs
    """
    found: list[Finding] = []
    # the server's is last: grpc's threads are none of what is forked before
    steps = [*checks.all_checks(run_folder(dir)), server_check.server]
    with screen.progress("looking", len(steps)) as advance:
        for check in steps:
            found += check()
            advance(1)
    needed = sum(1 for finding in found if finding.level == "do")
    if as_json:
        screen.print_json({"needs_doing": needed, "findings": [finding.as_dict() for finding in found]})
    else:
        for thing in _page(found, needed):
            screen.show(thing)
    if needed:
        raise click.exceptions.Exit(1)


def _page(found: list[Finding], needed: int) -> Iterator[Any]:
    left = max(len(finding.subject) for finding in found)
    before = ""
    for finding in found:
        mark, colour = _MARKS[finding.level]
        if not screen.can_draw():
            mark = {"ok": "+", "note": "-", "do": "!"}[finding.level]
        subject = finding.subject if finding.subject != before else ""
        before = finding.subject
        indent = " " * (left + 4)
        yield _wrapped(
            [(f"{subject:<{left}}  ", "bold"), (f"{mark} ", colour)], safe(finding.text), indent, ""
        )
        if finding.advice:
            yield _wrapped(
                [indent],
                "→ " + safe(finding.advice) if screen.can_draw() else "> " + safe(finding.advice),
                indent,
                colour,
            )
    yield screen.line("")
    if needed:
        yield screen.line((f"{needed} {'thing needs' if needed == 1 else 'things need'} doing", "yellow"))
    else:
        yield screen.line(("nothing needs doing", "green"))


def _wrapped(start: list[Any], text: str, indent: str, style: str) -> Any:
    """One paragraph beside its label."""
    import textwrap

    room = max(30, screen.width() - len(indent))
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    return screen.line(*start, (("\n" + indent).join(lines), style))

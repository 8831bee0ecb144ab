"""Alerts of live runs, as their observers keep them on tmpfs: for `logclient status`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from ..alerts import saved
from ..alerts.event import END, Event
from ..runs import live
from ..runs.live import LiveShmDir
from . import screen
from .text import plural, safe

POLL_S = 0.25  # a run that ends takes its last events away
_BEFORE = 10  # events that were there when one began to follow
_COLOURS = {"info": "cyan", "warn": "yellow", "error": "red"}


def described(live_dir: LiveShmDir) -> dict[str, Any] | None:
    """Return the alerts of a run for programs; None where nobody observes it."""
    found = saved.read(live_dir.shm_dir.file(saved.NAME))
    if found is None:
        return None
    delivery = found.part("delivery")
    file = delivery.get("file")
    targets = delivery.get("targets")
    return {
        "events": [event.document() for _, event in found.events],
        "number": found.number,
        "trouble": str(found.more.get("trouble") or ""),
        "skipped_values": found.more.get("skipped"),
        "file": file if isinstance(file, dict) else {},
        "targets": targets if isinstance(targets, dict) else {},
    }


def problems(alerts: dict[str, Any] | None) -> Iterator[str]:
    """Yield what keeps alerts from getting anywhere."""
    if alerts is None:
        return
    if alerts["trouble"]:
        yield alerts["trouble"]
    if alerts["file"].get("trouble"):
        yield f"alerts: {alerts['file']['trouble']}"
    for name, target in alerts["targets"].items():
        if isinstance(target, dict) and target.get("trouble"):
            waiting = f", {plural(target['waiting'], 'alert')} not yet there" if target.get("waiting") else ""
            yield f"alerts: target {name}: {target['trouble']}{waiting}: `logclient alerts test` tries it"


def summary(alerts: dict[str, Any]) -> str:
    """Return one line: how many there were, and how many each target has."""
    counts = [f"{name} has {target.get('delivered', 0):,}" for name, target in alerts["targets"].items()]
    return plural(alerts["number"], "alert") + (f" ({', '.join(counts)})" if counts else ", sent nowhere")


def follow(as_json: bool) -> None:
    """Print alerts of this user's live runs as they come, until Ctrl-C."""
    shown: dict[str, int] = {}  # by run: number of the last event that was printed
    runs: dict[str, str] = {}
    is_first = True
    while True:
        there = {each.run_id + each.node: each for each in live.scan()}
        for at, live_dir in there.items():
            found = saved.read(live_dir.shm_dir.file(saved.NAME))
            events = found.events if found is not None else []
            new = [(number, event) for number, event in events if number > shown.get(at, 0)]
            for number, event in new[-_BEFORE:] if is_first else new:
                _print(event, as_json)
                shown[at] = number
            runs[at] = live_dir.name
        for at in [at for at in runs if at not in there]:
            name = runs.pop(at)
            shown.pop(at, None)
            if not as_json:
                click.echo(click.style(f"-- run {safe(name)} is over on this host", dim=True), err=True)
        is_first = False
        time.sleep(POLL_S)


def _print(event: Event, as_json: bool) -> None:
    if as_json:
        screen.print_json_line(event.document())
        return
    colour = "green" if event.phase == END else _COLOURS.get(event.level)
    click.echo(click.style(f"{event.at} ", dim=True) + click.style(safe(event.line()), fg=colour))

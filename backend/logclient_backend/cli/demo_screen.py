"""Output of `logclient demo`: a line per fault and a bar while it trains, then a table and the loss curve."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from ..runs.curve import Curve
from . import screen
from .demo_check import Truth
from .options import run_folder
from .text import duration, plural, safe

_HEIGHT = 8


class EventPrinter:
    """The demo's output: a line per event, and on a terminal a bar below them."""

    def __init__(self, quiet: bool, seconds: float) -> None:
        self._quiet = quiet
        self._seconds = seconds
        self._bar: Any = None
        self._task: Any = None
        self._shown: set[int] = set()

    def begin(self, is_disk: bool, why_not: str | None) -> None:
        if self._quiet:
            return
        disk = "freezes the disk under the run once" if is_disk else "stops it once"
        text = (
            f"A small network learns handwritten digits for {self._seconds:g} s and logs every step;",
            "so do two data loader workers. Meanwhile this command kills the agent's",
            f"worker three times and {disk}.",
        )
        screen.show(screen.line("\n".join(text)), screen.line(""))
        if why_not:
            screen.show(screen.line((f"(To freeze a disk takes {why_not}.)", "dim")), screen.line(""))
        if screen.is_terminal():
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(24),
                TextColumn("{task.fields[text]}"),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("starting PyTorch", total=None, text="")

    def show(self, now: float, notes: Truth) -> None:
        if self._bar is None or not notes.rows:
            return
        step, loss = notes.rows, notes.row(notes.rows - 1)[1]
        text = f"{now:4.1f} s   step {step:,}   loss {loss:.3f}"
        self._bar.update(self._task, description="training", total=self._seconds, completed=now, text=text)

    def show_event(self, event: dict[str, Any]) -> None:
        """A line for the event, once."""
        pid, kind = event["pid"], event["kind"]
        if id(event) in self._shown:
            return
        self._shown.add(id(event))
        if kind == "kill":
            waits = ", which waits for that disk in state D" if event["in_wait"] else ""
            text, colour = f"worker {pid} killed{waits}", "red"
        elif kind == "freeze":
            text, colour = "disk frozen: whoever writes to it waits, and cannot be killed", "blue"
        elif kind == "thaw":
            text, colour = f"disk thawed after {event['frozen_s']:.1f} s", "blue"
        elif kind == "stop":
            text, colour = f"worker {pid} stopped: nothing is taken from the lanes", "blue"
        else:
            text, colour = f"worker {pid} goes on", "blue"
        self._line(event["at_s"], text, colour)

    def show_replaced(self, event: dict[str, Any], worker: int) -> None:
        later = f"{event['after_s']:.2f} s later"
        if id(event) in self._shown:
            self._line(event["at_s"] + event["after_s"], f"worker {worker} took over, {later}", "green")
        else:
            self._line(event["at_s"], f"worker {event['pid']} killed; {worker} took over {later}", "red")

    def _line(self, at_s: float, text: str, colour: str) -> None:
        if self._quiet:
            return
        line = screen.line((f"{at_s:5.1f} s  ", "dim"), (text, colour))
        if self._bar is not None:
            self._bar.console.print(line, highlight=False)
        else:
            screen.show(line)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def show_result(result: dict[str, Any], curve: Curve) -> None:
    """The table, and the curve."""
    screen.show(screen.line(""))
    if result["training"]:
        table = screen.table("", "")
        table.show_header = False
        for name, value in rows_of(result):
            table.add_row(
                screen.line((name, "dim")), screen.line((value, "bold" if name.startswith("rec") else ""))
            )
        screen.show(table, screen.line(""))
    if curve.points:
        lines = curve.draw(screen.width() - 1, _HEIGHT, ascii_only=not screen.can_draw()).lines
        screen.show(screen.line(("train/loss", "bold")), *(screen.line((each, "cyan")) for each in lines))
    if not result["troubles"]:
        shown = f"{_command()} show {result['id']}"
        if result["dir"] != run_folder(None):
            shown += f" --dir {safe(result['dir'])}"
        screen.show(screen.line(""), screen.line((shown, "dim"), ("   draws the other curves", "dim")))


def _command() -> str:
    """Return how this command is called from here."""
    called = sys.argv[0]
    is_path = os.path.basename(called) == "logclient" and shutil.which("logclient") is None
    return safe(called) if is_path else "logclient"


def rows_of(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values of the table; all fit a screen of 80 characters."""
    trained, records = result["training"], result["records"]
    micro = "\u00b5s" if screen.can_draw() else "us"
    steps = (
        f"{trained['steps']:,} in {duration(trained['seconds'])}, accuracy {100 * trained['accuracy']:.1f} %"
    )
    with_ms, without_ms = trained["logged_ns"] / 1e6, trained["unlogged_ns"] / 1e6
    call = f"{trained['calls_ns'] / 1e3:.1f} {micro} median, {result['longest_call_ms']:.2f} ms the longest"
    same = ", each as it was noted by the trainer" if result["same"] else ""
    rows = [
        ("steps", steps),
        ("step time", f"{with_ms:.3f} ms with logging, {without_ms:.3f} ms without (medians)"),
        ("log() call", call),
        (
            "first in a fork",
            f"{result['first_call_of_a_fork_ms']:.1f} ms: it makes the memory of that process",
        ),
        (
            "records logged",
            f"{result['records_logged']:,} by {plural(len(result['processes']), 'process', 'processes')}",
        ),
        ("records stored", f"{records['stored']:,}{same}"),
        ("forgotten", f"{records['forgotten']:,}"),
    ]
    return rows + [(name, f"{records[name]:,}") for name in ("damaged", "refused") if records[name]]

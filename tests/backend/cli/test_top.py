"""`logclient top`: what its screen shows, with the keys that a user presses."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from textual.pilot import Pilot
from textual.widgets import DataTable, Footer, Static, TabbedContent

from logclient.shm.side_stream import CONSOLE
from logclient_backend.cli import cli
from logclient_backend.cli.top.app import TopApp
from logclient_backend.cli.top.live_console import MAX_LINES
from logclient_backend.runs.source import FolderSource
from tests.backend.runs.build import NodeMaker, Rec, rec, side_number, simple_run

PATIENCE_S = 30.0
EVERY_S = 0.2


def screen_of(folder: Path, wanted: str = "") -> TopApp:
    return TopApp(FolderSource(str(folder)), wanted, EVERY_S)


async def until(pilot: Pilot[None], holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        await pilot.pause(0.05)


def text(app: TopApp, name: str) -> str:
    return str(app.query_one(name, Static).content)


def test_curves_of_the_newest_run_then_of_the_one_that_is_chosen(tmp_path: Path) -> None:
    """Arrow keys choose; the filter takes part of a key."""
    simple_run(tmp_path, "first", 50, name="first run")
    made = NodeMaker(tmp_path, "second")
    made.created_ns += 10**9
    made.process(1, documents={"about": {"name": "second run"}})
    made.segment({(1, 1, 0): [rec(seq, train=float(seq), other=1.0) for seq in range(1, 50)]})
    made.save()

    async def use() -> None:
        app = screen_of(tmp_path)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: "train  49 at 490" in text(app, "#curves-body"), "the newest is shown")
            assert "second run" in text(app, "#head")
            await pilot.press("slash", *"oth")
            await until(pilot, lambda: "train" not in text(app, "#curves-body"), "keys are filtered")
            assert "other" in text(app, "#curves-body")
            await pilot.press("escape", "down")
            await until(pilot, lambda: "first run" in text(app, "#head"), "the other run is shown")
            await until(pilot, lambda: "loss" in text(app, "#curves-body"), "its curves are shown")

    asyncio.run(use())


def test_new_records_and_new_runs_appear(tmp_path: Path) -> None:
    """Each look adds what came since, and a run that begins is listed."""
    made = NodeMaker(tmp_path, "live")
    made.heard_ns = time.time_ns()  # it runs
    made.process(1)
    made.segment({(1, 1, 0): [rec(seq, loss=float(seq)) for seq in range(1, 11)]})
    made.save()

    async def use() -> None:
        app = screen_of(tmp_path, "live")
        async with app.run_test(size=(120, 40)) as pilot:
            await until(
                pilot, lambda: "loss  10 at 100" in text(app, "#curves-body"), "what is there is shown"
            )
            made.segment({(1, 1, 0): [rec(seq, loss=float(seq)) for seq in range(11, 21)]})
            made.save()
            await until(pilot, lambda: "loss  20 at 200" in text(app, "#curves-body"), "what came is shown")
            simple_run(tmp_path, "newer", 3)
            await until(
                pilot, lambda: app.query_one("#runs", DataTable).row_count == 2, "the new run is listed"
            )
            assert app.chosen == "live"

    asyncio.run(use())


def test_ranks_and_drops_have_tabs(tmp_path: Path) -> None:
    """Each process with its rank, host and state; each kind of loss with its count."""
    made = NodeMaker(tmp_path, "job")
    for rank in (0, 1):
        made.process(rank + 1, role="member" if rank else "owner")
        made.processes[f"{rank + 1:032x}"]["rank"] = rank
    one = (1, 1, 0)
    made.segment({one: [rec(seq) for seq in (1, 2, 6)]}, gaps=[(one, 3, 5, "forgotten")])
    made.save()

    async def use() -> None:
        app = screen_of(tmp_path)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: "loss" in text(app, "#curves-body"), "the run is shown")
            app.query_one(TabbedContent).active = "ranks"
            await pilot.pause()
            assert [line.split()[0] for line in text(app, "#ranks-body").splitlines()] == ["RANK", "0", "1"]
            assert "forgotten" in text(app, "#logging-body")

    asyncio.run(use())


def test_console_shows_the_last_lines_live_and_obeys_none_of_them(tmp_path: Path) -> None:
    """Standard error is told from standard output; a bar is one line; without a capture a sentence is there."""
    made = NodeMaker(tmp_path, "printed")
    made.heard_ns = time.time_ns()  # it runs
    made.process(1)
    made.segment({(1, 1, 0): [rec(seq) for seq in range(1, 4)]})
    side = side_number(CONSOLE)

    def printed(*pieces: tuple[str, str], after: int = 0) -> None:
        records = [
            Rec(seq, seq, seq, made.created_ns + seq, ((stream, "s", text),))
            for seq, (stream, text) in enumerate(pieces, after + 1)
        ]
        made.segment({(side, side, 0): records})
        made.save()

    bars = [("stdout", f"\rbar {done}/9") for done in range(10)]
    printed(
        ("stdout", "[bold]begin[/]\n"),
        ("stderr", "\x1b]0;title\x07a \x1b[31mwarning\x1b[0m \u202e\x9b31m\n"),
        *bars,
    )
    simple_run(tmp_path, "silent", 3, created_ns=made.created_ns - 10**9)

    async def use() -> None:
        app = screen_of(tmp_path, "printed")
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: "loss" in text(app, "#curves-body"), "the run is shown")
            app.query_one(TabbedContent).active = "console"
            await until(pilot, lambda: "bar 9/9" in text(app, "#console-body"), "its output is shown")
            lines = [line.partition(" ")[2] for line in text(app, "#console-body").splitlines()]
            assert lines[0] == "out [bold]begin[/]" and lines[1].startswith("err a warning \\u202e")
            assert lines[2:] == ["out bar 9/9"] and text(app, "#console-body").replace("\n", "").isprintable()
            printed(*[("stdout", f"\nline {number}") for number in range(1000)], after=12)
            await until(pilot, lambda: "line 999" in text(app, "#console-body"), "what came is shown")
            assert len(text(app, "#console-body").splitlines()) == MAX_LINES
            pane = app.query_one("#console-pane")
            await until(pilot, lambda: pane.scroll_y == pane.max_scroll_y > 0, "the end is in sight")
            assert pane.region.bottom == app.query_one(Footer).region.y
            await pilot.press("down")
            await until(pilot, lambda: "no output was captured" in text(app, "#console-body"), "a sentence")

    asyncio.run(use())


def test_without_a_terminal_it_names_commands_that_print(tmp_path: Path) -> None:
    """It draws nothing into a file or a pipe."""
    simple_run(tmp_path, "one", 3)
    done = CliRunner().invoke(cli, ["top", "--dir", str(tmp_path)], prog_name="logclient")
    assert done.exit_code == 2 and "draws on a terminal" in done.output


@pytest.mark.slow
def test_leaves_a_real_terminal_as_it_was(tmp_path: Path) -> None:
    """The command draws on a pseudo-terminal, and q ends it with code 0."""
    simple_run(tmp_path, "one", 3, name="a run")
    outer, inner = pty.openpty()
    words = [sys.executable, "-m", "logclient_backend", "top", "--dir", str(tmp_path)]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    done = subprocess.Popen(words, stdin=inner, stdout=inner, stderr=inner, env=env)
    os.close(inner)
    try:
        drawn, deadline = b"", time.monotonic() + PATIENCE_S
        while b"a run" not in drawn:
            assert time.monotonic() < deadline, drawn[-500:]
            drawn += os.read(outer, 1 << 16)
        os.write(outer, b"q")
        while True:
            try:
                drawn += os.read(outer, 1 << 16)
            except OSError:
                break
        assert done.wait(PATIENCE_S) == 0
        assert b"\x1b[?1049l" in drawn  # the usual screen is back
    finally:
        done.kill()
        done.wait()
        os.close(outer)

"""The screen of `logclient top`.

A list of runs on the left; curves, ranks, output and counts of the chosen one on the right. A worker thread reads, one
look at a time, so keys answer while a disk or a server does not.
"""

from __future__ import annotations

import time
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.reactive import reactive
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane
from textual.worker import get_current_worker

from logclient.errors import LogclientError

from ...runs.console import ConsoleLine
from ...runs.contents import Key
from ...runs.source import Row, RunSource
from ..text import ago, number, safe
from . import panes
from .live_console import LiveConsole
from .live_run import LiveRun, Look, drawing

MAX_RUNS = 200
MAX_SHOWN = 40  # curves on the screen; the filter chooses which
HEIGHT = 8
_MARGIN = 4  # borders and the scroll bar


class TopApp(App[None]):
    """Runs and the chosen run."""

    TITLE = "logclient top"
    CSS = """
    #runs { width: 44; border-right: solid $panel-lighten-2; }
    #head { height: auto; padding: 0 1; }
    #filter { display: none; height: 3; }
    #filter.open { display: block; }
    TabbedContent { height: 1fr; }
    .body { padding: 0 1; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Leave"),
        Binding("slash", "filter", "Filter keys"),
        Binding("escape", "unfilter", "All keys", show=False),
    ]
    chosen: reactive[str] = reactive("")

    def __init__(self, source: RunSource, wanted: str, every_s: float) -> None:
        """`wanted`: id of the run to begin with; empty: the newest."""
        super().__init__()
        self._source = source
        self._wanted = wanted
        self._every_s = every_s
        self._look: Look | None = None
        self._filter = ""
        self._has_console = False  # its tab is open; read by the worker thread
        self._lines: list[ConsoleLine] | None = None  # as they are shown

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield DataTable(id="runs", cursor_type="row")
            with Vertical():
                yield Static(id="head")
                yield Input(id="filter", placeholder="Part of a key")
                with TabbedContent():
                    for name in ("Curves", "Ranks", "Console", "Logging"):
                        with TabPane(name, id=name.lower()), VerticalScroll(id=f"{name.lower()}-pane"):
                            yield Static(id=f"{name.lower()}-body", classes="body")
        yield Footer()

    def on_mount(self) -> None:
        table = self.query_one("#runs", DataTable)
        table.add_columns("", "Run", "State", "Last")
        table.focus()
        self.follow_list()

    # ---- what is read ---------------------------------------------------------------------------------------

    @work(thread=True, exclusive=True, group="list")
    def follow_list(self) -> None:
        """Read the list of runs again and again."""
        worker = get_current_worker()
        while not worker.is_cancelled:
            try:
                rows = [stored.row for stored in self._source.list(None, MAX_RUNS).runs]
                self.call_from_thread(self._show_list, rows[::-1])
            except LogclientError as error:
                self.call_from_thread(self._show_error, str(error))
            _pause(worker, max(2.0, self._every_s))

    @work(thread=True, exclusive=True, group="run")
    def follow_run(self, id: str) -> None:
        """Read the chosen run again and again."""
        worker = get_current_worker()
        live: LiveRun | None = None
        console: LiveConsole | None = None
        while not worker.is_cancelled:
            try:
                live = live or LiveRun(self._source.run(id))
                look = live.look()
                if not worker.is_cancelled:
                    self.call_from_thread(self._show_run, id, look)
                if self._has_console and not worker.is_cancelled:
                    console = console or LiveConsole(self._source.run(id))
                    self.call_from_thread(self._show_console, id, console.look())
            except LogclientError as error:
                self.call_from_thread(self._show_error, str(error))
            _pause(worker, self._every_s)

    # ---- what is shown --------------------------------------------------------------------------------------

    def _show_list(self, rows: list[Row]) -> None:
        for table in self.query("#runs").results(DataTable):
            self._fill(table, rows)

    def _fill(self, table: DataTable[Text], rows: list[Row]) -> None:
        now = time.time_ns()
        known = {str(key.value) for key in table.rows}
        if [row.id for row in rows] != [str(key.value) for key in table.rows]:
            chosen = self.chosen
            table.clear()
            for row in rows:
                table.add_row(*_cells(row, now), key=row.id)
            wanted = chosen or self._wanted or (rows[0].id if rows else "")
            if any(row.id == wanted for row in rows):
                table.move_cursor(row=table.get_row_index(wanted))
            if not known and wanted:
                self.chosen = wanted
        else:
            columns = list(table.columns)
            for row in rows:
                for column, cell in zip(columns, _cells(row, now), strict=True):
                    table.update_cell(row.id, column, cell)
        if not rows:
            self._show_error(f"no runs in {self._source.where}")

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if event.row_key.value and self.chosen:
            self.chosen = str(event.row_key.value)

    def watch_chosen(self, chosen: str) -> None:
        if chosen:
            self._look = self._lines = None
            self._put("#console-body", Text("reading …", "dim"))
            self._put("#head", Text("reading …", "dim"))
            self.follow_run(chosen)

    def _show_run(self, id: str, look: Look) -> None:
        if id == self.chosen:
            self._look = look
            self.refresh_run()

    def _show_console(self, id: str, lines: list[ConsoleLine]) -> None:
        """Show the last lines; who looks at the end stays there."""
        if id != self.chosen or lines == self._lines:
            return
        is_first, self._lines = self._lines is None, lines
        for pane in self.query("#console-pane").results(VerticalScroll):
            is_at_end = pane.scroll_y >= pane.max_scroll_y - 1
            self._put("#console-body", panes.console(lines))
            if is_first or is_at_end:
                self.call_after_refresh(pane.scroll_end, animate=False)

    def _put(self, name: str, content: Text) -> None:
        """Show a text in a part of the screen; while that is taken down, what a look has found is let go."""
        for part in self.query(name).results(Static):
            part.update(content)

    def _show_error(self, text: str) -> None:
        self._put("#head", Text(safe(text), "yellow"))

    def refresh_run(self) -> None:
        """Draw the run as it was at the last look."""
        look = self._look
        if look is None:
            return
        run = look.run
        mark, colour = panes.mark(run.state.name)
        head = Text.assemble((f"{mark} ", colour), (safe(run.name), "bold"), (f"  {run.state.name}", colour))
        head.append(f"  {safe(run.state.cause)}" if run.state.cause else "", "dim")
        head.append(f"  last sign {ago(run.last_ns, time.time_ns())}", "dim")
        if run.observed is not None and run.observed.kind != "ok":
            head.append(f"\n{safe(run.observed.line, 300)}", "yellow")
        self._put("#head", head)
        self._put("#curves-body", self._curves(look.keys))
        self._put("#ranks-body", panes.ranks(look))
        self._put("#logging-body", panes.counts(look))

    def _curves(self, keys: list[Key]) -> Text:
        drawn = [key for key in keys if key.curves and self._filter in key.name.lower()]
        width = max(20, self.size.width - 44 - _MARGIN)
        made = Text()
        for key in drawn[:MAX_SHOWN]:
            last = key.last
            made.append(safe(key.name, width - 30), "bold")
            made.append(f"  {number(last.value)} at {last.step:,}\n" if last is not None else "\n", "dim")
            for at, line in enumerate(drawing(key, width, HEIGHT).lines):
                made.append(line + "\n", "cyan" if at < HEIGHT else "dim")
            made.append("\n")
        if len(drawn) > MAX_SHOWN:
            made.append(f"and {len(drawn) - MAX_SHOWN:,} more: / filters keys\n", "dim")
        if not drawn:
            text = f"no key has {self._filter!r} in it" if self._filter else "no numbers were logged yet"
            made.append(text, "dim")
        return made

    # ---- keys -----------------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.add_class("open")
        field.focus()

    def action_unfilter(self) -> None:
        field = self.query_one("#filter", Input)
        field.value = ""
        field.remove_class("open")
        self.query_one("#runs", DataTable).focus()

    @on(TabbedContent.TabActivated)
    def _show_tab(self, event: TabbedContent.TabActivated) -> None:
        self._has_console = event.pane.id == "console"

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter = event.value.lower()
        self.refresh_run()

    def on_input_submitted(self) -> None:
        self.query_one("#runs", DataTable).focus()

    def on_resize(self) -> None:
        self.refresh_run()


def _pause(worker: object, seconds: float) -> None:
    """Sleep in pieces, so that leaving takes no longer than one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not getattr(worker, "is_cancelled", False):
        time.sleep(min(0.1, seconds))


def _cells(row: Row, now_ns: int) -> tuple[Text, ...]:
    mark, colour = panes.mark(row.state)
    is_stalled = row.observed is not None and row.observed["kind"] == "stalled"
    state = "stalled" if is_stalled else row.state
    return (
        Text(mark, colour),
        Text(safe(row.name, 18)),
        Text(state, "yellow" if is_stalled else colour),
        Text(ago(row.last_ns, now_ns), "dim"),
    )

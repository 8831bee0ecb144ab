"""Texts of the panes of `logclient top`: ranks, counts, captured output. Pure.

Whatever a run named or printed goes through `safe`: nothing of it reaches the terminal as a control character.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.text import Text

from ...runs.console import ConsoleLine
from ..screen import STATES
from ..text import clock, duration, plural, safe
from .live_run import Look

_MAX_RANKS = 500
_MAX_LINE = 2_000  # characters of a line of output
_NOT_CAPTURED = (
    'no output was captured: a program asks for it with init(console="tee"), or LOGCLIENT_CONSOLE=tee'
)


def mark(state: str) -> tuple[str, str]:
    """Sign and colour of a state. Textual has replaced standard output, so that cannot be asked what it takes."""
    return STATES.get(state, ("?", "magenta"))


def ranks(look: Look) -> Text:
    """Return the processes of a run with their states."""
    made = Text()
    run = look.run
    processes = sorted(
        run.processes.values(), key=lambda each: (each.rank is None, each.rank or 0, each.created_ns)
    )
    made.append(f"{'RANK':>5}  {'HOST':<20} {'PID':>8}  {'STATE':<12} SINCE\n", "dim")
    for each in processes[:_MAX_RANKS]:
        state = run.states[each.id]
        rank = "-" if each.rank is None else str(each.rank)
        sign, colour = mark(state.name)
        since = (
            duration(max(0.0, (time.time_ns() - each.created_ns) / 1e9))
            if not state.is_over
            else safe(state.cause)
        )
        made.append(f"{rank:>5}  {safe(each.host, 20):<20} {each.pid:>8}  ")
        made.append(f"{sign} {state.name:<10} ", colour)
        made.append(f"{since}\n", "dim")
    return made


def counts(look: Look) -> Text:
    """Return what became of the records of a run, and its notices."""
    made = Text()
    for name, count in look.run.counts().items():
        is_loss = name in ("forgotten", "damaged", "refused", "left_out") and count
        made.append(f"{name.replace('_', ' '):<12} {count:>14,}\n", "yellow" if is_loss else "")
    for line in [*look.run.notices, *look.notices]:
        made.append(f"{safe(line, 300)}\n", "dim")
    return made


def console(lines: Sequence[ConsoleLine]) -> Text:
    """Return the last lines of the output, each with its time and its stream."""
    if not lines:
        return Text(_NOT_CAPTURED, "dim")
    made = Text()
    has_many = len({line.process for line in lines}) > 1
    for line in lines:
        if line.lost > 0:
            made.append(f"-- {plural(line.lost, 'piece')} lost\n", "yellow")
        is_error = line.stream == "stderr"
        made.append(f"{clock(line.time_ns)} ", "dim")
        if has_many:
            made.append(f"{line.process[-6:] if line.rank is None else f'rank {line.rank}':<8} ", "magenta")
        made.append("err " if is_error else "out ", "red" if is_error else "dim")
        made.append(safe(line.text, _MAX_LINE), "red" if is_error else "")
        made.append("\n")
    made.rstrip()
    return made

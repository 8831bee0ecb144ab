"""`logclient why`: who is stuck, where in its code, and in which state the kernel has it."""

from __future__ import annotations

import time
from typing import Any

import click

from logclient.errors import NoRun

from ..observe import groups, ranks, verdict, where
from ..observe.verdict import CANNOT_TELL, Observed, Verdict
from ..runs import live
from ..runs.live import LiveShmDir
from . import screen
from .options import with_json
from .text import duration, safe

NOT_STUCK, STUCK, UNSURE = 0, 3, 4
_MAX_FRAMES = 12


@click.command("why", epilog="Exit codes: 0 not stuck, 3 stuck, 4 cannot tell.")
@click.argument("run", required=False)
@click.option("--pid", "pids", type=int, multiple=True, metavar="PID", help="Any process; may be repeated.")
@click.option("--apart", "apart_s", type=click.FloatRange(0.1, 60), default=ranks.APART_S, show_default=True,
              metavar="SECONDS", help="Time between the two looks at each process.")  # fmt: skip
@click.option(
    "--late-after",
    "floor_s",
    type=click.FloatRange(0.1),
    default=ranks.FLOOR_S,
    show_default=True,
    metavar="SECONDS",
    help="No rank is late before; a run with slow steps has a longer limit of its own.",
)
@with_json
def command(run: str | None, pids: tuple[int, ...], apart_s: float, floor_s: float, as_json: bool) -> None:
    """Say why a run, or some processes, do not get on: the verdict first, then the evidence.

    RUN is an id, a unique part of one, or a name of a live run on this host; without it, the only one there is. Nothing
    is stopped or changed: stacks are read from outside. Values of variables are never read.

    \b
    logclient why
    logclient why mlp
    logclient why --pid 4711 --pid 4712
    """
    if pids:
        observed = ranks.observe(pids, apart_s=apart_s)
    else:
        live_dir = _find(run)
        lanes = {each.pid: each for each in live_dir.processes if not each.has_finished}
        observed = ranks.observe(lanes, apart_s=apart_s)
        for each in observed:
            ranks.add_records(each, lanes[each.pid], time.time_ns(), floor_s)
        observed += ranks.ended_with(live_dir, observed, time.time_ns())
        observed.sort(key=lambda each: (each.rank is None, each.rank or 0, each.pid))
    found = verdict.judge(observed)
    if as_json:
        screen.print_json(described(found, observed))
    else:
        for line in _page(found, observed):
            screen.show(line)
    raise click.exceptions.Exit(
        UNSURE if found.kind == CANNOT_TELL else STUCK if found.is_stuck else NOT_STUCK
    )


def _find(run: str | None) -> LiveShmDir:
    there = [each for each in live.scan() if each.processes]
    found = [each for each in there if run is None or run in each.run_id or run == each.name]
    if len(found) > 1:  # those of which nobody lives any more are left for `recover`
        found = [each for each in found if any(process.is_open for process in each.processes)] or found
    if len(found) == 1:
        return found[0]
    names = ", ".join(each.run_id for each in found or there) or "none"
    if not found:
        raise NoRun(
            f"No live run on this host is called {run!r}; there are: {names}."
            if run
            else "No run is live on this host."
        )
    raise NoRun(f"More than one run is meant: {names}. Name one.")


def described(found: Verdict, observed: list[Observed]) -> dict[str, Any]:
    """Return all of it for programs."""
    return {
        "verdict": found.kind,
        "stuck": found.is_stuck,
        "text": found.text,
        "pids": list(found.pids),
        "processes": [_process(each) for each in observed],
        "groups": [
            {"pids": list(group.pids), "frames": [_frame(frame) for frame in group.frames]}
            for group in _groups(observed)
        ],
    }


def _process(each: Observed) -> dict[str, Any]:
    state = verdict.state_of(each)
    sample = each.second.sample
    return {
        "pid": each.pid,
        "rank": each.rank,
        "state": state.kind,
        "text": state.text,
        "is_sure": state.is_sure,
        "kernel_state": sample.state if sample is not None else "",
        "wait_channel": sample.wait_channel if sample is not None else "",
        "kernel_stack": list(sample.kernel_stack) if sample is not None else [],
        "not_readable": list(sample.missing) if sample is not None else [],
        "cpu_share": round(each.cpu_share, 3),
        "step": each.step,
        "age_s": each.age_s,
        "limit_s": each.limit_s,
        "no_stack": each.second.stacks.reason,
        "frames": [_frame(frame) for frame in each.frames],
        "children": [_process(child) for child in each.children],
    }


def _frame(frame: Any) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})"


def _groups(observed: list[Observed]) -> list[groups.Group]:
    everybody = [*observed, *(child for each in observed for child in each.children)]
    return groups.grouped({each.pid: each.second.stacks for each in everybody})


def _page(found: Verdict, observed: list[Observed]) -> list[Any]:
    colour = "yellow" if found.is_stuck else "green" if found.kind != CANNOT_TELL else "magenta"
    lines: list[Any] = [screen.line((found.kind, f"bold {colour}"), (f": {safe(found.text)}", ""))]
    table = screen.table(
        "RANK", "PID", "KERNEL", "CPU", "STEP", "LAST RECORD", "WHERE", right=(0, 1, 3, 4, 5)
    )
    for each in observed:
        sample = each.second.sample
        kernel = "-" if sample is None else " ".join(filter(None, (sample.state, sample.wait_channel)))
        frame = where.own_frame(each.frames)
        stands = f"{frame.function} ({frame.file}:{frame.line})" if frame else each.second.stacks.reason
        table.add_row(
            "-" if each.rank is None else str(each.rank),
            str(each.pid),
            safe(kernel),
            f"{each.cpu_share:.0%}",
            "-" if each.step is None else str(each.step),
            "-" if each.age_s is None else f"{duration(each.age_s)} ago",
            safe(stands),
        )
    lines.append(table)
    names = {each.pid: each.name for each in observed}
    names |= {child.pid: f"child {child.pid} of {each.name}" for each in observed for child in each.children}
    for group in _groups(observed):
        lines.append(screen.line((", ".join(names.get(pid, str(pid)) for pid in group.pids), "bold")))
        lines += [screen.line((f"    {safe(_frame(frame))}", "")) for frame in group.frames[:_MAX_FRAMES]]
        if len(group.frames) > _MAX_FRAMES:
            lines.append(screen.line((f"    and {len(group.frames) - _MAX_FRAMES} more", "dim")))
    return lines

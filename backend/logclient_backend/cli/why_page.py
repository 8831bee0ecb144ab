"""The page of `logclient why`: the verdict, the ranks, stacks in groups, GPUs and the kernel log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..observe import where
from ..observe.described import Member, frame_text, groups_of, ranks_on
from ..observe.gpu import Gpu, median_of_others
from ..observe.report import Job, Report, ranges
from ..observe.verdict import CANNOT_TELL, Observed
from . import screen, why_calls
from .text import duration, plural, safe

_MAX_FRAMES, _MAX_THREADS = 12, 8
_MAX_SPREAD_S = 60.0
_MAX_ROWS, _MAX_NAMES, _MAX_BLAMED, _MAX_NODES = 64, 12, 4, 16
_MERGE = "They log to no run here: `logclient why --local --json` on their hosts, then `logclient why --merge FILES`."


def page(job: Job, *, is_merged: bool) -> list[Any]:
    """Return the page, a part for each paragraph and table."""
    found = job.verdict
    colour = "yellow" if found.is_stuck else "green" if found.kind != CANNOT_TELL else "magenta"
    lines: list[Any] = [screen.line((found.kind, f"bold {colour}"), (f": {safe(found.text)}", ""))]
    lines += _nodes(job)
    if job.missing and found.is_stuck and not (is_merged or job.nodes):
        lines.append(screen.line((_MERGE, "dim")))
    if job.spread_s > _MAX_SPREAD_S and not job.nodes:  # their ages are shown with them
        text = (
            f"By their clocks the hosts were looked at within {duration(job.spread_s)}: ask them at one time."
        )
        lines.append(screen.line((text, "yellow")))
    lines.append(_ranks(job))
    if len(job.processes) > _MAX_ROWS:
        lines.append(screen.line((f"and {len(job.processes) - _MAX_ROWS} more", "dim")))
    for each in job.processes:
        lines += _without_stack(each)
    blamed = {each.key: each for each in job.processes if each.key in found.blamed}
    for each in list(blamed.values())[:_MAX_BLAMED]:
        lines += _threads(each)
    for group in groups_of(job.processes, job.verdict.blamed):
        lines.append(screen.line((safe(_names(group.members)), "bold")))
        lines += [screen.line(f"    {safe(frame_text(frame))}") for frame in group.frames[:_MAX_FRAMES]]
        if len(group.frames) > _MAX_FRAMES:
            lines.append(screen.line((f"    and {len(group.frames) - _MAX_FRAMES} more", "dim")))
    for report in job.reports:
        lines += _gpus(report, len(job.reports) > 1)
        lines += _kernel_log(report, len(job.reports) > 1)
    return lines


def _nodes(job: Job) -> Iterator[Any]:
    """Yield a line for each node that a collector has; of many those first that have no report."""
    states = sorted(job.nodes, key=lambda node: (node.is_seen, node.is_known))
    for node in states[:_MAX_NODES]:
        yield screen.line((safe(node.line), "" if node.is_known else "yellow"))
    if len(states) > _MAX_NODES:
        yield screen.line((f"and {len(states) - _MAX_NODES} more nodes", "dim"))


def _names(members: Sequence[Member]) -> str:
    """Return the names of some processes; of many the numbers of their ranks, and how many others there are."""
    if len(members) <= _MAX_NAMES:
        return ", ".join(member.name for member in members)
    numbers = sorted({member.rank for member in members if member.rank is not None})
    others = sum(member.rank is None for member in members)
    parts = [f"ranks {ranges(numbers)}"] if numbers else []
    return " and ".join([*parts, *([plural(others, "other process", "other processes")] if others else [])])


def _ranks(job: Job) -> Any:
    """Return the table of the ranks: those that are to blame first, where there are more than a screen shows."""
    many = any(each.node for each in job.processes)
    has_sections = any(each.sections is not None for each in job.processes)
    columns = (
        *("RANK", *(["HOST"] if many else []), "PID", "KERNEL", "CPU", "STEP", "LAST RECORD"),
        *(*(["SECTION"] if has_sections else []), "WHERE"),
    )
    right = tuple(
        at for at, name in enumerate(columns) if name in ("RANK", "PID", "CPU", "STEP", "LAST RECORD")
    )
    table = screen.table(*columns, right=right)
    shown = job.processes
    if len(shown) > _MAX_ROWS:
        blamed = set(job.verdict.blamed)
        shown = sorted(shown, key=lambda each: each.key not in blamed)[:_MAX_ROWS]
    for each in shown:
        sample = each.second.sample
        kernel = "-" if sample is None else " ".join(filter(None, (sample.state, sample.wait_channel)))
        frame = where.own_frame(each.frames)
        table.add_row(
            "-" if each.rank is None else str(each.rank),
            *([safe(each.node)] if many else []),
            str(each.pid),
            safe(kernel),
            f"{each.cpu_share:.0%}",
            "-" if each.step is None else str(each.step),
            "-" if each.age_s is None else f"{duration(each.age_s)} ago",
            *([_section(each)] if has_sections else []),
            safe(frame_text(frame) if frame is not None else each.second.stacks.reason),
        )
    return table


def _section(each: Observed) -> str:
    found = each.sections
    return "-" if found is None or not found.current else f"{safe(found.current)} {duration(found.since_s)}"


def _without_stack(each: Observed) -> Iterator[Any]:
    """Yield what is known of a process whose stack could not be read: its last calls, and whom it allows to read it."""
    if each.frames:
        return
    if each.ptracer:
        yield screen.line((safe(each.ptracer), "yellow"))
    if each.calls:
        yield screen.line((safe(f"last calls of {each.name}"), "bold"))
    for thread in each.calls:
        yield from why_calls.lines_of(thread, each.pid)


def _threads(each: Observed) -> Iterator[Any]:
    """Yield a line for each thread beside the main thread that stands in Python code."""
    threads = [thread for thread in each.second.stacks.threads if thread.id != each.pid and thread.frames]
    if not threads:
        return
    yield screen.line((safe(f"other threads of {each.name}"), "bold"))
    for thread in threads[:_MAX_THREADS]:
        frame = where.own_frame(thread.frames)
        marks = [
            mark for mark, is_so in (("runs", thread.is_active), ("holds the GIL", thread.has_gil)) if is_so
        ]
        mark = f" ({', '.join(marks)})" if marks else ""
        at = frame_text(frame) if frame is not None else ""
        yield screen.line(safe(f"    {thread.name or thread.id}{mark}: {at}"))
    if len(threads) > _MAX_THREADS:
        yield screen.line((f"    and {len(threads) - _MAX_THREADS} more", "dim"))


def _gpus(report: Report, is_named: bool) -> Iterator[Any]:
    """Yield the GPUs of a node; nothing where it has no driver."""
    at = f" of {safe(report.node.host)}" if is_named else ""
    if report.gpus.is_fault:
        yield screen.line((f"GPUs{at}: {safe(report.gpus.absent)}", "bold yellow"))
        return
    devices = report.gpus.devices
    if not devices:
        return
    yield screen.line(
        (f"GPUs{at}", "bold"), " (in brackets: the median of the others)" if len(devices) > 1 else ""
    )
    table = screen.table(
        "GPU", "RANKS", "BUSY %", "SM MHZ", "POWER W", "TEMP C", "MIB", "SLOWED BY", "ERRORS"
    )
    for each in devices:
        found = ranks_on(each, report)

        def beside(field: str, each: Gpu = each) -> str:
            value = getattr(each, field)
            median = median_of_others(devices, each.index, field)
            text = "-" if value is None else f"{value:.0f}"
            return text if median is None else f"{text} ({median:.0f})"

        table.add_row(
            str(each.index),
            ", ".join(map(str, found)) or "-",
            *map(beside, ("utilisation", "sm_mhz", "power_w", "temperature_c", "memory_mib")),
            ", ".join(each.throttled) or "-",
            ", ".join(each.errors) or "-",
        )
    yield table


def _kernel_log(report: Report, is_named: bool) -> Iterator[Any]:
    """Yield the lines of the kernel log; nothing where there are none."""
    log = report.kernel_log
    if not log.lines:
        return
    at = f" of {safe(report.node.host)}" if is_named else ""
    more = f" ({log.left_out} older ones are left out)" if log.left_out else ""
    yield screen.line((f"kernel log{at}, last hour", "bold"), more)
    for line in log.lines:
        yield screen.line(f"    {duration(line.age_s)} ago  {line.code}: {safe(line.text)}")

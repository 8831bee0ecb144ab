"""A verdict and its evidence as plain text, for `why.txt`: readable with `cat` while every disk hangs."""

from __future__ import annotations

from collections.abc import Iterator

from . import where
from .described import frame_text, groups_of
from .report import Job
from .verdict import Observed

_MAX_FRAMES = 30
_MAX_ROWS = 256


def page(job: Job) -> Iterator[str]:
    """Yield the lines: ranks, stacks in groups, GPUs, the kernel log. The verdict is not among them."""
    yield "ranks:"
    for each in job.processes[:_MAX_ROWS]:
        yield f"  {_row(each)}"
    if len(job.processes) > _MAX_ROWS:
        yield f"  and {len(job.processes) - _MAX_ROWS} more"
    for each in job.processes[:_MAX_ROWS]:
        if not each.frames:
            yield from _last_calls(each)
    for group in groups_of(job.processes, job.verdict.blamed):
        yield ""
        yield ", ".join(member.name for member in group.members[:_MAX_ROWS]) + ":"
        for frame in group.frames[:_MAX_FRAMES]:
            yield f"    {frame_text(frame)}"
        if len(group.frames) > _MAX_FRAMES:
            yield f"    and {len(group.frames) - _MAX_FRAMES} more"
    for report in job.reports:
        if report.gpus.is_fault:
            yield ""
            yield f"GPUs: {report.gpus.absent}"
        for device in report.gpus.devices:
            power = "" if device.power_w is None else f", {device.power_w:.0f} W"
            errors = "".join(f", {error}" for error in device.errors)
            yield f"GPU {device.index}: {device.utilisation} % busy{power}{errors}"
        if report.kernel_log.lines:
            yield ""
            yield "kernel log, last hour:"
        for line in report.kernel_log.lines:
            yield f"    {line.age_s:.0f} s ago  {line.code}: {line.text}"


def _row(each: Observed) -> str:
    sample = each.second.sample
    kernel = "gone" if sample is None else " ".join(filter(None, (sample.state, sample.wait_channel)))
    frame = where.own_frame(each.frames)
    stands = frame_text(frame) if frame is not None else each.end or each.second.stacks.reason
    step = "" if each.step is None else f", step {each.step}"
    age = "" if each.age_s is None else f", last record {each.age_s:.0f} s ago"
    section = ""
    if each.sections is not None and each.sections.current:
        section = f", in section {each.sections.current!r} for {each.sections.since_s:.0f} s"
    return f"{each.name} (PID {each.pid}): {kernel}, CPU {each.cpu_share:.0%}{step}{age}{section}: {stands}"


def _last_calls(each: Observed) -> Iterator[str]:
    """Yield what is known of a process whose stack could not be read."""
    if each.ptracer:
        yield f"    {each.ptracer}"
    for thread in each.calls:
        yield ""
        yield f"last calls of {each.name}, thread {thread.thread}, newest last:"
        for call in thread.calls:
            verb = "returned from" if call.is_return else "called"
            yield f"    {call.ago_s:.1f} s ago  {verb} {call.function} ({call.file}:{call.line})"

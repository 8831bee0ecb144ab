"""A verdict and its evidence for programs: the JSON of `logclient why --json`, which `report.reports_in` reads.

`reports` in it is all that was seen, without loss; the rest is made from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import gpu, groups, saved, verdict
from .report import VERSION, Job, Report
from .stacks import Frame, Stacks
from .verdict import Observed


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a group."""

    node: str
    pid: int
    rank: int | None
    name: str


def described(job: Job) -> dict[str, Any]:
    """Return all of it for programs, and for `reports_in`."""
    found = job.verdict
    by_key = {each.key: each for each in job.processes}
    blamed = [by_key[key] for key in found.blamed]
    return {
        "why": VERSION,
        "verdict": found.kind,
        "stuck": found.is_stuck,
        "text": found.text,
        "pids": list(found.pids),
        "blamed": [named(each) for each in blamed],
        "missing_ranks": job.missing,
        "nodes": [saved.to_json(node) for node in job.nodes],
        "spread_s": job.spread_s,
        "processes": [_process(each) for each in job.processes],
        "groups": [
            {
                "pids": [each.pid for each in group.members],
                "processes": [named(each) for each in group.members],
                "frames": [frame_text(frame) for frame in group.frames],
            }
            for group in groups_of(job.processes, job.verdict.blamed)
        ],
        "gpus": [gpus_described(report, job.processes) for report in job.reports],
        "kernel_log": [
            {"host": report.node.host, **saved.to_json(report.kernel_log)} for report in job.reports
        ],
        "reports": [saved.to_json(report) for report in job.reports],
    }


def groups_of(processes: Sequence[Observed], blamed: Sequence[verdict.Key]) -> list[groups.Group[Member]]:
    """Return the processes and their children by equal stacks: those of who is to blame first, then the smallest."""
    everybody = [*processes, *(child for each in processes for child in each.children)]
    parents = {child.key: each for each in processes for child in each.children}
    found: dict[Member, Stacks] = {}
    for each in everybody:
        found.setdefault(
            Member(each.node, each.pid, each.rank, _child_name(each, parents)), each.second.stacks
        )
    return sorted(
        groups.grouped(found),
        key=lambda group: not any((member.node, member.pid) in blamed for member in group.members),
    )


def _child_name(each: Observed, parents: dict[verdict.Key, Observed]) -> str:
    parent = parents.get(each.key)
    return each.name if parent is None else f"child {each.pid} of {parent.name}"


def named(each: Observed | Member) -> dict[str, Any]:
    """Return the names of a process."""
    return {"host": each.node, "pid": each.pid, "rank": each.rank, "name": each.name}


def gpus_described(report: Report, processes: Sequence[Observed]) -> dict[str, Any]:
    """Return the GPUs of a node, with the ranks on each and the medians of the others."""
    fields = ("utilisation", "memory_mib", "sm_mhz", "power_w", "temperature_c")
    devices = report.gpus.devices
    return {
        "host": report.node.host,
        "absent": report.gpus.absent,
        "devices": [
            {
                **saved.to_json(each),
                "ranks": ranks_on(each, report),
                "errors": list(each.errors),
                "median_of_others": {
                    name: gpu.median_of_others(devices, each.index, name) for name in fields
                },
            }
            for each in devices
        ],
    }


def ranks_on(device: gpu.Gpu, report: Report) -> list[int]:
    """Return the ranks that compute on a device, by the PIDs that the driver gives; those of children count."""
    found = set()
    for each in report.processes:
        if each.rank is not None and {each.pid, *(child.pid for child in each.children)} & set(device.pids):
            found.add(each.rank)
    return sorted(found)


def _process(each: Observed) -> dict[str, Any]:
    state = verdict.state_of(each)
    sample = each.second.sample
    return {
        **named(each),
        "state": state.kind,
        "text": state.text,
        "is_sure": state.is_sure,
        "kernel_state": sample.state if sample is not None else "",
        "wait_channel": sample.wait_channel if sample is not None else "",
        "kernel_stack": list(sample.kernel_stack) if sample is not None else [],
        "mount": saved.to_json(sample.awaited) if sample is not None and sample.awaited is not None else None,
        "not_readable": list(sample.missing) if sample is not None else [],
        "cpu_share": round(each.cpu_share, 3),
        "step": each.step,
        "age_s": each.age_s,
        "limit_s": each.limit_s,
        "section": each.sections.current if each.sections is not None else None,
        "section_s": each.sections.since_s if each.sections is not None else None,
        "sections": {time.name: time.seconds for time in each.sections.times}
        if each.sections is not None
        else {},
        "work_s": each.work_s,
        "last_calls": [saved.to_json(thread) for thread in each.calls],
        "ptracer": each.ptracer,
        "no_stack": each.second.stacks.reason,
        "frames": [frame_text(frame) for frame in each.frames],
        "threads": [
            {
                "name": thread.name,
                "id": thread.id,
                "runs": thread.is_active,
                "has_gil": thread.has_gil,
                "frames": [frame_text(frame) for frame in thread.frames],
            }
            for thread in each.second.stacks.threads
        ],
        "children": [_process(child) for child in each.children],
    }


def frame_text(frame: Frame) -> str:
    """Return a frame as a line of a stack has it."""
    return f"{frame.function} ({frame.file}:{frame.line})"

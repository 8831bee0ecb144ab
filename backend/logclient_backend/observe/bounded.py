"""A report made small enough to be sent: what explains least is left out first, and `Report.left_out` names it.

Pure. The verdict needs the two looks at each process, with the stack of its main thread: these go last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from . import saved
from .kernel_log import KernelLog
from .report import VERSION, Report
from .stacks import Frame, Thread
from .verdict import Look, Observed

T = TypeVar("T")

_MAX_ENDED = 64
_MAX_FRAMES = 16  # the innermost ones decide what a process waits for


def bounded(report: Report, fit: Callable[[bytes], T | None]) -> T | None:
    """Return what `fit` makes of the JSON of the report, cut until that is not None; None: nothing is small enough.

    The report is changed.
    """
    left_out: list[str] = []
    for name, cut in _CUTS:
        if (made := fit(_json(report))) is not None:
            return made
        cut(report)
        left_out.append(name)
        report.left_out = ", ".join(left_out)
    whole = len(report.processes)
    while (made := fit(_json(report))) is None and report.processes:
        report.processes = report.processes[: len(report.processes) // 2]
        count = whole - len(report.processes)
        report.left_out = ", ".join([*left_out, f"{count} processes"])
    return made


def _json(report: Report) -> bytes:
    return json.dumps({"why": VERSION, "reports": [saved.to_json(report)]}, separators=(",", ":")).encode()


def _everybody(report: Report) -> Iterable[Observed]:
    for each in report.processes:
        yield each
        yield from each.children


def _without_calls(report: Report) -> None:
    report.kernel_log = KernelLog(absent="it was left out: the report is too large")
    for each in _everybody(report):
        each.calls = ()


def _without_threads(report: Report) -> None:
    def is_needed(look: Look, thread: Thread) -> bool:
        return thread.id == look.stacks.pid or thread.has_gil

    for each in _everybody(report):
        for look in (each.first, each.second):
            kept = tuple(thread for thread in look.stacks.threads if is_needed(look, thread))
            look.stacks = replace(look.stacks, threads=kept)


def _without_outer_frames(report: Report) -> None:
    def inner(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        return frames[:_MAX_FRAMES]

    for each in _everybody(report):
        for look in (each.first, each.second):
            cut = tuple(replace(thread, frames=inner(thread.frames)) for thread in look.stacks.threads)
            look.stacks = replace(look.stacks, threads=cut)


def _without_children(report: Report) -> None:
    for each in report.processes:
        each.children = []
    report.ended = report.ended[-_MAX_ENDED:]


_CUTS = (
    ("last calls and lines of the kernel's log", _without_calls),
    ("threads beside the main thread", _without_threads),
    ("outer frames", _without_outer_frames),
    ("child processes", _without_children),
)

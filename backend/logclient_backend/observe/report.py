"""All that is seen on one node, as JSON and back; reports of several nodes make one verdict.

A report holds what was observed and no conclusion: the verdict is made from one or more reports, here or elsewhere.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from logclient.errors import BadArgument

from ..runs.live import LiveLanes, LiveShmDir
from . import gpu, kernel_log, ranks, recorded, saved, verdict
from .gpu import Gpus
from .kernel_log import KernelLog
from .verdict import Observed, Verdict

VERSION = 1
MAX_BYTES = 256 << 20  # of one file with reports
_MAX_NAMED = 8  # ranges of ranks
_MAX_RANKS = 1 << 20  # a report may come from anybody
_MAX_LINES = 4  # about nodes that were not looked at, in a verdict


@dataclass(slots=True)
class Node:
    """The place and time of a report."""

    host: str
    node: str  # name of its folder in the run; empty: no run
    boot_id: str
    time_ns: int
    run_id: str = ""
    run_name: str = ""
    world_size: int | None = None  # ranks on all nodes


@dataclass(slots=True)
class Report:
    """One node."""

    node: Node
    processes: list[Observed] = field(default_factory=list)
    ended: list[Observed] = field(default_factory=list)
    gpus: Gpus = field(default_factory=Gpus)
    kernel_log: KernelLog = field(default_factory=KernelLog)
    left_out: str = ""  # what it would have besides, were it not too large to be sent


@dataclass(slots=True)
class NodeState:
    """One node of a run as a collector has it."""

    host: str
    node: str
    kind: str  # ok, quiet, stalled or off
    text: str = ""
    is_seen: bool = False  # a report of it is part of the verdict
    is_known: bool = False  # seen, or nobody on it is late, or all on it have ended
    age_s: float | None = None  # of its report
    silent_s: float | None = None  # since anything came from it

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.host}: {self.text}"


@dataclass(slots=True)
class Job:
    """The reports of all nodes that were looked at, put together."""

    reports: list[Report]
    processes: list[Observed]  # of all nodes, by rank; those that ended and are missed included
    missing: list[int]  # ranks of which no report speaks
    nodes: list[NodeState] = field(default_factory=list)  # where a collector was asked

    @property
    def verdict(self) -> Verdict:
        """The verdict; it says which ranks and nodes were not looked at, where that may matter."""
        unknown = [node.line for node in self.nodes if not node.is_known]
        if self.nodes and not self.processes and not unknown:
            return Verdict(verdict.NOT_STUCK, "no rank is late on any node")
        if unknown and not self.processes:
            return Verdict(verdict.CANNOT_TELL, _some(unknown))
        found = verdict.judge(self.processes)
        if unknown and found.kind in (verdict.NOT_STUCK, verdict.QUIET):
            found = dataclasses.replace(found, kind=verdict.CANNOT_TELL)
        if self.missing and found.kind != verdict.NOT_STUCK:
            found = dataclasses.replace(found, text=f"{found.text}; {self.missing_text}")
        if unknown:
            found = dataclasses.replace(found, text=f"{found.text}; {_some(unknown)}")
        return found

    @property
    def spread_s(self) -> float:
        """Seconds between the first and the last report, by their hosts' clocks; 0 where there are none."""
        times = [report.node.time_ns for report in self.reports]
        return (max(times) - min(times)) / 1e9 if times else 0.0

    @property
    def missing_text(self) -> str:
        """A clause; empty where none is missing."""
        if not self.missing:
            return ""
        word, verb = ("rank", "was") if len(self.missing) == 1 else ("ranks", "were")
        return f"{word} {ranges(self.missing)} {verb} not looked at"


def of_run(live_dir: LiveShmDir, *, apart_s: float = ranks.APART_S, floor_s: float = ranks.FLOOR_S) -> Report:
    """Look at the processes of a live run on this node, at its GPUs and at the kernel log."""
    lanes = {each.pid: each for each in live_dir.processes if not each.has_finished}
    for each in live_dir.processes:
        if each.has_finished and each.rank is not None and each.is_alive:
            lanes.setdefault(each.pid, each)
    begun_ns = time.monotonic_ns()
    before = {pid: own.sections(begun_ns) for pid, own in lanes.items()}
    report = _report(lanes, apart_s, live_dir)
    mono_ns = time.monotonic_ns()
    now_ns = time.time_ns()
    report.ended = ranks.ended(live_dir, now_ns)
    for observed in report.processes:
        own = lanes[observed.pid]
        ranks.add_records(observed, own, now_ns, floor_s)
        ranks.add_sections(observed, before[observed.pid], own.sections(mono_ns), begun_ns, mono_ns)
    add_ends(report, live_dir, lanes)
    return report


def add_ends(report: Report, live_dir: LiveShmDir, lanes: Mapping[int, LiveLanes]) -> None:
    """Add to each process its last calls, who may read its stack, and its end. `lanes`: by PID."""
    ends = live_dir.ends()
    how = {each.pid: each.end for each in report.ended}  # of those, too, whose lanes are not swept yet
    for observed in report.processes:
        own = lanes[observed.pid]
        observed.calls = recorded.last_calls(recorded.path_of(live_dir.shm_dir.path, own.id))
        observed.ptracer = live_dir.ptracer(own)
        observed.is_over = own.has_finished
        observed.end = ends.get(own.id, "") if observed.is_over else how.get(observed.pid, "")


def of_pids(pids: Iterable[int], *, apart_s: float = ranks.APART_S) -> Report:
    """Look at any processes of this node, at its GPUs and at the kernel log."""
    return _report(pids, apart_s, None)


def _report(pids: Iterable[int], apart_s: float, live_dir: LiveShmDir | None) -> Report:
    question = gpu.ask(gpu.TIMEOUT_S)  # answers while the processes are looked at
    try:
        processes = ranks.observe(pids, apart_s=apart_s)
    except BaseException:
        question.drop()
        raise
    return Report(here(live_dir), processes, [], gpu.answered(question), kernel_log.read())


def here(live_dir: LiveShmDir | None = None) -> Node:
    """Return this node, now."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            boot_id = file.read(64).strip()
    except OSError:
        boot_id = ""
    made = Node(os.uname().nodename, "", boot_id, time.time_ns())
    if live_dir is not None:
        made.node, made.run_id, made.run_name = live_dir.node, live_dir.run_id, live_dir.name
        made.world_size = live_dir.world_size
    return made


def put_together(reports: Sequence[Report], nodes: Sequence[NodeState] = ()) -> Job:
    """Make one job of the reports; a process of several nodes is named with its host.

    `nodes`: all that the run has, where a collector was asked.
    """
    hosts = [report.node.host for report in reports]
    everybody: list[Observed] = []
    ended: list[Observed] = []
    for number, report in enumerate(reports):
        host = report.node.host
        name = host if hosts.count(host) == 1 else f"{host} ({report.node.node or number + 1})"
        for each in (*report.processes, *report.ended):
            each.node = name if max(len(reports), len(nodes)) > 1 else ""
            for child in each.children:
                child.node = each.node
        everybody += report.processes
        ended += report.ended
    alive = {each.rank for each in everybody}
    ended = [each for each in ended if each.rank is None or each.rank not in alive]
    seen = alive | {each.rank for each in ended}
    sizes = [report.node.world_size or 0 for report in reports]
    size = max((each for each in sizes if each <= _MAX_RANKS), default=0)
    everybody += ranks.missed(everybody, ended)
    everybody.sort(key=lambda each: (each.rank is None, each.rank or 0, each.node, each.pid))
    return Job(list(reports), everybody, [rank for rank in range(size) if rank not in seen], list(nodes))


def reports_in(data: bytes, name: str) -> list[Report]:
    """Return the reports in the output of `why --json`, or in several outputs one after the other.

    `BadArgument`, which names the file, where it is anything else.
    """
    text = data.decode("utf-8", "replace")
    decoder, at, found = json.JSONDecoder(), 0, []
    try:
        while at < len(text):
            if text[at].isspace():
                at += 1
                continue
            output, at = decoder.raw_decode(text, at)
            found += _reports(output)
    except saved.Damaged as error:
        raise BadArgument(f"{name} is no output of `logclient why --json`: {error}") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadArgument(f"{name} is no output of `logclient why --json`: not JSON: {reason}") from None
    if not found:
        raise BadArgument(f"{name} is no output of `logclient why --json`: it is empty")
    return found


def _reports(output: Any) -> list[Report]:
    if not isinstance(output, dict) or "why" not in output:
        raise saved.Damaged("`why` is missing")
    if output["why"] != VERSION:
        raise saved.Damaged(
            f"it is of version {output['why']!r:.20}, and this command reads version {VERSION}"
        )
    given = output.get("reports")
    if not isinstance(given, list):
        raise saved.Damaged("`reports` is missing")
    return [saved.from_json(Report, each, f"reports[{at}]") for at, each in enumerate(given)]


def check_together(named_reports: Sequence[tuple[str, Report]]) -> None:
    """Raise `BadArgument` where reports are of different runs, or two of them of one node."""
    seen: dict[tuple[str, str, str], str] = {}
    first_name, first = named_reports[0]
    for name, report in named_reports:
        if report.node.run_id != first.node.run_id:
            one, other = (
                first.node.run_id or "processes by their PIDs",
                report.node.run_id or "processes by their PIDs",
            )
            raise BadArgument(f"{first_name} is of {one}, {name} of {other}: give the reports of one run")
        identity = (report.node.boot_id, report.node.host, report.node.node)
        if identity in seen:
            raise BadArgument(
                f"{seen[identity]} and {name} are of one node, {report.node.host}: give one of them"
            )
        seen[identity] = name


def _some(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - _MAX_LINES} more nodes" if len(lines) > _MAX_LINES else ""
    return "; ".join(lines[:_MAX_LINES]) + more


def ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as `0 to 3, 7`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    texts = [str(one) if one == last else f"{one} to {last}" for one, last in found[:_MAX_NAMED]]
    return ", ".join(texts) + (" and others" if len(found) > _MAX_NAMED else "")

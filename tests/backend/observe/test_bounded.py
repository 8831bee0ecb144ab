"""A report cut to a size: what is left out is named, and the verdict stays for as long as there is room for it."""

from __future__ import annotations

import json

import pytest

from logclient_backend.observe.bounded import bounded
from logclient_backend.observe.kernel_log import KernelLog, Line
from logclient_backend.observe.report import Node, Report, put_together, reports_in
from logclient_backend.observe.stacks import Frame, Stacks, Thread
from logclient_backend.observe.verdict import Look, Observed

from .test_verdict import BARRIER, MAIN, observed


def large(ranks: int = 8) -> Report:
    """Ranks with deep stacks, other threads and children; rank 3 is elsewhere."""
    deep = tuple(Frame(f"f{at}", "/opt/python/lib/python3.11/asyncio/x.py", at) for at in range(40))

    def with_threads(made: Observed) -> Observed:
        for look in (made.first, made.second):
            main = look.stacks.threads[0]
            others = tuple(Thread(5000 + at, "pool", False, False, deep) for at in range(10))
            look.stacks = Stacks(made.pid, (main, *others))
        return made

    processes = []
    for rank in range(ranks):
        frames = (MAIN, *deep) if rank == 3 else (BARRIER, MAIN, *deep)
        made = with_threads(observed(rank, *frames))
        made.children = [with_threads(observed(100 + child, MAIN, *deep)) for child in range(4)]
        processes.append(made)
    log = KernelLog(tuple(Line("xid", 1.0, "x" * 200) for _ in range(20)))
    return Report(Node("host", "aa", "", 0, "mlp"), processes, kernel_log=log)


@pytest.mark.parametrize("limit", [10_000_000, 1_000_000, 300_000, 100_000, 40_000, 12_000, 6_000])
def test_report_fits_and_its_verdict_stays(limit: int) -> None:
    """The smaller the room, the more is named as left out."""
    made = bounded(large(), lambda content: content if len(content) <= limit else None)
    assert made is not None and len(made) <= limit
    (read,) = reports_in(made, "x")
    assert bool(read.left_out) == (limit < 10_000_000)
    if len(read.processes) < 8:
        assert f"{8 - len(read.processes)} processes" in read.left_out
    if len(read.processes) > 3:
        found = put_together([read]).verdict
        assert (found.kind, found.pids) == ("user code", (103,))


def test_cuts_are_in_the_order_of_what_explains_least() -> None:
    """Frames of main threads go after all else but children and processes."""
    sizes: list[int] = []

    def fit(content: bytes) -> None:
        sizes.append(len(content))

    report = large()
    assert bounded(report, fit) is None
    assert sizes == sorted(sizes, reverse=True)
    assert report.left_out == (
        "last calls and lines of the kernel's log, threads beside the main thread, outer frames, child processes, "
        "8 processes"
    )
    assert report.processes == [] and report.node.host == "host"


def test_report_of_an_earlier_version_has_nothing_left_out() -> None:
    """The field is new; one that it is read by without it passes it over."""
    content = bounded(large(1), lambda content: content)
    assert content is not None
    data = json.loads(content)
    del data["reports"][0]["left_out"]
    assert reports_in(json.dumps(data).encode(), "x")[0].left_out == ""


def test_look_of_a_thread_that_holds_the_gil_stays() -> None:
    """The verdict needs it."""
    one = observed(0, MAIN)
    holder = Thread(7, "io", True, True, (MAIN,))
    for look in (one.first, one.second):
        look.stacks = Stacks(
            one.pid, (*look.stacks.threads, holder, Thread(8, "idle", False, False, (MAIN,)))
        )
    report = Report(Node("host", "aa", "", 0), [one])
    bounded(report, lambda content: content if b'"idle"' not in content else None)
    kept: Look = report.processes[0].second
    assert [thread.id for thread in kept.stacks.threads] == [100, 7]

"""The findings of observers, as readers take them from documents: does a run get on?"""

from __future__ import annotations

from typing import Any

import pytest

from logclient_backend.runs.node import Node, take
from logclient_backend.runs.observed import Observation, worst

SECOND = 10**9
HEARD_NS, MONO_NS = 1_700_000_000 * SECOND, 5_000 * SECOND
STALLED = {
    "kind": "stalled",
    "verdict": "user code",
    "text": "rank 3 waits in user code at load (main.py:4)",
    "since_ns": 0,  # by a clock that was set since
    "since_mono_ns": MONO_NS - 30 * SECOND,
    "rank": 3,
    "step": 40,
    "stalls": [
        {
            "begin_ns": 1,
            "begin_mono_ns": MONO_NS - 90 * SECOND,
            "end_ns": 2,
            "end_mono_ns": MONO_NS - 60 * SECOND,
            "verdict": "stopped",
            "text": "rank 1 is stopped",
            "rank": 1,
            "step": 7,
        },
        {
            "begin_ns": 1,
            "begin_mono_ns": MONO_NS - 30 * SECOND,
            "end_ns": None,
            "end_mono_ns": None,
            "verdict": "user code",
            "text": "rank 3 waits",
            "rank": 3,
            "step": 40,
        },
    ],
}


def parsed(observed: Any) -> Node:
    node = Node("", "aa")
    take(
        node,
        {"version": 1, "heard_ns": HEARD_NS, "heard_mono_ns": MONO_NS, "host": "n1", "observed": observed},
    )
    return node


def test_finding_is_read_with_times_of_the_clock_that_nobody_sets() -> None:
    """And the stalls, the last of which goes on."""
    node = parsed(STALLED)
    assert node.observed is not None
    assert node.observed.since_ns == HEARD_NS - 30 * SECOND
    assert node.observed.line == "stalled: user code: rank 3 waits in user code at load (main.py:4)"
    assert (node.observed.rank, node.observed.step, node.observed.host) == (3, 40, "n1")
    first, last = node.stalls
    assert (first.begin_ns, first.end_ns) == (HEARD_NS - 90 * SECOND, HEARD_NS - 60 * SECOND)
    assert last.end_ns == 0 and last.rank == 3


@pytest.mark.parametrize(
    "observed",
    [
        None,
        7,
        [],
        {},
        {"kind": "fine"},
        {"kind": ["ok"]},
        {"kind": "ok", "verdict": 3, "text": {}, "since_ns": "x", "rank": True, "stalls": 5},
        {"kind": "quiet", "stalls": [None, 3, {"begin_ns": "x", "end_ns": 5, "text": []}]},
    ],
)
def test_what_is_no_finding_is_passed_over(observed: Any) -> None:
    """Nothing is believed to have the type it should."""
    node = parsed(observed)
    assert node.observed is None or node.observed.rank is None
    assert node.observed is None or node.observed.text == ""
    assert all(stall.text == "" and stall.begin_ns == 0 for stall in node.stalls)


def test_worst_node_stands_for_the_run() -> None:
    """Of two that are as bad, the one that was first."""
    ok = Observation("ok", "", "", 1)
    quiet = Observation("quiet", "", "", 5)
    later, earlier = Observation("stalled", "a", "", 9), Observation("stalled", "b", "", 8)
    assert worst([ok, quiet, later, earlier]) is earlier
    assert worst([ok, quiet]) is quiet
    assert worst([]) is None

"""How far ahead a request has to be, by the newest records of a training; and whether it has ranks elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from logclient_backend.runs.elsewhere import has_other_nodes
from logclient_backend.runs.stop_step import MIN_AHEAD, pace, rising

SECOND = 1_000_000_000


def points(count: int, each_s: float, gap: int = 1) -> list[tuple[int, int]]:
    """Return so many steps that are logged, the newest first."""
    return rising((int(at * each_s * SECOND), at * gap) for at in range(count))


def test_ahead_by_the_steps_of_the_time_given() -> None:
    """Fast steps by many, slow ones by the least; and by those that are not logged yet."""
    fast, slow = pace(points(3000, 0.001)), pace(points(20, 2.0))
    assert 495 <= fast.ahead(fast.newest_ns, 0.5) <= 502
    assert slow.ahead(slow.newest_ns, 0.5) == slow.ahead(slow.newest_ns + 5 * SECOND, 0.5) == MIN_AHEAD
    seldom = pace(points(30, 0.5, gap=50))  # 100 steps a second, of which each 50th is logged
    assert 48 <= seldom.ahead(seldom.newest_ns, 0.5) <= 52
    assert 70 <= seldom.ahead(seldom.newest_ns + SECOND // 5, 0.5) <= 80
    assert seldom.ahead(seldom.newest_ns + 60 * SECOND, 0.5) <= 49 + 52, "no more than one gap"


def test_burst_and_jump_are_no_pace() -> None:
    """Records of a moment tell nothing of the next half second; nor does a step of another counting."""
    burst = pace(points(10, 0.000_001))
    assert burst.ahead(burst.newest_ns, 0.5) <= 32 * 9
    jump = pace([(20 * SECOND, 1_000_000), *points(20, 1.0)])
    assert jump.ahead(jump.newest_ns, 0.5) < 50
    one = pace([(SECOND, 7)])
    assert one.ahead(9 * SECOND, 0.5) == MIN_AHEAD
    back = pace([(0, 9), (SECOND, 8), (2 * SECOND, 7)])  # the clock was set
    assert back.ahead(0, 0.5) == MIN_AHEAD


def test_only_new_highest_steps_count() -> None:
    """An epoch's own counting between them is no step back."""
    assert rising([(1, 5), (2, 0), (3, 6), (4, 6), (5, 1), (6, 9)]) == [(6, 9), (3, 6), (1, 5)]


@pytest.mark.parametrize(
    ("starts", "others"),
    [
        ([], False),
        ([{"launch": None, "rank": None}], False),
        ([{"launch": {"world_size": 4, "is_one_node": True}, "rank": 0}], False),
        ([{"launch": {"world_size": 4, "is_one_node": False}, "rank": 0}], True),
        ([{"launch": {"world_size": 4, "is_one_node": None}, "rank": 0}], True),
        ([{"launch": {"world_size": 2, "is_one_node": None}, "rank": rank} for rank in (0, 1)], False),
        ([{"launch": {"world_size": 2}, "rank": rank} for rank in (0, 1)], False),
        ([{"launch": 7, "rank": "x"}, {}], False),
    ],
)
def test_ranks_elsewhere_are_told_from_ranks_here(starts: list[dict[str, Any]], others: bool) -> None:
    """By what the launcher says, else by how many ranks are here."""
    assert has_other_nodes(starts) is others

"""Ranks whose own work takes longer than their peers', by their sections between two looks.

A synchronous job slows down together, so the time of a step names no rank; its time in sections outside collectives
does. Two looks are short: a rank is named where its work is MIN_RATIO times the median of all ranks between the looks,
and above the median since it began, too. `detect/straggler.py` finds less than that over many steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..detect.window import median

if TYPE_CHECKING:
    from .verdict import Observed

MIN_RANKS = 3  # with two nobody knows which is odd
MIN_RATIO = 1.25
MIN_SHARE = 0.1  # of the time between the looks, above the median


def find(all_: Sequence[Observed]) -> tuple[list[Observed], str]:
    """Return the ranks that are slow, and a clause where nothing could be said of any."""
    ranks = [each for each in all_ if each.rank is not None]
    if len(ranks) < MIN_RANKS:
        return [], ""
    known = [each for each in ranks if each.work_s is not None and each.sections is not None]
    if len(known) < len(ranks):
        return [], "; there is no straggler verdict by time, since not every rank uses `run.section`"
    work, total = _medians(known)
    slow = [
        each
        for each in known
        if _work(each) > max(MIN_RATIO * work, work + MIN_SHARE * each.apart_s) and _total(each) > total
    ]
    return (slow, "") if 2 * len(slow) < len(known) else ([], "")


def sentence(slow: Observed, all_: Sequence[Observed]) -> str:
    """Say how slow it is."""
    work, _ = _medians([each for each in all_ if each.work_s is not None])
    in_section = slow.sections.current if slow.sections is not None else ""
    return (
        f"works longer than the others: {_work(slow):.2f} s of {slow.apart_s:.2f} s in sections outside collectives, "
        f"where the median of the ranks is {work:.2f} s"
        + (f"; it is in section {in_section!r}" if in_section else "")
    )


def _medians(known: Sequence[Observed]) -> tuple[float, float]:
    return median(map(_work, known)), median(map(_total, known))


def _work(each: Observed) -> float:
    return each.work_s or 0.0


def _total(each: Observed) -> float:
    return each.sections.work_s if each.sections is not None else 0.0

"""Tells whether a run has ranks on other nodes than this one, by what its ranks here found of their launch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .node import table, whole


def has_other_nodes(starts: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether these start documents are of a launch over several nodes; where nobody says, by missing ranks."""
    ranks: set[int] = set()
    size = 0
    for start in starts:
        launch = table(start.get("launch"))
        if launch.get("is_one_node") is False:
            return True
        if launch.get("is_one_node") is None:
            size = max(size, whole(launch.get("world_size")))
        rank = start.get("rank")
        if type(rank) is int:
            ranks.add(rank)
    return size > max(1, len(ranks))

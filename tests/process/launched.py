"""What the tests of launchers share: records by rank, and the check that one launch left one whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from logclient_backend.runs.points import RunReader
from logclient_backend.runs.view import RunView

from . import scripts


def by_rank(found: RunView, key: str = "loss") -> dict[int | None, list[int]]:
    """Steps of that key per rank, as readers show them; fails where anything is damaged."""
    reader = RunReader(node.path for node in found.nodes)
    steps: dict[int | None, list[int]] = {}
    for point in reader.points():
        if point.key == key:
            steps.setdefault(point.rank, []).append(point.step)
    assert not reader.damage
    assert not reader.unsupported
    return steps


def whole(found: RunView, state: str = "finished", **counts: int) -> RunView:
    """Nothing of it is missing, and it ended like that."""
    told = found.counts()
    assert told["accepted"] == told["stored"], told
    lost = {name: told[name] for name in ("forgotten", "damaged", "refused", "left_out")}
    assert lost == {"forgotten": 0, "damaged": 0, "refused": 0, "left_out": 0, **counts}, lost
    assert found.state.name == state, found.state
    return found


def oldest_first(where: Path) -> list[RunView]:
    return sorted(scripts.runs(where), key=lambda run: run.created_ns)


def the_runs(where: Path, number: int, state: str = "finished") -> list[RunView]:
    """The runs that were made, oldest first, each whole; no agent or shared memory is left."""
    scripts.wait_gone(60)
    found = oldest_first(where)
    assert len(found) == number, [(run.name, run.id, by_rank(run)) for run in found]
    return [whole(run, state) for run in found]


def writers(found: RunView) -> int:
    """How many processes logged to it."""
    return len(found.processes)


def ranks(number: int, steps: Any) -> dict[int | None, list[int]]:
    """What `by_rank` must answer for ranks from 0 that all logged these steps."""
    return {rank: list(steps) for rank in range(number)}

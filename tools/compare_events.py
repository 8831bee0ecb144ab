"""Is every scalar of TensorBoard's event files in a run, at its step, with its value, and nothing else?

    python tools/compare_events.py logclient-runs RUN runs/FOLDER

Prints a line per tag and the sums; exits 1 where something differs. For training scripts that write for TensorBoard,
run with `logclient.compat.tensorboard` or `wandb.init(sync_tensorboard=True)`: docs/integrations/tensorboard.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import logclient

Points = dict[str, list[tuple[int, float]]]


def scalars_of(folder: Path | str) -> Points:
    """Every scalar of the event files of a folder, by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def points_of(run: Any) -> Points:
    """Every series of numbers of a run, by key, in the order of its steps."""
    keys = run.keys()
    found = {key: run.series(key) for key in keys}
    return {
        key: [*zip(series.step.tolist(), series.value.tolist(), strict=True)]
        for key, series in found.items()
        if not any(isinstance(value, str) for value in series.value)
    }


def compare(events: Points, logged: Points) -> dict[str, tuple[int, int, int]]:
    """By tag: scalars in the event files, points in the run, and how many of both are equal, NaN too."""
    found = {}
    for tag in {**events, **logged}:
        mine, theirs = events.get(tag, []), logged.get(tag, [])
        pairs = zip(sorted(mine, key=_step), theirs, strict=False)
        equal = sum(a == b or (a[0] == b[0] and a[1] != a[1] and b[1] != b[1]) for a, b in pairs)
        found[tag] = len(mine), len(theirs), equal
    return found


def _step(point: tuple[int, float]) -> int:
    return point[0]


def main() -> int:
    folder, name, events = sys.argv[1:]
    found = compare(scalars_of(events), points_of(logclient.read(folder)[name]))
    for tag, (mine, theirs, equal) in found.items():
        print(f"{tag}: {mine} in the event files, {theirs} in the run, {equal} equal")
    sums = [sum(column) for column in zip(*found.values(), strict=True)]
    print(f"{sums[0]} scalars in the event files, {sums[1]} points in the run, {sums[2]} equal")
    return 0 if len(set(sums)) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())

"""Fingerprints of a stored run, compared: `detect.replicas` over its records, one detector for each attempt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from logclient.shm.columns import read_column

from ..detect.replicas import PREFIX, Difference, ReplicaDetector
from .order import Part
from .view import RunView


@dataclass(slots=True)
class Comparison:
    """The result, and what it is based on."""

    differences: list[tuple[int, Difference]]  # with the number of the attempt
    compared: int  # (tensor, step) pairs of at least two ranks
    late: int
    without_rank: int  # records


def compare(run: RunView, tolerance: float = 0.0) -> Comparison:
    """Read all records of a run and compare its replicas."""
    numbers = run.attempt_numbers()
    detectors: dict[int, ReplicaDetector] = {}
    found = Comparison([], 0, 0, 0)
    for part in run.found.records().parts():
        names = [name for name in part.columns.shape.names if name.startswith(PREFIX)]
        if not names:
            continue
        if part.columns.rank is None:
            found.without_rank += part.stop - part.start
            continue
        attempt = numbers.get(part.process.hex(), 0)
        detector = detectors.setdefault(attempt, ReplicaDetector(tolerance))
        for step, values in _rows(part):
            found.differences += ((attempt, each) for each in detector.add(step, part.columns.rank, values))
    for attempt, detector in detectors.items():
        found.differences += ((attempt, each) for each in detector.close())
        found.compared += detector.compared
        found.late += detector.late
    return found


def _rows(part: Part) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield step and fingerprints of each record."""
    shape = part.columns.shape
    cut = slice(part.start, part.stop)
    columns = {
        name: read_column(code, column[cut])
        for name, code, column in zip(shape.names, shape.codes, part.columns.cells, strict=True)
        if name.startswith(PREFIX) and code != "s"
    }
    for at, step in enumerate(part.columns.step[cut]):
        yield step, {name: column[at] for name, column in columns.items()}

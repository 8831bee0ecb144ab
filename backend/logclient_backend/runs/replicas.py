"""Fingerprints of a stored run, compared: `detect.replicas` over its records, one detector for each attempt."""

from __future__ import annotations

from dataclasses import dataclass

from ..detect.replicas import PREFIX, Difference, ReplicaDetector, fingerprints
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
        for step, values in fingerprints(part.columns.part(part.start, part.stop)):
            found.differences += ((attempt, each) for each in detector.add(step, part.columns.rank, values))
    for attempt, detector in detectors.items():
        found.differences += ((attempt, each) for each in detector.close())
        found.compared += detector.compared
        found.late += detector.late
    return found

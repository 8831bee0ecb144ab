"""Run all detectors over a stored series: a CSV file with a column `step`, or a run of a run folder.

    python tools/replay.py FILE.csv [KEY ...]
    python tools/replay.py FOLDER RUN [KEY ...]
    python tools/replay.py ... --json

Without keys all columns that hold numbers are replayed. Spikes of several keys that overlap in steps are one episode.
Fingerprints of a run (`run.fingerprint`) are compared between ranks instead; --tolerance as in `logclient show`.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "backend"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from logclient_backend.detect.nonfinite import NonFiniteDetector
from logclient_backend.detect.replicas import PREFIX
from logclient_backend.detect.shift import ShiftDetector
from logclient_backend.detect.spike import Spike, SpikeDetector
from logclient_backend.runs.replicas import compare
from logclient_backend.runs.source import FolderSource

Points = Sequence[tuple[int, float]]


@dataclass
class Alarm:
    """What was found, from its first step to its last (None: it goes on, or stays)."""

    kind: str
    first_step: int
    last_step: int | None
    keys: dict[str, dict[str, Any]] = field(default_factory=dict)


def spikes(key: str, points: Points) -> Iterator[Alarm]:
    detector = SpikeDetector()
    found: list[Spike] = []
    for step, value in points:
        spike = detector.add(step, value)
        if spike is not None and not spike.is_over:
            found.append(spike)
    for spike in found:
        told = {
            "onset": spike.onset_step,
            "peak": spike.peak_step,
            "value": spike.peak,
            "baseline": spike.baseline,
            "recovered": spike.recovered_step,
        }
        yield Alarm("spike", spike.onset_step, spike.recovered_step, {key: told})


def shifts(key: str, points: Points) -> Iterator[Alarm]:
    detector = ShiftDetector()
    for step, value in points:
        shift = detector.add(step, value)
        if shift is not None:
            told = {"before": shift.before, "after": shift.after, "found": shift.step}
            yield Alarm("shift", shift.onset_step, None, {key: told})


def not_finite(key: str, points: Points) -> Iterator[Alarm]:
    detector = NonFiniteDetector()
    for step, value in points:
        episode = detector.add(step, value)
        if episode is not None and not episode.is_over:
            yield Alarm("not finite", episode.first_step, None, {key: {"before": episode.before}})


def replay(series: Mapping[str, Points]) -> list[Alarm]:
    """Return the alarms of all detectors on all series, by step; spikes that overlap are merged."""
    alarms: list[Alarm] = []
    for key, points in series.items():
        for detector in (spikes, shifts, not_finite):
            alarms += detector(key, points)
    alarms.sort(key=lambda alarm: alarm.first_step)
    merged: list[Alarm] = []
    for alarm in alarms:
        before = next(
            (each for each in merged if each.kind == alarm.kind == "spike" and _overlap(each, alarm)), None
        )
        if before is None:
            merged.append(alarm)
            continue
        before.keys |= alarm.keys
        ends = (before.last_step, alarm.last_step)
        before.last_step = None if None in ends else max(end for end in ends if end is not None)
    return merged


def _overlap(before: Alarm, alarm: Alarm) -> bool:
    return before.last_step is None or alarm.first_step <= before.last_step


def from_csv(path: Path, keys: Sequence[str]) -> dict[str, Points]:
    """Read the columns with numbers, by step."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or "step" not in rows[0]:
        raise SystemExit(f"{path} has no column `step`.")
    wanted = keys or [name for name in rows[0] if name != "step" and _is_number(rows[0][name])]
    return {key: [(int(row["step"]), float(row[key])) for row in rows if row[key]] for key in wanted}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def from_folder(folder: str, run: str, keys: Sequence[str]) -> dict[str, Points]:
    """Read the series of a stored run, in the order of their steps."""
    import logclient

    found = logclient.read(folder)[run]
    series: dict[str, Points] = {}
    for key in keys or [name for name in map(str, found.keys()) if not name.startswith(PREFIX)]:
        read = found.series(key)
        series[key] = list(zip(map(int, read.step), map(float, read.value), strict=True))
    return series


def replicas(folder: str, run: str, tolerance: float) -> Iterator[Alarm]:
    """Compare the fingerprints of a stored run."""
    for _, found in compare(FolderSource(folder).run(run).view(), tolerance).differences:
        if not found.is_over:
            named = {"ranks": " ".join(map(str, found.ranks)), "others": found.others}
            yield Alarm("replica", found.step, None, {f"{found.replicas}/{found.tensor}": named})


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("where", help="a CSV file, or a run folder")
    parser.add_argument("names", nargs="*", help="the run (for a folder), then keys; default: all")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--tolerance", type=float, default=0.0, metavar="SHARE", help="of fingerprints")
    given = parser.parse_args(None if arguments is None else list(arguments))
    path = Path(given.where)
    odd: list[Alarm] = []
    if path.is_dir():
        if not given.names:
            parser.error("name the run")
        series = from_folder(given.where, given.names[0], given.names[1:])
        odd = list(replicas(given.where, given.names[0], given.tolerance))
    else:
        series = from_csv(path, given.names)
    for alarm in [*odd, *replay(series)]:
        if given.json:
            print(json.dumps(alarm.__dict__))
            continue
        last = "" if alarm.last_step is None else f" to {alarm.last_step}"
        print(f"{alarm.kind:10}  step {alarm.first_step}{last}")
        for key, facts in alarm.keys.items():
            print(
                f"            {key}: "
                + ", ".join(
                    f"{name} {value}" if isinstance(value, str) else f"{name} {value:g}"
                    for name, value in facts.items()
                    if value is not None
                )
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

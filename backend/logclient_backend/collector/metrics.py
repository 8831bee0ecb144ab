"""Metrics of the collector, and the text in which Prometheus asks for them.

Any thread may count: a sum is changed under one lock, which nobody holds for longer than that. `text` asks the gauges
when it is called; one that fails is left out of that answer.

`METRICS` is the whole list, with its help; docs/server.md lists what to watch. No run, key or name is ever a label: the
number of series does not grow with what is stored.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping

PREFIX = "logclient_"

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

METRICS = {
    "info": (GAUGE, "1; version and id of the store are its labels"),
    "start_time_seconds": (GAUGE, "when the collector was started, as Unix time"),
    "connections": (GAUGE, "conversations that are open: one per node that ships, and per running sync"),
    "connections_total": (COUNTER, "conversations that were begun"),
    "turned_away_total": (COUNTER, "connections closed because no token was shown on them in time"),
    "parcels_total": (COUNTER, "parcels that were committed"),
    "records_total": (COUNTER, "records that were stored and were new"),
    "points_total": (COUNTER, "points of these records"),
    "repeated_records_total": (COUNTER, "records that came again and were there already"),
    "received_bytes_total": (COUNTER, "bytes of parcels as they were sent"),
    "refused_total": (COUNTER, "refusals by reason: of parcels, of conversations, of callers"),
    "commit_seconds": (HISTOGRAM, "time that a commit took"),
    "last_commit_timestamp_seconds": (GAUGE, "when something was committed last, as Unix time; 0: never"),
    "queue_parcels": (GAUGE, "parcels that wait to be committed"),
    "queue_bytes": (GAUGE, "memory that they take, unpacked"),
    "under_way_bytes": (GAUGE, "bytes of parcels, as they were sent, that are taken and not committed"),
    "deriving_seconds_total": (COUNTER, "time spent to derive what a run is from its documents"),
    "faults_total": (COUNTER, "faults of the collector itself; its log has each"),
    "alerts_total": (COUNTER, "alerts: each begin, each end, and each that happened once"),
    "alerts_waiting": (GAUGE, "alerts that some target does not have yet"),
    "alerts_skipped_records_total": (
        COUNTER,
        "records that no rule of an alert has seen: the thread was behind",
    ),
    "disk_free_bytes": (GAUGE, "free where the data lie"),
    "last_backup_timestamp_seconds": (GAUGE, "when the last backup was complete, as Unix time; 0: never"),
    "resident_bytes": (GAUGE, "memory of the collector"),
    "cpu_seconds_total": (COUNTER, "CPU time of the collector"),
    "web_processes": (GAUGE, "processes that answer over HTTP"),
    "web_resident_bytes": (GAUGE, "memory of these processes"),
    "web_cpu_seconds_total": (COUNTER, "CPU time of these processes, of those that ended too"),
}
STORE_PREFIX = "store_"  # what the engine reports of itself, gauges all

_BOUNDS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

Labels = tuple[tuple[str, str], ...]


class _Times:
    """A histogram."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self.total_s += seconds


class Metrics:
    """All figures of one collector."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, Labels], float] = {}
        self._times: dict[str, _Times] = {}
        self._gauges: dict[str, Callable[[], float | Mapping[Labels, float]]] = {}
        self._store: Callable[[], Mapping[str, float]] | None = None
        for name, (kind, _) in METRICS.items():
            if kind == HISTOGRAM:
                self._times[name] = _Times()
            elif kind == COUNTER and name != "refused_total":
                self._sums[name, ()] = 0

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to a counter."""
        assert METRICS[name][0] == COUNTER, name
        key = (name, tuple(sorted(labels.items())))
        with self._lock:
            self._sums[key] = self._sums.get(key, 0) + by

    def took(self, name: str, seconds: float) -> None:
        """Add to a histogram."""
        with self._lock:
            self._times[name].add(seconds)

    def ask(self, name: str, function: Callable[[], float | Mapping[Labels, float]]) -> None:
        """Register a function that gives a gauge, or a counter that somebody else keeps, when it is wanted."""
        assert name in METRICS, name
        self._sums.pop((name, ()), None)
        self._gauges[name] = function

    def ask_store(self, function: Callable[[], Mapping[str, float]]) -> None:
        self._store = function

    def value(self, name: str, **labels: str) -> float:
        """Return the value of a counter."""
        with self._lock:
            return self._sums.get((name, tuple(sorted(labels.items()))), 0)

    def text(self) -> str:
        """The exposition format, version 0.0.4."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        with self._lock:
            sums = dict(self._sums)
            times = {name: (list(found.counts), found.total_s) for name, found in self._times.items()}
        for name, (kind, help) in METRICS.items():
            samples = {labels: value for (of, labels), value in sums.items() if of == name}
            if name in self._gauges:
                samples = _asked(self._gauges[name])
            if not samples and name not in times:
                continue
            yield f"# HELP {PREFIX}{name} {help}"
            yield f"# TYPE {PREFIX}{name} {kind}"
            for labels, value in sorted(samples.items()):
                yield f"{PREFIX}{name}{_labels(labels)} {_number(value)}"
            if name in times:
                yield from _histogram(name, *times[name])
        if self._store is not None:
            for name, value in sorted(_asked_store(self._store).items()):
                yield f"# TYPE {PREFIX}{STORE_PREFIX}{name} {GAUGE}"
                yield f"{PREFIX}{STORE_PREFIX}{name} {_number(value)}"


def _asked(function: Callable[[], float | Mapping[Labels, float]]) -> dict[Labels, float]:
    try:
        found = function()
    except Exception:  # noqa: BLE001  # a figure that cannot be had must not take the others with it
        return {}
    return dict(found) if isinstance(found, Mapping) else {(): found}


def _asked_store(function: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
    try:
        return function()
    except Exception:  # noqa: BLE001  # as above
        return {}


def _histogram(name: str, counts: list[int], total_s: float) -> Iterator[str]:
    upto = 0
    for bound, count in zip((*map(str, _BOUNDS_S), "+Inf"), counts, strict=True):
        upto += count
        yield f'{PREFIX}{name}_bucket{{le="{bound}"}} {upto}'
    yield f"{PREFIX}{name}_sum {_number(total_s)}"
    yield f"{PREFIX}{name}_count {upto}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    quoted = (
        '{}="{}"'.format(name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"))
        for name, value in labels
    )
    return "{" + ",".join(quoted) + "}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1 << 62 else repr(float(value))

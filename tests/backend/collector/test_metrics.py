"""The figures that Prometheus asks for."""

from __future__ import annotations

import re

import pytest

from logclient_backend.collector.metrics import METRICS, Metrics

LINE = re.compile(r'logclient_\w+(\{(\w+="[^"]*",?)+\})? -?[0-9.e+-]+(inf|nan)?')


def test_text_is_what_prometheus_reads() -> None:
    """Each metric once with type and help; counters start at 0."""
    made = Metrics()
    made.count("records_total", 5)
    made.count("refused_total", reason="busy")
    made.took("commit_seconds", 0.003)
    made.took("commit_seconds", 100.0)
    made.ask("connections", lambda: 3)
    made.ask("info", lambda: {(("version", '1"2\\3\n'),): 1})
    made.ask_store(lambda: {"bytes": 1e12, "runs": 2})
    lines = made.text().splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert all(LINE.fullmatch(line.replace(r"\"", "")) for line in samples), samples
    assert {
        "logclient_records_total 5",
        "logclient_points_total 0",
        'logclient_refused_total{reason="busy"} 1',
        'logclient_commit_seconds_bucket{le="0.001"} 0',
        'logclient_commit_seconds_bucket{le="0.005"} 1',
        'logclient_commit_seconds_bucket{le="+Inf"} 2',
        "logclient_commit_seconds_count 2",
        "logclient_connections 3",
        'logclient_info{version="1\\"2\\\\3\\n"} 1',
        "logclient_store_bytes 1000000000000",
    } <= set(samples)
    types = [line for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))


def test_figure_that_cannot_be_had_leaves_the_others() -> None:
    """A disk that does not answer is no reason to tell nothing."""
    made = Metrics()

    def fails() -> float:
        raise OSError("no")

    made.ask("disk_free_bytes", fails)
    made.ask_store(lambda: {"x": fails()})
    text = made.text()
    assert "disk_free" not in text and "logclient_records_total 0" in text


def test_only_what_is_listed_can_be_counted() -> None:
    """So that the list in the docs is whole."""
    with pytest.raises(KeyError):
        Metrics().count("surprise_total")
    assert all(help and not help.endswith(".") for _, help in METRICS.values())

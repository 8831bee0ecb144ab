"""The figures that Prometheus asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from logclient_backend.cli.server import command
from logclient_backend.collector.limits import Limits
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


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
DOCS = (Path(__file__).parents[3] / "docs" / "server.md").read_text()


@pytest.mark.parametrize("name", METRICS)
def test_metric_is_documented(name: str) -> None:
    """The operations page says what each means."""
    assert f"`{name}" in DOCS


@pytest.mark.parametrize("name", Limits.__slots__)
def test_limit_is_documented_with_its_default(name: str) -> None:
    """By the name that `--limit` takes."""
    default = getattr(Limits(), name)
    assert f"| `{name}` | {int(default)} |" in DOCS and int(default) == default


def test_options_that_the_page_shows_are_there() -> None:
    """In its commands and in its text."""
    shown = {
        word
        for line in DOCS.splitlines()
        if "logclient" in line or "`--" in line
        for word in OPTION.findall(line)
    }
    known = {option for each in _commands(command) for parameter in each.params for option in parameter.opts}
    assert shown - known <= {"--revive", "--upgrade", "--now", "--system", "--home-dir", "--shell", "--watch"}
    assert {"--data", "--tls-cert", "--keep-deleted", "--role"} <= shown


def _commands(group: click.Command) -> Iterator[click.Command]:
    yield group
    if isinstance(group, click.Group):
        for each in group.commands.values():
            yield from _commands(each)

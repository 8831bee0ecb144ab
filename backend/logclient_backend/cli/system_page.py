"""`logclient show --system`: the last values of host and device metrics, node by node."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

from ..runs.contents import Contents, Last
from ..runs.view import RunView
from . import screen
from .text import ago, iso, number, safe

_PREFIX = "system/"
_INSTANCE = re.compile(r"(gpu|rank)/([0-9]+)/(.+)")
_ELSE = "?"  # of a process whose documents are missing
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MISSED = "agent/missed_samples"
_OLD_NS = 60 * 10**9  # behind the newest value of its node: of a rank or a device that is gone
_SHORT = {"utilisation_percent": "UTIL", "processes": "PROCESSES", "throttled": "THROTTLED"}

Values = dict[str, Last]


def as_dict(run: RunView, found: Contents) -> dict[str, Any]:
    """All of it for programs."""
    return {
        "id": run.id,
        "name": run.name,
        "state": run.state.name,
        "counts": found.counts(run),
        "nodes": [
            {
                "node": node,
                "host": host,
                "time": iso(max(last.time for last in values.values())),
                "no_devices": _no_devices(run, node),
                "values": {
                    name: {"last": last.value, "time": iso(last.time)} for name, last in values.items()
                },
            }
            for node, host, values in _nodes(run, found)
        ],
        "keys": {
            name: {"points": key.points, "min": key.low, "max": key.high} for name, key in found.keys.items()
        },
    }


def pages(run: RunView, found: Contents) -> Iterator[Any]:
    """Yield what a screen shows."""
    nodes = _nodes(run, found)
    if not nodes:
        yield screen.line(
            "\nno host and device metrics: the run was shorter than two samples (LOGCLIENT_SYSTEM), or they are off"
        )
    for node, host, values in nodes:
        newest = max(last.time for last in values.values())
        when = f", {ago(newest, time.time_ns())}"
        yield screen.line((f"\n{safe(host) or 'node'} ", "bold"), (safe(node) + when, "dim"))
        values = {name: last for name, last in values.items() if last.time >= newest - _OLD_NS}
        yield from _host(values)
        for kind in ("gpu", "rank"):
            yield from _instances(kind, values)
        if reason := _no_devices(run, node):
            yield screen.line((f"\n  no GPUs: {safe(reason)}", "dim"))
        missed = values.get(_MISSED)
        if missed is not None and missed.value:
            yield screen.line(
                (
                    f"\n  {missed.value:.0f} samples are missing: the observer was replaced or came too late, "
                    "or shared memory was full",
                    "yellow",
                )
            )


def _no_devices(run: RunView, node: str) -> str:
    """Return why no GPU is read there, as its newest observer found; empty: some are, or nobody knows."""
    there = [process for process in run.processes.values() if process.node == node]
    newest = max(there, key=lambda process: process.created_ns, default=None)
    return "" if newest is None else str(newest.data("start").get("no_devices") or "")


def _nodes(run: RunView, found: Contents) -> list[tuple[str, str, Values]]:
    """Node, host and last values of each node, in the order of the nodes' ids."""
    where = {id: (process.node, process.host) for id, process in run.processes.items()}
    nodes: dict[tuple[str, str], Values] = {}
    for key in found.keys.values():
        lasts = {process.hex(): last for process, (_, last) in key.lasts.items()}
        if not lasts and key.last is not None:  # a server that was asked for keys alone
            lasts = {"": key.last}
        name = key.name.removeprefix(_PREFIX)
        for process, last in lasts.items():
            values = nodes.setdefault(where.get(process, (_ELSE, "")), {})
            if name not in values or last.time > values[name].time:
                values[name] = last
    return [(node, host, values) for (node, host), values in sorted(nodes.items())]


def _host(values: Values) -> Iterator[Any]:
    table = screen.table("", "METRIC", "LAST", right=(2,))
    for name, last in values.items():
        if not _INSTANCE.fullmatch(name):
            table.add_row("", safe(name), screen.line((shown(name, last.value), "cyan")))
    yield table


def _instances(kind: str, values: Values) -> Iterator[Any]:
    """Yield a table with a row per device, or per rank."""
    rows: dict[int, dict[str, str]] = {}
    for name, last in values.items():
        found = _INSTANCE.fullmatch(name)
        if found and found[1] == kind:
            rows.setdefault(int(found[2]), {})[found[3]] = shown(found[3], last.value)
    if not rows:
        return
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    heads = [_SHORT.get(name, _head(name)) for name in columns]
    yield screen.line("")
    table = screen.table("", kind.upper(), *heads, right=tuple(range(1, len(columns) + 2)))
    for index, row in sorted(rows.items()):
        table.add_row("", str(index), *(screen.line((row.get(name, ""), "cyan")) for name in columns))
    yield table


def _head(name: str) -> str:
    for unit in ("_bytes", "_percent", "_w", "_j", "_mhz", "_c"):
        name = name.removesuffix(unit)
    return name.replace("_", " ").upper()


def shown(name: str, value: Any) -> str:
    """A value with the unit that its name tells."""
    rate = "/s" if name.endswith("_per_s") else ""
    base = name.removesuffix("_per_s")
    if base.endswith("_bytes"):
        return _size(float(value)) + rate
    for ending, unit in (
        ("_percent", "%"),
        ("_w", "W"),
        ("_j", "J"),
        ("_mhz", "MHz"),
        ("_c", "°C"),
        ("_s", "s"),
    ):
        if base.endswith(ending) and not rate:
            return f"{value:.4g} {unit}" if ending != "_j" else f"{value:,.0f} {unit}"
    return number(value)


def _size(size: float) -> str:
    unit = 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{size:.0f} B"

"""Flattens a config or a summary: the names under which its values are filtered, sorted and shown.

One rule for every engine, the API and `logclient.read`: keys are joined with `::` as `log` joins them, items of lists
go by their index, and what holds nothing ({} or []) is a value of its own. What lies deeper than MAX_DEPTH has no name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

SEPARATOR = "::"
MAX_DEPTH = 64
_PLAIN = frozenset(
    (str, int, float, bool, type(None))
)  # most values: to ask about them costs more than the rest


def flattened(values: object) -> Iterator[tuple[str, object]]:
    """(name, plain value) of all that lies in a mapping or a list."""
    return _flattened(values, "", 1)


def _flattened(values: object, before: str, depth: int) -> Iterator[tuple[str, object]]:
    pairs: Iterable[tuple[object, object]]
    pairs = values.items() if isinstance(values, Mapping) else enumerate(values)  # type: ignore[arg-type]
    for key, value in pairs:
        name = f"{before}{key}"
        if type(value) in _PLAIN or not isinstance(value, Mapping | list | tuple) or not value:
            yield name, value
        elif depth < MAX_DEPTH:
            yield from _flattened(value, name + SEPARATOR, depth + 1)

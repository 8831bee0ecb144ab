"""Many runs as a table: rows as dicts, columns for pandas. Pure, but for pandas, which is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from logclient.errors import BadArgument

from ..runs.extremes import Extreme
from ..runs.flatten import flattened

if TYPE_CHECKING:
    from pandas import DataFrame

    from .run import Run

_EXACT = 1 << 53  # ints up to this are floats, too
_INT64 = 1 << 63
Row = dict[str, Any]


def pandas() -> Any:
    """Return the module; `BadArgument` where it is not installed."""
    try:
        import pandas  # optional: 60 MB that arrays do without
    except ImportError:
        raise BadArgument("this needs pandas: pip install pandas") from None
    return pandas


def row_of(run: Run, extremes: Mapping[str, Extreme], keys: Sequence[str]) -> Row:
    """One run: what it is, `config.NAME`, `summary.NAME`, and `last.KEY`, `min.KEY`, `max.KEY` of these keys."""
    row: Row = {
        "id": run.id,
        "name": run.name,
        "project": run.project,
        "group": run.group,
        "tags": list(run.tags),
        "state": run.state,
        "created": run.created,
        "active_s": run.active_s,
        "attempts": run.attempts,
    }
    for tree in ("config", "summary"):
        row |= {f"{tree}.{name}": value for name, value in flattened(getattr(run, tree))}
    for key in keys:
        if key in extremes:
            row |= {f"{what}.{key}": getattr(extremes[key], what) for what in Extreme._fields}
    return row


def names_of(rows: Sequence[Row]) -> list[str]:
    """Return the columns: what all runs have, then config, summary and keys, each as it came first."""
    groups: dict[str, dict[str, None]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        groups.setdefault(name.partition(".")[0] if "." in name else "", {})[name] = None
    order = ["", "config", "summary"]
    order += [group for group in groups if group not in order]
    mixed = ("last", "min", "max")  # key by key
    made = [name for group in order if group not in mixed for name in groups.get(group, ())]
    keys = dict.fromkeys(name.partition(".")[2] for group in mixed for name in groups.get(group, ()))
    return made + [f"{what}.{key}" for key in keys for what in mixed]


def frame_of(rows: Sequence[Row]) -> DataFrame:
    """Return a DataFrame with a row per run and its id as the index. No value is rounded: see `column_of`."""
    module = pandas()
    names = names_of(rows) or ["id"]
    columns = {name: column_of(module, [row.get(name) for row in rows]) for name in names}
    made: DataFrame = module.DataFrame(columns, columns=names)
    return made.set_index("id")


def column_of(module: Any, values: Sequence[Any]) -> Any:
    """Return a column in which every value is what it was: float64 and int64 where that holds, else objects.

    A number that is not there is NaN, anything else None.
    """
    there = [value for value in values if value is not None]
    kinds = {type(value) for value in there}
    has_all = len(there) == len(values)
    ints = [value for value in there if type(value) is int]
    if kinds == {bool} and has_all:
        return module.Series(values, dtype="bool")
    if kinds == {int} and has_all and all(-_INT64 <= value < _INT64 for value in ints):
        return module.Series(values, dtype="int64")
    if kinds and kinds <= {int, float} and all(abs(value) <= _EXACT for value in ints):
        return module.Series(
            [float("nan") if value is None else float(value) for value in values], dtype="float64"
        )
    if kinds and all(kind.__name__ == "datetime" for kind in kinds):
        return module.Series(module.to_datetime(list(values), utc=True))
    return module.Series(list(values), dtype="object")

"""Charts of W&B's that are drawn of a table: the table is what is stored. All other charts are stand-ins."""

from __future__ import annotations

from logclient.compat.media import Table
from logclient.compat.stand_ins import Inert

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _of_table(name: str, table: Any) -> Any:
    return table if isinstance(table, Table) else Inert(f"plot.{name}")


def line(table: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the table of a line."""
    return _of_table("line", table)


def scatter(table: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the table of a scatter plot."""
    return _of_table("scatter", table)


def bar(table: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the table of a bar chart."""
    return _of_table("bar", table)


def histogram(table: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the table of a histogram."""
    return _of_table("histogram", table)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Inert(f"plot.{name}")

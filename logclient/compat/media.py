"""Stand-ins for W&B's media. A table keeps its rows, since programs read them back; all else keeps nothing.

Runs in the training process. Images and the like could be large, or lie on a device: what they are made with is let go
at once. Where one is logged it is left out and counted.
"""

from __future__ import annotations

import sys

from .stand_ins import Inert

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any


class _Kind(type):
    """Gives a class of media every other attribute that W&B's has: `Audio.durations`, `Object3D.from_file`."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert(f"{cls.__name__}.{name}")


class Media(metaclass=_Kind):
    """Something to be shown: accepts what it is made with, and keeps nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert(f"{type(self).__name__}.{name}")


class Image(Media): ...


class Video(Media): ...


class Audio(Media): ...


class Histogram(Media): ...


class Html(Media): ...


class Object3D(Media): ...


class Molecule(Media): ...


class Plotly(Media): ...


class Classes(Media): ...


class Graph(Media): ...


class Table(Media):
    """Rows under named columns. It is the program's own, and is not stored."""

    MAX_ROWS = 10_000
    MAX_ARTIFACT_ROWS = 200_000

    def __init__(
        self,
        columns: Sequence[Any] | None = None,
        data: Any = None,
        rows: Any = None,
        dataframe: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if dataframe is not None and columns is None:
            columns, data = list(dataframe.columns), dataframe.values.tolist()
        given = [] if data is None and rows is None else rows if data is None else data
        self.data: list[Any] = [list(row) for row in given]
        usual = ["Input", "Output", "Expected"] if not self.data else range(len(self.data[0]))
        self.columns: list[Any] = list(usual if columns is None else columns)

    def add_data(self, *data: Any) -> None:
        """Append a row."""
        self.data.append(list(data))

    def add_row(self, *row: Any) -> None:
        """Append a row."""
        self.add_data(*row)

    def add_column(self, name: Any, data: Any, optional: bool = False) -> None:
        """Append a column; rows that are missing come with it."""
        values = list(data)
        self.data.extend([None] * len(self.columns) for _ in range(len(values) - len(self.data)))
        for at, row in enumerate(self.data):
            row.append(values[at] if at < len(values) else None)
        self.columns.append(name)

    def get_column(self, name: Any, convert_to: str | None = None) -> Any:
        """The values of a column, as a list or as an array of numpy."""
        at = self.columns.index(name) if name in self.columns else -1
        values = [row[at] for row in self.data if 0 <= at < len(row)]
        numpy = sys.modules.get("numpy")
        return numpy.array(values) if convert_to == "numpy" and numpy is not None else values

    def get_index(self) -> list[int]:
        """The numbers of the rows."""
        return list(range(len(self.data)))

    def get_dataframe(self) -> Any:
        """The rows as a pandas DataFrame."""
        import pandas  # a program that asks for one has it

        return pandas.DataFrame(self.data, columns=self.columns)

    def iterrows(self) -> Iterator[tuple[int, list[Any]]]:
        """The rows with their numbers."""
        yield from enumerate(self.data)

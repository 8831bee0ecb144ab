"""W&B's media. Those that logclient has are its media values, under W&B's arguments; the others keep nothing.

Runs in the training process. What an image or histogram is made with is kept until it is logged: an array that is
changed between the two is logged as changed. A table keeps its rows, since programs read them back; of media in its
cells images alone are stored.
"""

from __future__ import annotations

import os
import sys

from logclient.encode import media_values

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


class Stored(Media):
    """Something to be shown that is a media value of logclient."""


class Image(media_values.Image, Stored):
    """An image; figures of matplotlib too. Floats are 0 to 1, or with negative ones their lowest to their highest."""

    def __init__(
        self,
        data_or_path: Any,
        mode: str | None = None,
        caption: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(data_or_path, caption)
        self._is_figure = hasattr(data_or_path, "savefig") or hasattr(data_or_path, "to_plotly_json")

    def packed(self, most_bytes: int) -> media_values.Packed:
        """Implement `Value.packed`."""
        content = self._content
        if self._is_figure:
            described, payload = media_values.Figure(content, self._caption).packed(most_bytes)
            return {**described, "kind": "figure"}, payload
        if getattr(getattr(content, "dtype", None), "kind", "") == "f" and content.size and content.min() < 0:
            self._range = float(content.min()), float(content.max()) + 1e-9
        return super().packed(most_bytes)


class Video(media_values.Video, Stored):
    """A film, by its path or bytes, or frames of shape T x C x H x W."""

    def __init__(
        self,
        data_or_path: Any,
        caption: str | None = None,
        fps: float | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        is_colour = len(getattr(data_or_path, "shape", ())) == 4
        super().__init__(data_or_path, caption, fps=fps or 4, layout="TCHW" if is_colour else None)


class Audio(media_values.Audio, Stored):
    """Sound, by its path or samples."""

    def __init__(
        self,
        data_or_path: Any,
        sample_rate: int | None = None,
        caption: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(data_or_path, sample_rate, caption)


class Histogram(media_values.Histogram, Stored):
    """A histogram, of values or of counts and edges."""

    def __init__(
        self, sequence: Any = None, np_histogram: Any = None, num_bins: int = 64, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(sequence, bins=num_bins, np_histogram=np_histogram)


class Html(media_values.Html, Stored):
    """HTML, as a text, from a file that is open, or by the path of one that ends in `.html`."""

    def __init__(self, data: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(data)

    def packed(self, most_bytes: int) -> media_values.Packed:
        """Implement `Value.packed`."""
        content = self._content
        if hasattr(content, "read"):
            self._content = content.read()
        elif isinstance(content, str) and content.endswith(".html") and "<" not in content:
            return {"kind": "html", "form": "path"}, os.path.abspath(content).encode(
                "utf-8", "surrogateescape"
            )
        return super().packed(most_bytes)


class Object3D(Media): ...


class Molecule(Media): ...


class Plotly(Media): ...


class Classes(Media): ...


class Graph(Media): ...


class Table(media_values.Table, Stored):
    """Rows under named columns, as they are when the table is logged."""

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
        super().__init__(self.data, self.columns)

    def packed(self, most_bytes: int) -> media_values.Packed:
        """Implement `Value.packed`: with rows and columns that were added or set since."""
        self._content, self._columns = self.data, [str(name) for name in self.columns]
        return super().packed(most_bytes)

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

"""Media values, which a user logs beside numbers: images, histograms, tables, texts, files.

Runs in the training process. A value only keeps what it is given; `log` reads it, and a change of the array between
the two is a change of what is logged. Constructors raise nothing: what is wrong is said when the value is logged.

Invariants:

- nothing here encodes: pixels and raw values are copied as they are, and a process beside the agent makes PNG, counts
  and checksums of them. What has to be made in the call (the JSON of a table) is bounded, and its class says so;
- no library is imported: whoever made an array has loaded the one that it comes from.
"""

from __future__ import annotations

import os
import sys
from _io import BytesIO
from itertools import islice

from ..guest import foreign, stdlib
from ..session import handles, media_memory
from . import film
from .arrays import array_of
from .media_table import joined
from .values import LeftOut, NoRoom

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TypeAlias

    Packed: TypeAlias = "tuple[dict[str, Any], memoryview | bytes]"

MAX_BYTES = 1 << 30
# Bytes of raw values that are copied whole, some 0.4 ms; of more each n-th value is taken, at most SAMPLE bytes.
# To copy 8 MiB took 0.9 ms where an image took 0.17 ms: as much as the whole call may take.
MAX_HISTOGRAM, SAMPLE = 4 << 20, 1 << 20
MAX_CAPTION = 1000  # characters
MAX_BINS = 512
MAX_CELLS = 200_000  # of a table
MAX_CELL = 4096  # characters


class Value:
    """Base of all media values."""

    __slots__ = ("_caption", "_content")

    kind = ""
    most_bytes = MAX_BYTES  # of its payload

    def __init__(self, content: Any, caption: str | None = None) -> None:
        self._content = content
        self._caption = caption
        for session in handles.sessions():  # the first one reserves memory, so that `log` need not
            media_memory.reserve(session)

    def packed(self, most_bytes: int) -> Packed:
        """Return what describes the value, and its payload. Raises LeftOut; foreign code may raise anything."""
        raise NotImplementedError

    def _described(self, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"kind": self.kind}
        if self._caption is not None:
            found["caption"] = _text(self._caption, MAX_CAPTION)
        found.update((name, value) for name, value in more.items() if value is not None)
        return found


def _text(value: Any, most: int) -> str:
    text = value if type(value) is str else str(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def _encoded(text: Any, most_bytes: int, what: str) -> bytes:
    if not isinstance(text, str):
        raise LeftOut(f"{what} takes a str, not a {type(text).__name__}")
    return bytes(_fitting(text.encode("utf-8", "backslashreplace"), most_bytes))


def _fitting(data: Any, most_bytes: int) -> Any:
    if len(data) > most_bytes:
        raise NoRoom(f"{len(data):,} bytes; at most {most_bytes:,} fit (LOGCLIENT_MEDIA_BYTES)")
    return data


def _path_of(content: Any) -> str:
    """Return the absolute path that a value was given; empty where it was given something else."""
    try:
        return str(foreign.call(_absolute, content))
    except foreign.Failed:
        return ""


def _absolute(content: Any) -> str:
    if isinstance(content, str | os.PathLike):
        path = os.fspath(content)
        return os.path.abspath(path) if isinstance(path, str) else ""
    return ""


class _Media(Value):
    """A value that may be given as a file, or as the bytes of one."""

    __slots__ = ("_path",)

    def __init__(self, content: Any, caption: str | None = None) -> None:
        super().__init__(content, caption)
        self._path = _path_of(content)  # with the working directory of now

    def _whole(self, most_bytes: int, **more: Any) -> Packed | None:
        """Return a file that is given by its path or as bytes; None where it is given otherwise."""
        if self._path:  # read by the process that stores it: reading could wait for a disk
            return self._described(form="path", **more), self._path.encode("utf-8", "surrogateescape")
        content = self._content
        if isinstance(content, bytes | bytearray):
            return self._described(form="bytes", **more), _fitting(bytes(content), most_bytes)
        return None


class Image(_Media):
    """An image: an array of NumPy or a CPU tensor of torch, a PIL image, the bytes of a PNG or JPEG file, or its path.

    An array has the shape H x W, H x W x C or C x H x W with 1, 3 or 4 channels; `layout` ("HWC" or "CHW") says which,
    where a shape like 3 x 5 x 3 leaves that open: then tensors count as CHW, arrays as HWC. Bytes are taken as they
    are, bools as 0 and 255, floats as 0.0 to 1.0; `range` gives another range, such as (-1, 1) or (0, 255).
    """

    __slots__ = ("_layout", "_range")

    kind = "image"

    def __init__(
        self,
        data: Any,
        caption: str | None = None,
        *,
        layout: str | None = None,
        range: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(data, caption)
        self._layout = layout
        self._range = range

    def packed(self, most_bytes: int) -> Packed:
        """Implement `Value.packed`."""
        whole = self._whole(most_bytes)
        if whole is not None:
            return whole
        pil = getattr(sys.modules.get("PIL.Image"), "Image", None)
        if pil is not None and isinstance(self._content, pil):
            return self._of_pil(self._content, most_bytes)
        if self._layout not in (None, "HWC", "CHW"):
            raise LeftOut('an image with a layout that is neither "HWC" nor "CHW"')
        array = array_of(self._content, most_bytes)
        if len(array.shape) not in (2, 3) or 0 in array.shape:
            raise LeftOut(f"an image of shape {array.shape}: expected H x W, H x W x C or C x H x W")
        layout = self._layout or ("CHW" if array.is_tensor else "HWC")
        if len(array.shape) == 2:
            layout = "HW"
        elif array.shape[-1 if layout == "HWC" else 0] not in (1, 3, 4):
            layout = "CHW" if layout == "HWC" else "HWC"
            if self._layout or array.shape[-1 if layout == "HWC" else 0] not in (1, 3, 4):
                raise LeftOut(f"an image of shape {array.shape}: it has not 1, 3 or 4 channels")
        scale = None if self._range is None else [float(limit) for limit in self._range]
        described = self._described(
            form="pixels", dtype=array.dtype, shape=array.shape, layout=layout, range=scale
        )
        return described, array.data

    def _of_pil(self, image: Any, most_bytes: int) -> Packed:
        mode = image.mode
        if mode not in ("L", "RGB", "RGBA"):
            image = image.convert("RGBA" if "A" in mode or "transparency" in image.info else "RGB")
            mode = image.mode
        width, height = image.size
        channels = len(mode)
        if width * height * channels > most_bytes:
            _fitting(range(width * height * channels), most_bytes)
        shape = (height, width) if channels == 1 else (height, width, channels)
        layout = "HW" if channels == 1 else "HWC"
        return self._described(form="pixels", dtype="u1", shape=shape, layout=layout), image.tobytes()


class Histogram(Value):
    """The distribution of an array, tensor or list, counted outside of the training process; or counts and edges.

    Of arrays over 4 MiB (a million floats of 32 bits) each n-th value is taken, and the histogram says so. Values that
    are no finite numbers are counted apart. `np_histogram` takes what `numpy.histogram` returns.
    """

    __slots__ = ("_bins", "_counted")

    kind = "histogram"

    def __init__(
        self, values: Any = None, *, bins: int = 64, np_histogram: tuple[Any, Any] | None = None
    ) -> None:
        super().__init__(values)
        self._bins = bins
        self._counted = np_histogram

    def packed(self, most_bytes: int) -> Packed:
        """Implement `Value.packed`."""
        if self._counted is not None:
            counts, edges = ([float(each) for each in islice(some, MAX_BINS + 2)] for some in self._counted)
            if not 1 <= len(counts) <= MAX_BINS or len(edges) != len(counts) + 1:
                both = f"{len(counts):,} counts and {len(edges):,} edges"
                raise LeftOut(f"a histogram with {both}; it takes 1 to {MAX_BINS} counts, and one edge more")
            data = stdlib.load("json").dumps({"counts": counts, "edges": edges}).encode()
            return self._described(form="counts"), _fitting(data, most_bytes)
        if type(self._bins) is not int or not 1 <= self._bins <= MAX_BINS:
            raise LeftOut(f"a histogram with bins that are no int from 1 to {MAX_BINS}")
        array = array_of(self._content, min(most_bytes, MAX_HISTOGRAM), sample_bytes=SAMPLE)
        every = array.every if array.every > 1 else None
        return self._described(form="values", dtype=array.dtype, bins=self._bins, every=every), array.data


class Text(Value):
    """A text of any length that fits into the memory for media values."""

    __slots__ = ()

    kind = "text"

    def packed(self, most_bytes: int) -> Packed:
        """Implement `Value.packed`."""
        return self._described(form="bytes"), _encoded(self._content, most_bytes, type(self).__name__)


class Markdown(Text):
    """A text with Markdown in it."""

    __slots__ = ()

    kind = "markdown"


class Html(Text):
    """A piece of HTML, given as text. A page shows it apart from its own, where it reaches no network."""

    __slots__ = ()

    kind = "html"


class Table(Value):
    """Rows of texts, numbers, bools, None and `Image` under named columns; a pandas DataFrame gives both.

    Its JSON is made in the call of `log`, which takes some 0.5 us a cell. At most 200,000 cells, and 1,000 images, for
    which the whole table has the room of one value; what is beyond is left out and counted. Any other object is stored
    as its text.
    """

    __slots__ = ("_columns",)

    kind = "table"

    def __init__(
        self,
        rows: Iterable[Sequence[Any]] | Any = (),
        columns: Sequence[str] | None = None,
        caption: str | None = None,
    ) -> None:
        super().__init__(rows, caption)
        self._columns = columns

    def packed(self, most_bytes: int) -> Packed:
        """Implement `Value.packed`."""
        rows, names = self._content, self._columns
        pandas = sys.modules.get("pandas")
        frame = getattr(pandas, "DataFrame", None)
        if frame is not None and isinstance(rows, frame):
            names = list(rows.columns) if names is None else names
            if rows.shape[0] * rows.shape[1] > MAX_CELLS:
                raise LeftOut(f"a table of {rows.shape[0]:,} rows; at most {MAX_CELLS:,} cells are taken")
            rows = rows.itertuples(index=False, name=None)
        left, found = MAX_CELLS, []
        images: list[Value] = []
        for row in rows:
            cells = [_cell(each, images) for each in row]
            left -= max(1, len(cells))
            if left < 0:
                raise LeftOut(f"a table with more than {MAX_CELLS:,} cells")
            found.append(cells)
        width = max(map(len, found), default=0)
        columns = [_text(each, MAX_CELL) for each in (range(width) if names is None else names)]
        if width > len(columns):
            raise LeftOut(f"a table with rows of {width} cells under {len(columns)} columns")
        for cells in found:
            cells.extend([None] * (len(columns) - len(cells)))
        data = stdlib.load("json").dumps({"columns": columns, "rows": found}, separators=(",", ":")).encode()
        described = self._described(form="bytes", rows=len(found), columns=len(columns))
        if not images:
            return described, _fitting(data, most_bytes)
        data, omitted, unread = joined(data, images, most_bytes)
        described |= {"form": "images", "images": len(images)}
        if omitted:
            described |= {"omitted": omitted, "unread": unread}
        return described, data


def _cell(value: Any, images: list[Value]) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if -(1 << 53) <= value <= 1 << 53 else str(value)
    if kind is float:
        return value if value - value == 0 else str(value)  # JSON has no NaN
    if kind is str:
        if len(value) <= MAX_CELL and value.isascii():
            return value
        return _text(value, MAX_CELL).encode("utf-8", "backslashreplace").decode()
    numpy = sys.modules.get("numpy")
    generic = getattr(numpy, "generic", None)
    if generic is not None and isinstance(value, generic):
        number = value.item()
        if type(number) in (bool, int, float, str):
            return _cell(number, images)
    if isinstance(value, Image):
        images.append(value)
        return {"image": len(images) - 1}
    if isinstance(value, Value):
        return f"({value.kind}: not stored in a table)"
    return _text(value, MAX_CELL).encode("utf-8", "backslashreplace").decode()


class File(_Media):
    """A file by its path, read by the process that stores it; or bytes, with a `name`.

    A file that changes or goes before it was read is stored as it is then, or as one that was lost, with the reason.
    """

    __slots__ = ("_name",)

    kind = "file"

    def __init__(self, content: Any, name: str | None = None, caption: str | None = None) -> None:
        super().__init__(content, caption)
        self._name = name

    def packed(self, most_bytes: int) -> Packed:
        """Implement `Value.packed`."""
        name = self._name or os.path.basename(self._path) or "file"
        whole = self._whole(most_bytes, name=_text(name, 255))
        if whole is None:
            raise LeftOut(f"File takes a path or bytes, not a {type(self._content).__name__}")
        return whole


class Audio(_Media):
    """Sound: the bytes or the path of a file, or samples with their `rate` a second.

    Samples are -1.0 to 1.0, or ints of 16 bits, of shape N or N x channels; they are stored as WAV with 16 bits.
    """

    __slots__ = ("_rate",)

    kind = "audio"

    def __init__(self, data: Any, rate: int | None = None, caption: str | None = None) -> None:
        super().__init__(data, caption)
        self._rate = rate

    def packed(self, most_bytes: int) -> Packed:
        """Implement `Value.packed`."""
        whole = self._whole(most_bytes)
        if whole is not None:
            return whole
        if type(self._rate) is not int or not 0 < self._rate < 1 << 31:
            raise LeftOut("samples without their rate: Audio(samples, rate=44100)")
        array = array_of(self._content, most_bytes)
        channels = array.shape[1] if len(array.shape) == 2 else 1
        if len(array.shape) > 2 or not 1 <= channels <= 64:
            raise LeftOut(f"samples of shape {array.shape}: expected N or N x channels")
        described = self._described(form="samples", dtype=array.dtype, channels=channels, rate=self._rate)
        return described, array.data


class Video(_Media):
    """A film: the bytes or the path of a file, stored as it is; or frames, and how many of them are a second (`fps`).

    Frames are an array of bytes (uint8) of shape T x H x W, T x H x W x C or T x C x H x W with 1, 3 or 4 channels; the
    sides of `layout` ("THWC", "TCHW") are found as those of an image. PyAV makes a film of them (`pip install av`)
    outside of the training process; without it they are left out. Of frames that do not fit each n-th is taken, so that
    the film is whole, and the others are counted.
    """

    __slots__ = ("_can_encode", "_fps", "_layout")

    kind = "video"

    def __init__(
        self,
        data: Any,
        caption: str | None = None,
        *,
        fps: float | None = None,
        layout: str | None = None,
    ) -> None:
        super().__init__(data, caption)
        self._fps = fps
        self._layout = layout
        # not in `log`: it asks the disk, once a process
        self._can_encode = not self._path and not isinstance(data, bytes | bytearray) and film.has_encoder()

    def packed(self, most_bytes: int) -> Packed:
        """Implement `Value.packed`."""
        whole = self._whole(most_bytes)
        if whole is not None:
            return whole
        if not self._can_encode:
            raise LeftOut(
                "frames are encoded by PyAV, which is not installed: pip install av, or write them to a file, as MP4 "
                "or GIF, and log Video(path)"
            )
        array, layout, omitted, fps = film.frames(self._content, self._layout, self._fps, most_bytes)
        described = self._described(form="frames", shape=array.shape, layout=layout, fps=fps)
        if omitted:
            described["omitted"] = omitted
        return described, array.data


class Figure(Value):
    """A figure of matplotlib, stored as PNG, or of plotly, stored as its JSON.

    Both are made in the call of `log`, as their libraries cannot do it elsewhere: some 50 to 200 ms for matplotlib.
    """

    __slots__ = ()

    kind = "figure"

    def packed(self, most_bytes: int) -> Packed:
        """Implement `Value.packed`."""
        figure = self._content
        if hasattr(figure, "to_plotly_json") and hasattr(figure, "to_json"):
            text = figure.to_json()
            return self._described(form="bytes", json=True), _encoded(text, most_bytes, "plotly's to_json")
        figure = getattr(figure, "figure", figure)  # of axes
        if not hasattr(figure, "savefig"):
            raise LeftOut(f"Figure takes one of matplotlib or plotly, not a {type(figure).__name__}")
        file = BytesIO()
        figure.savefig(file, format="png")
        return self._described(form="bytes"), _fitting(file.getvalue(), most_bytes)

"""Media values for programs: `Media`, all of a run, and `MediaValue`, one of them. Bytes are read when asked for."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from logclient.errors import BadArgument

from ..runs.media import MediaItem, NoBlob
from ..runs.media_reference import Reference, image_of
from ..runs.source import StoredRun

if TYPE_CHECKING:
    from pandas import DataFrame

_PNG = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 6: 4}


class Counts:
    """A histogram: `counts[i]` values lie from `edges[i]` up to `edges[i + 1]`."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.counts = np.array(table["counts"], float)
        edges = table.get("edges")
        if edges is None:
            edges = np.linspace(table["low"], table["high"], len(self.counts) + 1)
        self.edges = np.array(edges, float)
        self.values = table.get("values", 0)
        self.nonfinite = table.get("nonfinite", 0)
        self.every = table.get("every", 1)  # each so many-th value was counted

    def __repr__(self) -> str:
        return f"<Counts of {self.values:,} values in {len(self.counts)} bins>"


class _Referred:
    """The parts of a reference that a user may look at."""

    def __init__(self, stored: StoredRun, reference: Reference) -> None:
        self._stored = stored
        self.sha256 = reference.sha256
        self.size = reference.size
        self.mime = reference.mime
        self.lost = reference.lost  # why there are no bytes of it; empty: there are
        self.caption: str = reference.fields.get("caption", "")
        self.fields: Mapping[str, Any] = reference.fields


class CellImage(_Referred):
    """An image in a cell of a table."""

    def __repr__(self) -> str:
        return f"<CellImage: {f'lost: {self.lost}' if self.lost else f'{self.size:,} bytes'}>"

    def bytes(self) -> bytes:
        """Return the bytes that are stored, a PNG mostly. `NoBlob` where there are none any more."""
        if not self.sha256:
            raise NoBlob(f"the image of a cell was not stored: {self.lost}")
        return self._stored.blob(self.sha256)

    def load(self) -> Any:
        """Return the pixels as an array, as `MediaValue.load` does."""
        return _pixels(self.bytes())


class Rows:
    """A table: `columns`, and `rows` of cells; images are `CellImage`."""

    def __init__(self, table: Mapping[str, Any], stored: StoredRun | None = None) -> None:
        self.columns: list[str] = list(table["columns"])
        self.rows: list[list[Any]] = list(table["rows"])
        if stored is not None:
            self.rows = [[_cell(stored, cell) for cell in row] for row in self.rows]

    def __repr__(self) -> str:
        return f"<Rows: {len(self.rows):,} of {self.columns}>"

    def to_pandas(self) -> DataFrame:
        """Return the table as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame(self.rows, columns=self.columns)


def _cell(stored: StoredRun, cell: Any) -> Any:
    reference = image_of(cell)
    return cell if reference is None else CellImage(stored, reference)


class MediaValue(_Referred):
    """One value: what is known of it, and `load`."""

    def __init__(self, stored: StoredRun, item: MediaItem) -> None:
        super().__init__(stored, item.reference)
        self.key = item.key
        self.step = item.step
        self.time_ns = item.time
        self.rank = item.rank
        self.kind = item.reference.kind

    @property
    def time(self) -> datetime:
        """Return the time at which it was logged, UTC."""
        return datetime.fromtimestamp(self.time_ns / 1e9, UTC)

    def __repr__(self) -> str:
        state = f"lost: {self.lost}" if self.lost else f"{self.size:,} bytes" if self.sha256 else "inline"
        return f"<MediaValue {self.key!r} at step {self.step}: {self.kind}, {state}>"

    def bytes(self) -> bytes:
        """Return the bytes that are stored: a PNG, a text, a file. `NoBlob` where there are none any more."""
        if self.lost:
            raise NoBlob(f"{self.key!r} at step {self.step} was not stored: {self.lost}")
        if not self.sha256:
            return json.dumps(dict(self.fields)).encode()
        return self._stored.blob(self.sha256)

    def load(self) -> Any:
        """Return the value: an image as an array (H x W or H x W x C, bytes), a histogram as `Counts`, a table as
        `Rows`, texts as str, all else as bytes. Images in formats other than PNG need Pillow.
        """
        data = self.bytes()
        if self.kind == "image":
            return _pixels(data)
        if self.kind == "histogram":
            return Counts(json.loads(data))
        if self.kind == "table":
            return Rows(json.loads(data), self._stored)
        if self.kind in ("text", "markdown", "html"):
            return data.decode("utf-8", "replace")
        return data


class Media(Sequence[MediaValue]):
    """The media values of a run by step: ``media["key"]``, ``media[-1]``, ``for each in media``."""

    def __init__(self, stored: StoredRun, items: Sequence[MediaItem | MediaValue]) -> None:
        self._stored = stored
        self._all = [each if isinstance(each, MediaValue) else MediaValue(stored, each) for each in items]

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, which: int) -> MediaValue: ...

    @overload
    def __getitem__(self, which: str | slice) -> Media: ...

    def __getitem__(self, which: int | str | slice) -> MediaValue | Media:
        """By place; by key, all of its values. `BadArgument` where there is no such key."""
        if isinstance(which, str):
            found = [each for each in self._all if each.key == which]
            if not found:
                raise BadArgument(
                    f"no media value has the key {which!r}; there are: {', '.join(self.keys()) or 'none'}"
                )
            return Media(self._stored, found)
        if isinstance(which, slice):
            return Media(self._stored, self._all[which])
        return self._all[which]

    def __iter__(self) -> Iterator[MediaValue]:
        return iter(self._all)

    def __repr__(self) -> str:
        return f"<Media: {len(self):,} values of {len(self.keys())} keys>"

    def keys(self) -> list[str]:
        """Return the keys, sorted."""
        return sorted({each.key for each in self._all})

    def at(self, step: int) -> Media:
        """Return the values of one step."""
        return Media(self._stored, [each for each in self._all if each.step == step])


def _pixels(data: bytes) -> Any:
    own = _own_png(data) if data.startswith(_PNG) else None
    if own is not None:
        return own
    try:
        from PIL import Image
    except ImportError:
        raise BadArgument(
            "this image needs Pillow to be decoded: pip install pillow, or use .bytes()"
        ) from None
    return np.asarray(Image.open(io.BytesIO(data)))


def _own_png(data: bytes) -> Any:
    """Decode a PNG as the agent writes it; None for one that is any other."""
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    channels = _CHANNELS.get(data[25])
    at = 33
    size = int.from_bytes(data[at : at + 4], "big")
    is_own = data[12:16] == b"IHDR" and data[24] == 8 and data[26:29] == b"\0\0\0"
    if (
        channels is None
        or not is_own
        or data[at + 4 : at + 8] != b"IDAT"
        or data[at + 16 + size :][:4] != b"IEND"
    ):
        return None
    wanted = height * (width * channels + 1)
    if wanted > 1 << 31:
        return None
    try:
        lines = zlib.decompressobj().decompress(data[at + 8 : at + 8 + size], wanted)
    except zlib.error:
        return None
    if len(lines) != wanted:
        return None
    rows = np.frombuffer(lines, "u1").reshape(height, -1)
    filters, pixels = rows[:, 0], rows[:, 1:]
    if (filters == 2).all():
        pixels = np.cumsum(pixels, axis=0, dtype="u1")
    elif filters.any():
        return None
    shape = (height, width) if channels == 1 else (height, width, channels)
    return pixels.reshape(shape)

"""The records of a run's folders, decoded once for many questions about single keys.

`Decoded` keeps whole columns and where each key lies in them; `Looker` decides whether what was kept is still what
lies there. Runs in whichever thread asks, one at a time per object.

Invariants:

- a question is answered from what is kept only where no folder has changed since: the names of its files, and size and
  time of those that still grow;
- memory is bounded: a run that takes more than that is read anew for each question.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence

from logclient.shm.columns import Columns
from logclient.shm.record import Shape

from ..wal.encoded import StreamColumns
from ..wal.reader import OPEN, SEALED

FIRST_BYTES, MAX_BYTES = 64 << 20, 512 << 20  # kept by the first question, and once a second one came
_COARSE_NS = 100_000_000


class Decoded:
    """Columns, and in which of them each key lies."""

    def __init__(self, items: Sequence[StreamColumns]) -> None:
        self.items = items
        self._of_shape: list[list[StreamColumns]] = []
        self._places: dict[str, list[tuple[int, list[int]]]] = {}  # by key: shape, and where in it
        numbers: dict[Shape, int] = {}
        for item in items:
            shape = item.columns.shape
            number = numbers.setdefault(shape, len(numbers))
            if number == len(self._of_shape):
                self._of_shape.append([])
                places: dict[str, list[int]] = {}
                for place, name in enumerate(shape.names):
                    places.setdefault(name, []).append(place)
                for name, found in places.items():
                    self._places.setdefault(name, []).append((number, found))
            self._of_shape[number].append(item)

    def columns(self, keys: Iterable[str]) -> Iterator[StreamColumns]:
        """Yield the records that have one of these keys, without their other keys."""
        wanted: dict[int, list[int]] = {}
        for key in dict.fromkeys(keys):
            for number, places in self._places.get(key, ()):
                wanted.setdefault(number, []).extend(places)
        for number, places in wanted.items():
            places.sort()
            whole = self._of_shape[number][0].columns.shape
            shape = Shape(tuple(whole.names[at] for at in places), "".join(whole.codes[at] for at in places))
            for item in self._of_shape[number]:
                yield item.with_columns(_narrow(item.columns, shape, places))


def _narrow(columns: Columns, shape: Shape, places: list[int]) -> Columns:
    cells = [columns.cells[at] for at in places]
    return Columns(shape, columns.rank, columns.seq, columns.order, columns.step, columns.time, cells)


class Looker:
    """Keeps what was decoded of some folders as long as they stay as they are."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders
        self._signature: object = None
        self._kept: Decoded | None = None
        self._max_bytes = FIRST_BYTES

    def kept(self) -> Decoded | None:
        """Return what was decoded, if it is still what lies there."""
        if self._kept is not None and self._signature == self._look():
            return self._kept
        self._kept = None
        return None

    def keep(self, blocks: Iterable[StreamColumns]) -> Iterator[StreamColumns]:
        """Yield these blocks, the whole of what lies there now, and keep them if they are not too large."""
        signature, items, size = self._look(), list[StreamColumns](), 0
        for item in blocks:
            if size <= self._max_bytes:
                size += _bytes_of(item.columns)
                items.append(item)
                if size > self._max_bytes:
                    items.clear()
            yield item
        if size <= self._max_bytes and signature == self._look() and not self._is_written_now():
            self._signature, self._kept = signature, Decoded(items)
        self._max_bytes = MAX_BYTES

    def _is_written_now(self) -> bool:
        """Was one of them changed so lately that another change may have left the same time behind?"""
        now = time.time_ns()
        paths = (os.path.join(folder, name) for folder in self._folders for name in _open_names(folder))
        return any(size is not None and abs(now - size[1]) < _COARSE_NS for size in map(_size_of, paths))

    def _look(self) -> object:
        found: list[object] = []
        for folder in self._folders:
            try:
                names = sorted(name for name in os.listdir(folder) if name.endswith((OPEN, SEALED)))
            except OSError as error:
                found.append(error.errno)
                continue
            found.append(tuple(names))
            for name in names:
                if name.endswith(OPEN):
                    found.append(_size_of(os.path.join(folder, name)))
        return found


def _open_names(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.endswith(OPEN)]
    except OSError:
        return []


def _size_of(path: str) -> tuple[int, int] | None:
    try:
        facts = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return facts.st_size, facts.st_mtime_ns


def _bytes_of(columns: Columns) -> int:
    size = 8 * len(columns) * (4 + len(columns.cells))
    if not columns.shape.fixed:
        size += sum(sum(map(len, cells)) for cells in columns.cells if isinstance(cells, list))
    return size

"""Compares the records of the demo's trainer with what is stored: record by record, value by value.

The trainer and its data loader workers each keep a file of their own (`Truth` in demo_train.py, which draws the
format). Nothing of the client or the agent takes part in that.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from logclient.shm.columns import Columns, read_column

from ..runs.points import RunReader
from ..runs.view import RunView

HEAD_BYTES = 4096
ROWS, FIRST, LONGEST, KEYS_AT = 0, 1, 2, 24

_MAX_WRONG = 1000  # each costs a look at all notes behind it

Row = tuple[float, ...]  # step, values


class Truth:
    """One process's own notes, readable while it writes them."""

    def __init__(self, path: Path) -> None:
        self.pid = int(path.stem)
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self._words = memoryview(self._map)[:KEYS_AT].cast("Q")
        self.keys: list[str] = json.loads(self._map[KEYS_AT:HEAD_BYTES].rstrip(b"\0") or b"[]")
        self._row = struct.Struct(f"<q{len(self.keys)}d")

    @property
    def rows(self) -> int:
        """Records whose `log()` returned."""
        return int(self._words[ROWS])

    @property
    def longest_ns(self) -> int:
        """The longest of these calls, the first left out."""
        return int(self._words[LONGEST])

    @property
    def first_ns(self) -> int:
        """The first of them, which makes the lanes in a forked process."""
        return int(self._words[FIRST])

    def row(self, at: int) -> Row:
        return self._row.unpack_from(self._map, HEAD_BYTES + at * self._row.size)

    def bytes(self, at: int) -> bytes:
        """A row as it is in the file: a NaN equals itself here."""
        start = HEAD_BYTES + at * self._row.size
        return self._map[start : start + self._row.size]


def truths(folder: Path) -> list[Truth]:
    """Return the truth files whose head is written; the one with the most keys, the trainer's, comes first."""
    found = [Truth(path) for path in sorted(folder.glob("*.truth")) if path.stat().st_size > HEAD_BYTES]
    return sorted((truth for truth in found if truth.keys), key=lambda truth: -len(truth.keys))


class Checked:
    """The outcome."""

    def __init__(self) -> None:
        self.logged = 0
        self.stored = 0
        self.troubles: list[str] = []

    @property
    def is_same(self) -> bool:
        """All that is stored is what was logged, in its order."""
        return self.stored > 0 and not self.troubles


def check(run: RunView, notes: list[Truth], counts: dict[str, int]) -> Checked:
    """`counts` are the run's: forgotten and damaged ones are allowed to be missing, and none besides."""
    found = Checked()
    found.logged = sum(truth.rows for truth in notes)
    by_process = {process.id: process.pid for process in run.processes.values()}
    by_pid = {truth.pid: truth for truth in notes}
    reached = dict.fromkeys(by_pid, 0)
    wrong = foreign = 0
    reader = RunReader([node.path for node in run.nodes])
    for part in reader.parts():
        pid = by_process.get(part.process.hex(), 0)
        truth = by_pid.get(pid)
        found.stored += part.stop - part.start
        if truth is None or list(part.columns.shape.names) != truth.keys:
            foreign += part.stop - part.start
            continue
        at, last = reached[pid], truth.rows
        for row in rows_of(part.columns, part.start, part.stop):
            index = at
            while index < last and truth.bytes(index) != row:
                index += 1  # the note of a record that is not stored
            if index < last:
                at = index + 1
            elif (wrong := wrong + 1) >= _MAX_WRONG:
                break
        reached[pid] = at
    missing = found.logged - found.stored - counts["forgotten"] - counts["damaged"] - counts["refused"]
    if missing:
        found.troubles.append(f"{missing:,} records are neither stored nor counted as dropped")
    if wrong or foreign:
        found.troubles.append(
            f"{wrong + foreign:,} stored records are not what was logged, or not in its order"
        )
    found.troubles += [f"damage: {damage}" for damage in reader.damage]
    return found


def rows_of(columns: Columns, start: int, stop: int) -> Iterator[bytes]:
    """Records as rows of a truth file."""
    cells = [
        read_column(code, cell[start:stop])
        for code, cell in zip(columns.shape.codes, columns.cells, strict=True)
    ]
    pack = struct.Struct(f"<q{len(cells)}d").pack
    for step, *values in zip(columns.step[start:stop], *cells, strict=True):
        yield pack(step, *values)

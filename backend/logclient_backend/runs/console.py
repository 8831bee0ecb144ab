"""Captured output of a run's processes: raw pieces, and the lines that they fold to, in order.

For whatever shows or reads runs, from a folder or from a server. Pieces of one process come by seq, processes are
merged by time as records are (`order.py`); a jump of seqs is a number of pieces that are lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from logclient.shm.columns import Columns, read_column
from logclient.shm.console_stream import STREAMS
from logclient.shm.side_stream import CONSOLE

from ..wal.encoded import StreamColumns
from .console_fold import HOLD, Fold, Line
from .source import Follower, StoredRun
from .view import RunView


class Piece(NamedTuple):
    """One text as it was handed to `write`, with the separators before it."""

    process: str
    rank: int | None
    seq: int
    time_ns: int
    number: int  # of the line in which it begins
    stream: str  # stdout or stderr
    text: str
    lost: int = 0  # pieces that are missing before it


class ConsoleLine(NamedTuple):
    """A line of one process, see `console_fold.Line`."""

    process: str
    rank: int | None
    time_ns: int
    stream: str  # stdout or stderr
    text: str
    lost: int  # pieces that are missing before it
    cut: int  # characters that it lacks
    number: int
    is_open: bool  # it may change

    @classmethod
    def of(cls, process: str, rank: int | None, line: Line) -> ConsoleLine:
        return cls(
            process,
            rank,
            line.time_ns,
            line.stream,
            line.text,
            line.lost,
            line.cut,
            line.number,
            line.is_open,
        )


def rows_of(
    columns: Columns, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, int, int, str, str]]:
    """Yield seq, time, line, stream and text of each piece; what is no piece is left out."""
    cut = slice(start, stop)
    for name, code, cells in zip(columns.shape.names, columns.shape.codes, columns.cells, strict=True):
        if name in STREAMS and code == "s":
            texts = (str(text) for text in read_column(code, cells[cut]))
            yield from zip(
                columns.seq[cut],
                columns.time[cut],
                columns.step[cut],
                (name,) * len(columns),
                texts,
                strict=False,
            )


class Console:
    """The captured output of one run, as it is now. A stream of each process that captured it."""

    def __init__(self, stored: StoredRun) -> None:
        self._stored = stored.of_side(CONSOLE)

    def view(self) -> RunView:
        """Return the processes whose output was captured."""
        return self._stored.view()

    def pieces(self) -> Iterator[Piece]:
        """Yield all pieces that are stored."""
        last: dict[bytes, int] = {}
        for part in self.view().found.records().parts():
            process = part.process.hex()
            for seq, time_ns, number, stream, text in rows_of(part.columns, part.start, part.stop):
                lost = seq - 1 - last.get(part.stream, 0)
                last[part.stream] = seq
                yield Piece(process, part.columns.rank, seq, time_ns, number, stream, text, lost)

    def __iter__(self) -> Iterator[ConsoleLine]:
        return self.lines()

    def lines(self) -> Iterator[ConsoleLine]:
        """Yield all lines, each as it stands now; those that may change, at last."""
        return fold(self.pieces(), is_over=self.view().state.is_over)

    def follower(self) -> Follower:
        """Return a follower of the records, for `new_pieces`."""
        return self._stored.follower()

    def counts(self) -> dict[str, int]:
        """Return how many pieces were accepted, and what became of them."""
        return self.view().counts()


def pieces_of(items: Iterable[object], last: dict[bytes, int]) -> Iterator[Piece]:
    """Yield the pieces of some records that a follower gives. `last`: up to which seq those of a stream came."""
    found: list[tuple[bytes, bytes, int | None, tuple[int, int, int, str, str]]] = []
    for item in items:
        if isinstance(item, StreamColumns):
            columns = item.columns
            found += [(item.stream, item.process, columns.rank, row) for row in rows_of(columns)]
    found.sort(key=lambda piece: (piece[0], piece[3]))
    for id, process, rank, (seq, time_ns, number, stream, text) in found:
        before = last.get(id, seq - 1)
        if seq > before:
            last[id] = seq
            yield Piece(process.hex(), rank, seq, time_ns, number, stream, text, seq - 1 - before)


def fold(pieces: Iterable[Piece], *, is_over: bool) -> Iterator[ConsoleLine]:
    """Fold the pieces of all processes. `is_over`: no further ones follow."""
    folders = Folders()
    for piece in pieces:
        yield from folders.feed(piece)
    yield from folders.still_open(is_over=is_over)


class Folders:
    """A `Fold` for each process."""

    def __init__(self, hold: int = HOLD) -> None:
        """`hold`: see `Fold.settled`."""
        self._hold = hold
        self._folds: dict[str, Fold] = {}
        self._ranks: dict[str, int | None] = {}

    def feed(self, piece: Piece) -> list[ConsoleLine]:
        """Take a piece; return the lines that do not change any more."""
        fold = self._folds.get(piece.process)
        if fold is None:
            fold = self._folds[piece.process] = Fold()
        self._ranks[piece.process] = piece.rank
        if piece.lost > 0:
            fold.lose(piece.lost)
        fold.feed(piece.stream, piece.seq, piece.time_ns, piece.number, piece.text)
        return [ConsoleLine.of(piece.process, piece.rank, line) for line in fold.settled(self._hold)]

    def still_open(self, *, is_over: bool = False) -> list[ConsoleLine]:
        """Return the other lines, by time."""
        found = [
            ConsoleLine.of(process, self._ranks[process], line)
            for process, fold in self._folds.items()
            for line in fold.still_open(is_over=is_over)
        ]
        found.sort(key=lambda line: line.time_ns)
        return found

"""Many records of one shape, column by column: what the agent, the WAL and all readers work with.

Runs in the backend, and in a notebook that shows a run's last values (`card.py`). Not in the training process
otherwise: `array` loads `collections`, which would be a fifth of the time that `import logclient` takes.
"""

from __future__ import annotations

from array import array

from . import layout
from .record import FLOATS, PREFIX, VARIABLE, Shape, variable_cells

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeAlias

    from .record import Value

    Column: TypeAlias = "array[int] | list[bytes]"


def read_column(code: str, column: Column) -> Sequence[Value]:
    """Python values of one column: float, int, bool or str."""
    if code == "s":
        return [bytes(cell).decode("utf-8", "replace") for cell in column]
    if code == "i":
        return [int.from_bytes(cell, "little", signed=True) for cell in column]  # type: ignore[arg-type]
    words = array("d" if code in FLOATS else "q", column.tobytes())  # type: ignore[union-attr]
    return list(map(bool, words)) if code == "b" else words


class Columns:
    """Records of one stream, one shape and one rank, in seq order, column by column.

    `seq`, `order`, `step`, `time` (ns since 1970) have one item a record; `cells` has one column a key:
    the raw 64-bit words of a fixed code, a list of bytes for `i` and `s`.
    """

    __slots__ = ("cells", "order", "rank", "seq", "shape", "step", "time")

    def __init__(
        self,
        shape: Shape,
        rank: int | None,
        seq: array[int],
        order: array[int],
        step: array[int],
        time: array[int],
        cells: list[Column],
    ) -> None:
        self.shape = shape
        self.rank = rank
        self.seq = seq
        self.order = order
        self.step = step
        self.time = time
        self.cells = cells

    def __len__(self) -> int:
        return len(self.seq)

    @classmethod
    def from_frames(cls, shape: Shape, rank: int | None, frames: bytes) -> Columns:
        """Turn whole, checked frames of one shape and rank, laid end to end, into columns."""
        if shape.fixed:
            words = array("Q", frames)
            width = shape.frame_bytes // 8
            signed = array("q", frames)
            return cls(
                shape,
                rank,
                words[1::width],
                words[2::width],
                signed[3::width],
                signed[4::width],
                [words[at::width] for at in range(6, width)],
            )
        seq, order, step, time = array("Q"), array("Q"), array("q"), array("q")
        cells: list[Column] = [[] if code in VARIABLE else array("Q") for code in shape.codes]
        view, at = memoryview(frames), 0
        while at < len(frames):
            word, number, at_order, at_step, at_time, _ = PREFIX.unpack_from(frames, at)
            size = word & layout.LENGTH_MASK
            seq.append(number)
            order.append(at_order)
            step.append(at_step)
            time.append(at_time)
            found = variable_cells(shape, view[at + layout.FRAME_PREFIX : at + size])
            for column, cell in zip(cells, found, strict=True):
                column.append(int.from_bytes(cell, "little") if isinstance(column, array) else cell)  # type: ignore[arg-type]
            at += size
        return cls(shape, rank, seq, order, step, time, cells)

    def part(self, start: int, stop: int) -> Columns:
        """Records `start` to `stop` (positions, not seqs)."""
        cut = slice(start, stop)
        return Columns(
            self.shape,
            self.rank,
            self.seq[cut],
            self.order[cut],
            self.step[cut],
            self.time[cut],
            [column[cut] for column in self.cells],
        )

    def extend(self, other: Columns) -> None:
        """Append records of the same shape and rank."""
        self.seq.extend(other.seq)
        self.order.extend(other.order)
        self.step.extend(other.step)
        self.time.extend(other.time)
        for mine, others in zip(self.cells, other.cells, strict=True):
            mine.extend(others)  # type: ignore[arg-type]

    def values(self) -> Iterator[tuple[str, str, Sequence[Value]]]:
        """(key, code, values) per key, in the order they were logged."""
        for name, code, column in zip(self.shape.names, self.shape.codes, self.cells, strict=True):
            yield name, code, read_column(code, column)

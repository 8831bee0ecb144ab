"""A curve as text: braille dots, the lowest and highest value of each column so that spikes stay, NaN marked.

Pure; used by `logclient show` and the demo.

    curve = Curve()
    curve.add([0, 1, 2], [0.5, 0.25, 0.125])
    print("\\n".join(curve.draw(60, 8).lines))

Invariants:

- bounded: points fall into cells of 2**k steps, at most MAX_CELLS of them whatever the range of steps is;
- what is drawn of a column reaches from the lowest to the highest of its points; NaN and infinities are not drawn but
  marked below the axis and counted;
- a few points far off (a stray step 10,000,000) are left outside the drawn range, and said.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

MAX_CELLS = 4096
ODD_MARK, GAP_MARK = "×", "░"
_DOTS = (
    (0x01, 0x02, 0x04, 0x40),
    (0x08, 0x10, 0x20, 0x80),
)  # braille dots of a character, by column, from the top
_STRAY_SHARE = 0.01  # of the points may lie outside, if that widens the rest tenfold
_STRAY_GAIN = 10


@dataclass(slots=True)
class Cell:
    """The points of some neighbouring steps."""

    first: int  # steps
    last: int
    low: float = math.inf
    high: float = -math.inf
    points: int = 0
    odd: int = 0  # of them NaN or infinite

    def take(self, other: Cell) -> None:
        self.first = min(self.first, other.first)
        self.last = max(self.last, other.last)
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)
        self.points += other.points
        self.odd += other.odd


class Curve:
    """Lowest and highest values over steps, in bounded memory."""

    def __init__(self, most_cells: int = MAX_CELLS) -> None:
        self.cells: dict[int, Cell] = {}  # step >> shift
        self.shift = 0
        self.points = 0
        self._most = most_cells

    def add(self, steps: Sequence[int], values: Sequence[float]) -> None:
        """Points in any order; a bool or int is a number."""
        self.points += len(steps)
        at, count = 0, len(steps)
        is_rising = count > 1 and all(map(int.__le__, steps[:-1], steps[1:]))
        while at < count:
            index = steps[at] >> self.shift
            # all that falls into this cell at once: min and max of a slice are C
            stop = bisect_left(steps, (index + 1) << self.shift, at + 1) if is_rising else at + 1
            self._put(index, Cell(steps[at], steps[stop - 1]), values[at:stop])
            at = stop

    def _put(self, index: int, cell: Cell, values: Sequence[float]) -> None:
        cell.points = len(values)
        if not _is_finite(_sum(values)):
            finite = [value for value in values if _is_finite(value)]
            cell.odd = len(values) - len(finite)
            values = finite
        if values:
            cell.low, cell.high = min(values), max(values)
        there = self.cells.get(index)
        if there is not None:
            there.take(cell)
        else:
            self.cells[index] = cell
            while len(self.cells) > self._most:
                self._halve()

    def _halve(self) -> None:
        """Cells of twice as many steps."""
        self.shift += 1
        old, self.cells = self.cells, {}
        for index, cell in old.items():
            there = self.cells.get(index >> 1)
            if there is None:
                self.cells[index >> 1] = cell
            else:
                there.take(cell)

    def merge(self, other: Curve, hidden: Iterable[tuple[int, int]] = ()) -> None:
        """Add the cells of another, but for those that lie in any of these ranges of steps (both ends meant)."""
        while self.shift < other.shift:
            self._halve()
        ranges = list(hidden)
        for index, cell in other.cells.items():
            if any(first <= cell.first and cell.last <= last for first, last in ranges):
                continue
            self.points += cell.points
            there = self.cells.get(index >> (self.shift - other.shift))
            if there is None:
                self.cells[index >> (self.shift - other.shift)] = replace(cell)
            else:
                there.take(cell)
        while len(self.cells) > self._most:
            self._halve()

    def draw(
        self, width: int, height: int, *, gaps: Iterable[tuple[int, int]] = (), ascii_only: bool = False
    ) -> Drawing:
        """The curve in `height` lines of at most `width` characters, then two of the axis and its steps.

        `gaps` are ranges of steps between which records are missing; they are marked on the axis.
        """
        return Drawing(self, width, height, list(gaps), ascii_only)


def _sum(values: Sequence[float]) -> float:
    try:
        return float(sum(values))
    except OverflowError:  # ints beyond what a float holds
        return math.inf


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


class Drawing:
    """One curve at one size: `lines`, and what they do not show."""

    def __init__(
        self, curve: Curve, width: int, height: int, gaps: list[tuple[int, int]], ascii_only: bool
    ) -> None:
        self.ascii_only = ascii_only
        self.height = max(2, height)
        indexes = sorted(curve.cells)
        first, last, self.hidden = _drawn_range(indexes, curve.cells)  # points outside the drawn range
        drawn = [cell for index in indexes if first <= index <= last for cell in (curve.cells[index],)]
        self.first = min((cell.first for cell in drawn), default=0)  # steps
        self.last = max((cell.last for cell in drawn), default=0)
        finite = [cell for cell in drawn if cell.points > cell.odd]
        self.low = float(min((cell.low for cell in finite), default=0.0))
        self.high = float(max((cell.high for cell in finite), default=0.0))
        self.odd = sum(cell.odd for cell in drawn)  # NaN or infinite, marked below the axis
        self.gaps = [gap for gap in gaps if gap[1] >= self.first and gap[0] <= self.last]
        labels = _labels(self.low, self.high) if finite else ("", "")
        self._margin = max(map(len, labels)) + 2
        self._width = max(4, width - self._margin)
        self._columns = self._fill(drawn)
        self.lines = self._draw(labels)

    def _fill(self, drawn: list[Cell]) -> list[Cell | None]:
        """One merged cell a column of dots, two to a character."""
        columns: list[Cell | None] = [None] * (self._width if self.ascii_only else 2 * self._width)
        for cell in drawn:
            at = self._column(cell.first + (cell.last - cell.first) // 2)
            there = columns[at]
            if there is None:
                columns[at] = replace(cell)
            else:
                there.take(cell)
        return columns

    def _column(self, step: int) -> int:
        dots = self._width if self.ascii_only else 2 * self._width
        step = min(max(step, self.first), self.last)
        return (step - self.first) * (dots - 1) // max(1, self.last - self.first)

    def _draw(self, labels: tuple[str, str]) -> list[str]:
        edge, corner, line = ("|", "+", "-") if self.ascii_only else ("┤", "└", "─")
        names = [""] * self.height
        if self.low == self.high:
            names[self.height // 2] = labels[0]
        else:
            names[0], names[-1] = labels[1], labels[0]
        rows = self._plot()
        out = [
            f"{name:>{self._margin - 2}} {edge}{row}".rstrip() for name, row in zip(names, rows, strict=True)
        ]
        out.append(f"{'':>{self._margin - 2}} {corner}{self._axis(line)}")
        first, last = f"{self.first:,}", f"{self.last:,}"
        if self.first == self.last:
            out.append(f"{'':>{self._margin}}{first}")
        else:
            space = max(1, self._width - len(first) - len(last))
            out.append(f"{'':>{self._margin}}{first}{'':>{space}}{last}")
        return out

    def _plot(self) -> list[str]:
        per_row, per_column = (1, 1) if self.ascii_only else (4, 2)
        tall = self.height * per_row
        cells = [[0] * self._width for _ in range(self.height)]

        def dot(at: int, row: int) -> None:
            line, part = divmod(row, per_row)
            cells[line][at // per_column] |= _DOTS[at % 2][part]

        before: tuple[int, int, int] | None = None  # column, top, bottom
        for at, cell in enumerate(self._columns):
            if cell is None or cell.points == cell.odd:
                continue
            top, bottom = self._dot(cell.high, tall), self._dot(cell.low, tall)
            reach = (at, top, bottom)
            if before is not None and at - before[0] == 1:  # join what would be two separate strokes
                top, bottom = min(top, before[2]), max(bottom, before[1])
            elif before is not None and not self._has_gap(before[0], at):
                start, end = (before[1] + before[2]) / 2, (top + bottom) / 2
                for column in range(before[0] + 1, at):
                    dot(column, round(start + (end - start) * (column - before[0]) / (at - before[0])))
            before = reach
            for row in range(top, bottom + 1):
                dot(at, row)
        if self.ascii_only:
            return ["".join("*" if cell else " " for cell in row) for row in cells]
        return ["".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in cells]

    def _has_gap(self, left: int, right: int) -> bool:
        """Are records missing between these columns?"""
        return any(left < self._column(last) and self._column(first) < right for first, last in self.gaps)

    def _dot(self, value: float, tall: int) -> int:
        """Row of dots from the top; halves, so that the difference of two large floats does not overflow."""
        span = self.high / 2 - self.low / 2
        if not span > 0:
            return tall // 2 if self.high == self.low else (0 if value >= self.high else tall - 1)
        share = (self.high / 2 - value / 2) / span
        return min(tall - 1, max(0, round(share * (tall - 1))))

    def _axis(self, line: str) -> str:
        odd, gap = ("x", "=") if self.ascii_only else (ODD_MARK, GAP_MARK)
        per_column = 1 if self.ascii_only else 2
        marks = [line] * self._width
        for first, last in self.gaps:
            start, stop = self._column(first) // per_column, self._column(last) // per_column
            marks[start : stop + 1] = gap * (stop + 1 - start)
        for at, cell in enumerate(self._columns):
            if cell is not None and cell.odd:
                marks[at // per_column] = odd
        return "".join(marks)


def _drawn_range(indexes: list[int], cells: dict[int, Cell]) -> tuple[int, int, int]:
    """First and last cell to draw, and how many points lie outside: strays that would squeeze all others."""
    if not indexes:
        return 0, 0, 0
    total = sum(cells[index].points for index in indexes)
    room = int(total * _STRAY_SHARE)
    first, last, hidden = 0, len(indexes) - 1, 0
    while last > first:
        span = indexes[last] - indexes[first] + 1
        low, high = cells[indexes[first]].points, cells[indexes[last]].points
        without_low = indexes[last] - indexes[first + 1] + 1
        without_high = indexes[last - 1] - indexes[first] + 1
        drop_low = without_low <= without_high
        gone = low if drop_low else high
        if hidden + gone > room or min(without_low, without_high) * _STRAY_GAIN > span:
            break
        hidden += gone
        first, last = (first + 1, last) if drop_low else (first, last - 1)
    return indexes[first], indexes[last], hidden


def _labels(low: float, high: float) -> tuple[str, str]:
    """Both ends of the axis with as few digits as tell them apart."""
    for digits in range(3, 18):
        texts = f"{low:.{digits}g}", f"{high:.{digits}g}"
        if texts[0] != texts[1] or low == high:
            return texts
    return repr(low), repr(high)

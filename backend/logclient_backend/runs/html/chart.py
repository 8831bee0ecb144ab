"""One curve as SVG. Each column reaches from the lowest to the highest value, so spikes stay; NaN and inf are marked.

Pure. A column is `1 / COLUMNS` of the steps; a curve keeps up to 4,096 cells, so no column is wider than it has to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape

from ..curve import Cell, Curve

COLUMNS = 400
WIDTH, HEIGHT = 460, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 8, 22
_TICKS = 4


def chart(name: str, curve: Curve, gaps: Iterable[tuple[int, int]] = ()) -> str:
    """Return the drawing of a key. `gaps`: ranges of steps between which records are missing."""
    cells = _columns(curve)
    finite = [cell for cell in cells if cell.points > cell.odd]
    first = min((cell.first for cell in cells), default=0)
    last = max((cell.last for cell in cells), default=0)
    low = min((cell.low for cell in finite), default=0.0)
    high = max((cell.high for cell in finite), default=0.0)
    frame = _Frame(first, last, *_widened(float(low), float(high)))
    missing = [gap for gap in gaps if gap[1] >= first and gap[0] <= last]
    parts = [
        *(_gap(frame, gap) for gap in missing),
        *_axes(frame),
        *_line(frame, finite, missing),
        *(_odd(frame, cell) for cell in cells if cell.odd),
    ]
    label = f"{name}: steps {first:,} to {last:,}, lowest {_number(low)}, highest {_number(high)}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{''.join(parts)}</svg>"
    )


class _Frame:
    """Places of steps and values in the drawing."""

    def __init__(self, first: int, last: int, low: float, high: float) -> None:
        self.first, self.last, self.low, self.high = first, last, low, high

    def x(self, step: int) -> float:
        share = (step - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return _LEFT + share * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        # halves, so that the difference of two large floats does not overflow
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return _TOP + (1 - share) * (HEIGHT - _TOP - _BOTTOM)


def _columns(curve: Curve) -> list[Cell]:
    """Merge the cells of a curve into the columns of the drawing, by rising steps."""
    indexes = sorted(curve.cells)
    if not indexes:
        return []
    first, span = indexes[0], indexes[-1] - indexes[0] + 1
    found: dict[int, Cell] = {}
    for index in indexes:
        cell = curve.cells[index]
        at = (index - first) * COLUMNS // span if span > COLUMNS else index
        if at in found:
            found[at].take(cell)
        else:
            found[at] = replace(cell)
    return list(found.values())


def _widened(low: float, high: float) -> tuple[float, float]:
    """Return the ends of the axis: with room above and below, also where all values are equal."""
    room = (high / 2 - low / 2) * 0.1 or abs(low) * 0.05 or 0.5
    below, above = low - room, high + room
    return (below if math.isfinite(below) else low), (above if math.isfinite(above) else high)


def _line(frame: _Frame, cells: Sequence[Cell], gaps: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield the ranges of the columns as one stroke per stretch without a gap."""
    path, before = "", None
    for cell in cells:
        middle = frame.x(cell.first + (cell.last - cell.first) // 2)
        is_cut = before is not None and any(gap[0] >= before.last and gap[1] <= cell.first for gap in gaps)
        start = "M" if before is None or is_cut else "L"
        path += f"{start}{middle:.1f} {frame.y(cell.high):.1f}"
        if cell.low != cell.high:
            path += f"V{frame.y(cell.low):.1f}"
        before = cell
    if len(cells) == 1:
        yield f'<circle cx="{frame.x(cells[0].first):.1f}" cy="{frame.y(cells[0].high):.1f}" r="3" class="point"/>'
    elif path:
        yield f'<path d="{path}" class="curve"/>'


def _odd(frame: _Frame, cell: Cell) -> str:
    text = f"{cell.odd:,} not finite at steps {cell.first:,} to {cell.last:,}"
    return f'<text x="{frame.x(cell.first):.1f}" y="{HEIGHT - _BOTTOM}" class="odd">×<title>{text}</title></text>'


def _gap(frame: _Frame, gap: tuple[int, int]) -> str:
    left, right = frame.x(max(gap[0], frame.first)), frame.x(min(gap[1], frame.last))
    title = f"<title>records are missing between steps {gap[0]:,} and {gap[1]:,}</title>"
    return (
        f'<rect x="{left:.1f}" y="{_TOP}" width="{max(1.0, right - left):.1f}" height="{HEIGHT - _TOP - _BOTTOM}" '
        f'class="gap">{title}</rect>'
    )


def _axes(frame: _Frame) -> Iterator[str]:
    bottom = HEIGHT - _BOTTOM
    for at in range(_TICKS):
        share = at / (_TICKS - 1)
        value = frame.low * (1 - share) + frame.high * share
        y = frame.y(value)
        yield f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
        yield f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" class="tick end">{_number(value)}</text>'
    yield f'<text x="{_LEFT}" y="{bottom + 15}" class="tick">{frame.first:,}</text>'
    yield f'<text x="{WIDTH - _RIGHT}" y="{bottom + 15}" class="tick end">{frame.last:,}</text>'


def _number(value: float) -> str:
    return f"{value:.4g}"

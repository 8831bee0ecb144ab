"""A histogram as SVG: one column per bin, as wide as the bin. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

WIDTH, HEIGHT = 240, 110
_BOTTOM = 16
_MAX_BINS = 4096


def histogram(fields: Mapping[str, Any]) -> str:
    """Return the drawing of a stored histogram; empty where its counts are none, or are no numbers."""
    counts, edges = _numbers(fields.get("counts")), _numbers(fields.get("edges"))
    low, high = (_numbers([fields.get(name)]) for name in ("low", "high"))
    if not counts or not low or not high or low[0] >= high[0] or min(counts) < 0:
        return ""
    first, last = low[0], high[0]
    if len(edges) != len(counts) + 1 or edges[0] >= edges[-1]:
        edges = [first * (1 - at / len(counts)) + last * (at / len(counts)) for at in range(len(counts) + 1)]
    tall = HEIGHT - _BOTTOM
    most = max(counts) or 1.0
    path = f"M{_x(edges, edges[0]):.1f} {tall}"
    for at, each in enumerate(counts):
        path += f"V{tall - tall * (each / most):.1f}H{_x(edges, edges[at + 1]):.1f}"
    label = (
        f"Histogram from {first:.4g} to {last:.4g}, {sum(counts):,.0f} values, at most {most:,.0f} in a bin"
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}"><title>{escape(label)}</title>'
        f'<path d="{path}V{tall}Z" class="bars"/>'
        f'<text x="0" y="{HEIGHT - 5}" class="tick">{first:.4g}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 5}" class="tick end">{last:.4g}</text></svg>'
    )


def _x(edges: list[float], edge: float) -> float:
    # halves, so that the difference of two large floats does not overflow
    share = (edge / 2 - edges[0] / 2) / (edges[-1] / 2 - edges[0] / 2)
    return min(1.0, max(0.0, share)) * WIDTH


def _numbers(value: Any) -> list[float]:
    """Return finite floats; none where one of them is something else."""
    if not isinstance(value, list) or len(value) > _MAX_BINS + 1:
        return []
    if not all(type(each) in (int, float) for each in value):
        return []
    try:
        found = [float(each) for each in value]
    except OverflowError:
        return []
    return found if all(map(math.isfinite, found)) else []

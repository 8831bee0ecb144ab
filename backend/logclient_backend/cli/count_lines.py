"""Counts of records and media values, as lines of `logclient show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logclient.shm.side_stream import MEDIA

from . import screen
from .text import plural

if TYPE_CHECKING:
    from rich.text import Text

    from ..runs.view import RunView


def of_media(run: RunView) -> list[tuple[str, Text]]:
    """Return the line of the run's media values; none where it logged none."""
    counts = run.of_side(MEDIA).counts()
    return [("media", of_counts(counts, nothing="none forgotten"))] if any(counts.values()) else []


def of_counts(counts: dict[str, int], nothing: str = "none dropped") -> Text:
    """Return "1,010 stored, 12 forgotten, ..."; `nothing`: what is said where none is missing."""
    parts: list[Any] = [f"{counts['stored']:,} stored"]
    for name in ("forgotten", "damaged", "refused"):
        if counts[name]:
            part = {"forgotten": "trimmed", "damaged": "missing"}.get(name, "")
            inside = f" ({counts[part]:,} {part})" if counts.get(part) else ""
            parts += [", ", (f"{counts[name]:,} {name}{inside}", "yellow")]
    if len(parts) == 1:
        parts.append((f", {nothing}", "dim"))
    if counts["left_out"]:
        parts += [", ", (f"{plural(counts['left_out'], 'point')} left out", "yellow")]
    if counts["waiting"]:
        parts += [(f", {counts['waiting']:,} not on disk yet", "dim")]
    return screen.line(*parts)

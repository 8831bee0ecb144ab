"""Edits of a run as lines of text, for `logclient show` and `logclient edit`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..runs.edits import TAG, Edit
from .text import ago, safe

_MAX_LINES = 12
_MAX_TEXT = 60


def edit_lines(
    edits: Iterable[Edit], unedited: dict[str, Any], now_ns: int, most: int = _MAX_LINES
) -> list[str]:
    """Return a line for each edit, the newest first: what became of which field, by whom, when."""
    lines = [f"{_what(each, unedited)}, by {safe(each.who)}, {ago(each.time_ns, now_ns)}" for each in edits][
        ::-1
    ]
    return lines if len(lines) <= most else [*lines[: most - 1], f"and {len(lines) - most + 1} more"]


def _what(edit: Edit, unedited: dict[str, Any]) -> str:
    if edit.field == TAG:
        how = "undone" if edit.value is None else "added" if edit.value else "taken away"
        return f"tag {_quoted(edit.tag)} {how}"
    if edit.value is None:
        return f"{edit.field} undone"
    before = unedited.get(edit.field)
    was = f" (was {_quoted(before)})" if isinstance(before, str) and before != edit.value else ""
    return f"{edit.field} {_quoted(str(edit.value))}{was}"


def _quoted(text: str) -> str:
    return f"“{safe(text, _MAX_TEXT)}”" if text else "nothing"
